"""How far off an estimate may be: the interval in which the time of a similar run is expected.

It comes from the posterior of the published runs (planner/evidence/uncertainty/posterior.py), so it
widens for the parts that take the plan's time: a ring across nodes, an all-to-all of experts,
kernels too short to hide the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, exp, log, sqrt

from cost_models.profiles import EfficiencyProfile
from planner.evidence.uncertainty.error_features import FACTORS, ErrorFeatures
from planner.evidence.uncertainty.posterior import Posterior, posterior
from planner.evidence.uncertainty.site import Site

# The percentage of runs that an interval should contain.
COVERED = "80"
# Where no kernel of the accelerator was measured, or none but large matrix products, the interval
# is doubled (a judgement: fitted without TPU runs, it holds 82 % of them doubled, 70 % plain).
UNMEASURED = {
    "fallback": "no kernel of this accelerator was measured",
    "scaled": "only large matrix products of this accelerator were measured",
}
WIDER = 2.0
# Below this chance that a plan is faster than another, the two cannot be told apart.
SURE = 0.95


@dataclass(frozen=True)
class Band:
    """An interval around an estimated time, and the runs behind it."""

    low_s: float
    high_s: float
    rows: int
    sources: int
    accelerator_rows: int
    basis: str


@dataclass(frozen=True)
class Comparison:
    """The speedup of the first of two plans: an interval of COVERED per cent.

    chance: the chance that it is faster.
    """

    low: float
    high: float
    chance: float


def band(
    seconds: float,
    features: ErrorFeatures,
    profile: EfficiencyProfile,
    site: Site | None = None,
) -> Band:
    """The interval around an estimated iteration time; at a site, around the corrected one."""
    known = known_to(site)
    found = known.predictive(features)
    wider = WIDER if profile.kind in UNMEASURED else 1.0
    reach = exp(wider * known.quantiles[COVERED] * found.deviation)
    _, accelerator, runtime, *_ = features.groups
    alike = known.numbers[accelerator, runtime, features.experts]
    kind = "mixture of experts" if features.experts else "dense"
    own = len(site.runs) if site is not None else 0
    runs = f"{len(known.runs) - own} published runs"
    if site is not None and own:
        runs += f" and {own} of site {site.name}"
    basis = (
        f"{COVERED}% interval from {runs}, {alike or 'none'} "
        f"similar ({kind}, {accelerator}, {runtime})"
    )
    there = sum(number for (seen, _, _), number in known.numbers.items() if seen == accelerator)
    if not there:
        basis += f"; none on {accelerator}"
    if profile.kind in UNMEASURED:
        basis += f"; interval doubled: {UNMEASURED[profile.kind]}"
    if found.main != "noise":
        basis += f"; main uncertainty: {FACTORS[found.main]}"
    return Band(seconds / reach, seconds * reach, len(known.runs), known.sources, there, basis)


def known_to(site: Site | None) -> Posterior:
    """The posterior of estimates at a site, or without a site."""
    return posterior() if site is None else site.correction


def comparison(
    one_s: float,
    features: ErrorFeatures,
    other_s: float,
    other: ErrorFeatures,
    site: Site | None = None,
) -> Comparison:
    """Compare two estimates for one model on one cluster; errors that they share cancel.

    site: the site whose runs have corrected both times.
    """
    known = known_to(site)
    deviation = known.difference(features, other)
    reach = known.quantiles[COVERED] * deviation
    gap = log(other_s / one_s)
    return Comparison(exp(gap - reach), exp(gap + reach), chance_above(gap, deviation))


def chance_above(mean: float, deviation: float) -> float:
    """The chance that a normal variable is above zero."""
    return 0.5 * (1.0 + erf(mean / (deviation * sqrt(2.0))))
