"""How the errors of two plans' estimates compare: a posterior over the errors of factors.

ln(measured / estimated) of a run is modelled as a sum over FACTORS: the share of the run's time
that a factor takes, times the error of that factor.  The error is shared by all runs, with
deviations by family of accelerators, by accelerator, by runtime, by source and by model of a source
(LEVELS: partial pooling); each run adds its own noise.  All of them are normal, so conditioning on
runs has a closed form (Rasmussen and Williams 2006, section 2.2).  The sizes of the deviations are
fitted to the runs (`python -m tools.accuracy.fit_posterior --write`).

Errors that two plans share cancel, and what is left tells them apart: this is for comparing plans
and for tuning.  How far one estimate may be off is told by first sight (first_sight.py): these
runs were known when the physics was chosen.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import chain
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from planner.evidence.uncertainty.error_features import FACTORS, Array, ErrorFeatures

FILE = Path(__file__).parents[3] / "cost_models" / "catalog" / "posterior.json"
LEVELS = ("all", "family", "accelerator", "runtime", "source", "model")
# The share of the variance between sources that belongs to one model there (a judgement: the runs
# are most likely at 0.2 to 0.4, a few runs of a source teach most about its others at 0.75).
OF_MODEL = 0.5
# The width (hidden size) of a model whose runs have the usual noise.
USUAL_HIDDEN_SIZE = 8192
SHARES = ("50", "80", "95")  # per cent that intervals are to cover
Group = tuple[str, str]  # level, name


@dataclass(frozen=True)
class SeenRun:
    """A measured run: ln(measured / estimated); noise: its variance over the usual one."""

    features: ErrorFeatures
    ln: float
    noise: float = 1.0


@dataclass(frozen=True)
class Scales:
    """Standard deviations of ln: of each factor, of each level relative to the first, of the noise.

    noise_by_width: the power with which noise falls with the width of a model.
    """

    factors: tuple[float, ...]
    levels: tuple[float, ...]
    noise: float
    noise_of_experts: float
    noise_by_width: float

    def noise_variance(self, features: Sequence[ErrorFeatures]) -> Array:
        """The variance of the noise of runs; shape (runs,)."""
        experts = np.array([f.experts for f in features])
        width = np.array([f.hidden_size for f in features]) / USUAL_HIDDEN_SIZE
        noise = np.where(experts, self.noise_of_experts, self.noise)
        return np.asarray((noise * width**-self.noise_by_width) ** 2)


@dataclass(frozen=True)
class Posterior:
    """The scales of the deviations, and the runs that the posterior is conditioned on.

    quantiles: by percentage covered, the number of deviations to either side of the mean.
    """

    scales: Scales
    runs: tuple[SeenRun, ...]
    quantiles: dict[str, float]

    def conditioned_on(self, runs: Sequence[SeenRun]) -> Posterior:
        """The posterior conditioned on these runs too."""
        return Posterior(self.scales, (*self.runs, *runs), self.quantiles)

    def as_answered(self) -> Posterior:
        """The posterior with every run's error set to 0, which corrects no estimate."""
        right = tuple(SeenRun(run.features, 0.0, run.noise) for run in self.runs)
        return Posterior(self.scales, right, self.quantiles)

    def with_outlier_noise(self, runs: Sequence[SeenRun]) -> tuple[SeenRun, ...]:
        """The runs of a site with their noise: outliers get more."""
        if not runs:
            return ()
        features = [run.features for run in runs]
        _, shared = self.joint(features)
        noise = self.scales.noise_variance(features)
        more = site_noise(shared, noise, np.array([run.ln for run in runs]))
        return tuple(
            SeenRun(run.features, run.ln, float(e)) for run, e in zip(runs, more, strict=True)
        )

    def without(self, level: str, group: str) -> Posterior:
        """The posterior without the runs of a group."""
        at = LEVELS.index(level) - 1
        runs = tuple(run for run in self.runs if run.features.groups[at] != group)
        return Posterior(self.scales, runs, self.quantiles)

    def off(self, *groups: tuple[str, ...]) -> tuple[Array, Array]:
        """The error of each factor, averaged over `groups`: mean and covariance.

        groups: each with one name for every level after the first.
        """
        if groups not in self._off:
            self._off[groups] = self._factor_errors(groups)
        return self._off[groups]

    @cached_property
    def _off(self) -> dict[tuple[tuple[str, ...], ...], tuple[Array, Array]]:
        """Cached results of `off` by its arguments: accelerators, runtimes and sites are few."""
        return {}

    def _factor_errors(self, groups_of: Sequence[tuple[str, ...]]) -> tuple[Array, Array]:
        levels = Counter(chain(*(zip(LEVELS, ("", *groups), strict=True) for groups in groups_of)))
        weights = {each: count / len(groups_of) for each, count in levels.items()}
        known = {each: weight for each, weight in weights.items() if each in self._members}
        prior = sum(
            (self._deviation(each) * weight) ** 2
            for each, weight in weights.items()
            if each not in known
        )
        variance = np.diag(np.square(self.scales.factors) * prior)
        if not known:
            return np.zeros(len(FACTORS)), variance
        mean, seen = self._coefficients(list(known))
        weight = np.array(list(known.values()))
        return weight @ mean, variance + np.einsum("i,iajb,j->ab", weight, seen, weight)

    @cached_property
    def _members(self) -> dict[Group, list[int]]:
        """The runs of each group, by their indices."""
        rows: dict[Group, list[int]] = {}
        for row, run in enumerate(self.runs):
            for group in zip(LEVELS, ("", *run.features.groups), strict=True):
                rows.setdefault(group, []).append(row)
        return rows

    def _deviation(self, group: Group) -> float:
        return self.scales.levels[LEVELS.index(group[0])]

    def _coefficients(self, groups: Sequence[Group]) -> tuple[Array, Array]:
        """The error of each factor in groups that have runs: mean and covariance.

        Shapes: mean (groups, factors), covariance (groups, factors, groups, factors).
        """
        variance = np.square(np.outer(list(map(self._deviation, groups)), self.scales.factors))
        shares = np.array([run.features.shares for run in self.runs])
        design = np.zeros((len(self.runs), *variance.shape))
        for i, group in enumerate(groups):
            rows = self._members[group]
            design[rows, i] = shares[rows] * variance[i]
        flat = design.reshape(len(self.runs), -1)
        inverse, weighted = self.solved
        shared = np.diag(variance.ravel()) - flat.T @ inverse @ flat
        mean = flat.T @ weighted
        return mean.reshape(variance.shape), shared.reshape(variance.shape * 2)

    def joint(self, features: Sequence[ErrorFeatures]) -> tuple[Array, Array]:
        """Mean, shape (n,), and covariance, (n, n), of the errors of estimates; without noise."""
        prior = covariance(self.scales, features, features)
        if not self.runs:
            return np.zeros(len(features)), prior
        across = covariance(self.scales, features, [run.features for run in self.runs])
        inverse, weighted = self.solved
        return np.asarray(across @ weighted), np.asarray(prior - across @ inverse @ across.T)

    def shared_covariance(self, features: Sequence[ErrorFeatures]) -> Array:
        """Covariance of the errors of plans of one model by one source, (n, n); without noise.

        The source has no published runs unless it is named.
        """
        sourced = [f if f.groups[3] else _with_unseen_source(f) for f in features]
        if len({f.groups for f in sourced}) > 1:
            return self.joint(sourced)[1]
        _, shared = self.off(sourced[0].groups)
        shares = np.array([f.shares for f in sourced])
        return np.asarray(shares @ shared @ shares.T)

    def difference(self, features: ErrorFeatures, other: ErrorFeatures) -> float:
        """Standard deviation of the difference between two estimates' errors.

        Both plans are of one model on one cluster, run by the same source.
        """
        shared = self.shared_covariance([features, other])
        variance = max(shared[0, 0] + shared[1, 1] - 2.0 * shared[0, 1], 0.0)
        return sqrt(variance + float(self.plan_noise([features, other]).sum()))

    def plan_noise(self, features: Sequence[ErrorFeatures]) -> Array:
        """Variance of the noise that a plan does not share with others of its model and cluster."""
        return SHARE_OF_PLAN * self.scales.noise_variance(features)

    @cached_property
    def solved(self) -> tuple[Array, Array]:
        """The inverse of the runs' covariance, and its product with their errors."""
        features = tuple(run.features for run in self.runs)
        inverse = _inverse(self.scales, features, tuple(run.noise for run in self.runs))
        return inverse, np.asarray(inverse @ np.array([run.ln for run in self.runs]))


@lru_cache(maxsize=8)
def _inverse(
    scales: Scales, features: tuple[ErrorFeatures, ...], noise: tuple[float, ...]
) -> Array:
    """The inverse of the covariance of runs; noise: of each run over the usual one."""
    noise_variance = scales.noise_variance(features) * np.array(noise)
    variance = covariance(scales, features, features) + np.diag(noise_variance)
    return np.linalg.inv(variance).astype(np.float64)


# Outliers get more noise: Student's t, by this number of reweightings.
FREEDOM = 4.0  # degrees
ROUNDS = 3


def outlier_noise(noise: Array, more: Array, weighted: Array) -> Array:
    """Noise of each run, more where it is an outlier, as a multiple of the usual; at least 1.

    noise: the usual variance.  more: the multiple so far.  weighted: the inverse of the runs'
    covariance times their errors.
    """
    surprise = (noise * more * weighted) ** 2 / noise
    return np.asarray(np.maximum((FREEDOM + surprise) / (FREEDOM + 1.0), 1.0))


# Noise that is added if a site has few runs, which do not show their scatter: this many times the
# usual variance, divided by the number of runs.
# Chosen on published sources that were left out (`planner accuracy --shots 0,1,3,5`).
FEW_RUNS_NOISE = 8.0


def site_noise_factor(count: int) -> float:
    """Noise of a site's runs by their number, as a multiple of the usual variance."""
    return 1.0 + FEW_RUNS_NOISE / count


def site_noise(shared: Array, noise: Array, ln: Array) -> Array:
    """Noise of each of a site's runs, as a multiple of the usual variance.

    shared: their covariance.  noise: the usual variance.  ln: their errors.
    """
    few = site_noise_factor(len(ln))
    more = np.ones(len(ln))
    for _ in range(ROUNDS):
        variance = shared + np.diag(noise * few * more)
        more = outlier_noise(noise * few, more, np.asarray(np.linalg.solve(variance, ln), float))
    return few * more


# Share of a run's noise that two plans of one model on one cluster do not share (a judgement).
SHARE_OF_PLAN = 0.25
UNSEEN_SOURCE = "?"  # a source that no published run is of


def _with_unseen_source(features: ErrorFeatures) -> ErrorFeatures:
    return replace(features, groups=(*features.groups[:3], UNSEEN_SOURCE, UNSEEN_SOURCE))


def covariance(
    scales: Scales, rows: Sequence[ErrorFeatures], columns: Sequence[ErrorFeatures]
) -> Array:
    """Covariance of the errors of estimates, without noise; shape (rows, columns)."""
    first, second = (np.array([f.shares for f in side]) for side in (rows, columns))
    shared = np.full((len(rows), len(columns)), scales.levels[0] ** 2)
    for level, scale in enumerate(scales.levels[1:]):
        left, right = (np.array([f.groups[level] for f in side]) for side in (rows, columns))
        shared += scale**2 * ((left[:, None] == right[None, :]) & (left != "")[:, None])
        # Two runs of no known group are each of their own.
        if rows is columns:
            np.fill_diagonal(shared, np.diag(shared) + scale**2 * (left == ""))
    return np.asarray((first * np.square(scales.factors)) @ second.T * shared)


@cache
def posterior() -> Posterior:
    """The posterior of the published runs, from the catalog."""
    return published().as_answered()


@cache
def published() -> Posterior:
    """The published runs with the error of each estimate."""
    return read(json.loads(FILE.read_text(encoding="utf-8")))


def read(document: dict[str, Any]) -> Posterior:
    """A posterior from its document."""
    scales = document["scales"]
    runs = tuple(
        SeenRun(
            ErrorFeatures(
                tuple(row["shares"]),
                tuple(row["groups"]),
                row["experts"],
                row["hidden_size"],
                row["seconds"],
                row["accelerators"],
                row["precision"],
                tuple(row["doubts"]),
            ),
            row["ln"],
            row["noise"],
        )
        for row in document["runs"]
    )
    result = Scales(
        tuple(scales["factors"][name] for name in FACTORS),
        tuple(scales["levels"][name] for name in LEVELS),
        scales["noise"],
        scales["noise_of_experts"],
        scales["noise_by_width"],
    )
    return Posterior(result, runs, document["quantiles"])
