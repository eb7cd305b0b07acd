"""Which plan to measure next, and when to stop: expected improvement over normal beliefs.

Errors of estimates are jointly normal (planner/evidence/uncertainty/posterior.py).  Plans of one
model on one cluster share most of a run's noise; the rest is the plan's own, but correlated between
plans that divide their time alike.  So a measurement informs about its plan and, by the
correlation, about all others.  The next plan is the one with the largest expected improvement over
the best measured one (Jones et al. 1998); tuning stops when a plan that is faster by more than
WORTH is unlikely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p
from statistics import NormalDist

import numpy as np

from planner.evidence.uncertainty.beliefs import Belief, chances_fastest
from planner.evidence.uncertainty.error_features import Array, ErrorFeatures
from planner.evidence.uncertainty.posterior import ROUNDS, Posterior, outlier_noise

# A plan that is faster by this share of the time is worth a run.
WORTH = 0.01
# Tuning stops when the chance of such a plan is below this.
UNLIKELY = 0.05
# The distance between plans (shares of time and ln(estimated time)) at which their noise has a
# correlation of 61 %, by a Gaussian.  Among published pairs of plans of one model and cluster, the
# errors of estimates differ by 2 % if the absolute differences of shares add up to less than 0.02,
# and by 5 to 6 % from 0.05 on.
ALIKE = 0.04
# Standard deviation of ln(time) between two runs of one plan on one machine (a judgement).
REPEAT_NOISE = 0.005


@dataclass(frozen=True)
class Advice:
    """The plan to measure next; None if all are measured.

    gains: expected improvement of ln(time) by measuring each plan, 0 for measured ones.
    chance: that a plan not yet measured is more than WORTH faster than the best measured one.
    chances: the chance of each plan to be the fastest.
    """

    next: int | None
    gains: Array
    chance: float
    chances: Array

    @property
    def ends(self) -> bool:
        """Whether tuning stops: no plan is left, or none is likely to be faster."""
        return self.next is None or self.chance < UNLIKELY


def plan_belief(
    posterior: Posterior,
    features: Sequence[ErrorFeatures],
    seconds: Array,
    measured: Mapping[int, float],
) -> Belief:
    """The belief about the times of plans of one model on one cluster.

    seconds: estimated times.  measured: seconds by the plan's index.
    """
    missed, covariance = posterior.joint(features)
    mean = np.log(seconds) + missed
    noise = posterior.scales.noise_variance(features)
    repeated = posterior.plan_noise(features)
    points = np.column_stack([np.array([f.shares for f in features]), np.log(seconds)])
    distances = np.square((points[:, None] - points[None]) / ALIKE).sum(2)
    kernel = np.exp(-0.5 * distances) * np.sqrt(np.outer(repeated, repeated))
    shared = covariance + np.sqrt(np.outer(noise - repeated, noise - repeated))
    at = list(measured)
    ln_measured = np.log([measured[i] for i in at])
    missed_by = ln_measured - mean[at]
    shared = shared + _level(shared[np.ix_(at, at)], missed_by)
    more = np.ones(len(seconds))
    for _ in range(ROUNDS if at else 0):
        # An outlier informs less about other plans, so it gets more noise of its own.  All runs are
        # compared, also those of similar plans, so that two contradicting runs both get more.
        variance = shared + np.diag(np.diag(kernel) * more + REPEAT_NOISE**2)
        weighted = np.linalg.solve(variance[np.ix_(at, at)], missed_by)
        more[at] = outlier_noise(np.diag(kernel)[at], more[at], np.asarray(weighted, dtype=float))
    variance = shared + kernel * np.sqrt(np.outer(more, more))
    return _conditioned(Belief(mean, variance), at, np.asarray(ln_measured, dtype=float))


def _level(shared: Array, missed: Array) -> float:
    """Variance that is added to all plans if all measured ones are off by the same large factor.

    A machine that is several times as fast as expected is so for plans that were not run, too.
    """
    if not len(missed):
        return 0.0
    mean = np.array([shared.mean()])
    more = outlier_noise(mean, np.ones(1), missed.mean() / mean)
    return float(mean[0] * (more[0] - 1.0))


def _conditioned(prior: Belief, at: Sequence[int], ln_measured: Array) -> Belief:
    """The belief conditioned on the measured plans."""
    if not at:
        return prior
    seen = prior.covariance[np.ix_(at, at)] + REPEAT_NOISE**2 * np.eye(len(at))
    weights = np.linalg.solve(seen, prior.covariance[at]).T
    mean = prior.mean + weights @ (ln_measured - prior.mean[at])
    return Belief(np.asarray(mean), prior.covariance - weights @ prior.covariance[at])


def advised(belief: Belief, measured: Mapping[int, float]) -> Advice:
    """The next plan to measure: at first the one that is expected to be fastest."""
    count = len(belief.mean)
    open_ones = np.array([i for i in range(count) if i not in measured], dtype=int)
    drawn = belief.draws()
    chances = chances_fastest(drawn)
    gains = np.zeros(count)
    if not len(open_ones):
        return Advice(None, gains, 0.0, chances)
    if not measured:
        return Advice(int(belief.mean.argmin()), gains, 1.0, chances)
    best = log(min(measured.values()))
    gains[open_ones] = improvement(belief, best)[open_ones]
    known = drawn[:, list(measured)].min(axis=1)
    chance = float((drawn[:, open_ones].min(axis=1) < known + log1p(-WORTH)).mean())
    return Advice(int(open_ones[gains[open_ones].argmax()]), gains, chance, chances)


def improvement(belief: Belief, best: float) -> Array:
    """Expected improvement of each plan over a known ln(time); shape (n,)."""
    normal = NormalDist()
    deviation = np.maximum(belief.deviation, 1e-9)
    below = (best - belief.mean) / deviation
    densities = np.array([normal.pdf(z) for z in below.tolist()])
    shares = np.array([normal.cdf(z) for z in below.tolist()])
    return np.asarray(deviation * (below * shares + densities))
