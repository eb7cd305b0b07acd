"""How far off an estimate may be: the interval in which the time of a new site's run is expected.

It comes from what earlier releases said of sources that nobody had seen
(planner/evidence/uncertainty/first_sight.py), so it widens for the parts that take the plan's time
(a ring across nodes, an all-to-all of experts, kernels too short to hide the host), where no source
alike was published, and for all that is guessed; a site's own runs narrow it.  How two plans
compare comes from the posterior of the published runs (planner/evidence/uncertainty/posterior.py),
in which errors that they share cancel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from math import erf, exp, log, sqrt

from planner.documents.scored_runs import scored_runs
from planner.evidence.uncertainty.error_features import DOUBTS, FACTORS, ErrorFeatures
from planner.evidence.uncertainty.first_sight import Belief, first_sight, sources_alike, stack_of
from planner.evidence.uncertainty.mixture import Mixture
from planner.evidence.uncertainty.posterior import Posterior, posterior
from planner.evidence.uncertainty.site import Site

# The percentage of runs that an interval should contain.
COVERED = "80"
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


def band(seconds: float, features: ErrorFeatures, site: Site | None = None) -> Band:
    """The interval around an estimated iteration time.

    seconds: as answered; at a site, with the correction of its runs.
    """
    mixture = interval(features, site)
    low, high = (exp(bound - mixture.mean) for bound in mixture.bounds(float(COVERED)))
    _, accelerator, runtime, *_ = features.groups
    runs, sources = _published_counts()
    count = sources_alike(features)
    kind = "mixture of experts" if features.experts else "dense"
    site_runs = len(site.runs) if site is not None else 0
    basis = f"{COVERED}% interval"
    if site is not None and site_runs:
        basis = f"{COVERED}% interval from {site_runs} runs of site {site.name}"
    noun = "source" if count <= 1 else "sources"
    stack = stack_of(runtime)
    software = runtime if stack == runtime else f"{stack}-based"
    basis += f"; {count or 'no'} similar {noun} ({kind}, {accelerator}, {software})"
    there = runs[accelerator]
    if not there:
        basis += f"; no run on {accelerator}"
    basis += "".join(f"; wider: {DOUBTS[doubt]}" for doubt in features.doubts)
    basis += f"; main uncertainty: {FACTORS[mixture.main]}"
    return Band(seconds * low, seconds * high, runs.total() + site_runs, sources, there, basis)


@cache
def _published_counts() -> tuple[Counter[str], int]:
    """The published runs by accelerator, and the number of their sources."""
    known = [run for run in scored_runs() if run.intervals_s]
    return Counter(run.accelerator for run in known), len({run.source for run in known})


def interval(features: ErrorFeatures, site: Site | None = None) -> Mixture:
    """ln(measured / estimated without the site's runs) of an estimate."""
    return belief_at(site).mixture(features)


def belief_at(site: Site | None) -> Belief:
    """What is believed of errors at a site, or at first sight."""
    return first_sight() if site is None else site.belief


def posterior_at(site: Site | None) -> Posterior:
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
    known = posterior_at(site)
    deviation = known.difference(features, other)
    reach = known.quantiles[COVERED] * deviation
    gap = log(other_s / one_s)
    return Comparison(exp(gap - reach), exp(gap + reach), chance_above(gap, deviation))


def chance_above(mean: float, deviation: float) -> float:
    """The chance that a normal variable is above zero."""
    return 0.5 * (1.0 + erf(mean / (deviation * sqrt(2.0))))
