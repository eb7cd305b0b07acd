"""What a site's runs imply: corrections by factor, open questions, and the errors of estimates."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1
from typing import Literal

import numpy as np

from planner.documents.plan_report import Document
from planner.evidence.uncertainty.error_features import FACTORS
from planner.evidence.uncertainty.first_sight import first_sight
from planner.evidence.uncertainty.learned_steps import LearnedStep
from planner.evidence.uncertainty.mixture import Mixture
from planner.evidence.uncertainty.posterior import SHARES
from planner.evidence.uncertainty.site import LearnedRun, Site

# What a site's runs may teach: a cost of all work alike, and the factors.
LEARNED = {"common": "all of the time alike", **FACTORS}
# A factor that no run spends so much of its time on says nothing.
MIN_SHARE = 0.01


class LearnedFactor(Document):
    """How much longer one kind of work takes than estimated without the site (-0.1: 10 % less).

    deviation: its standard deviation; deviation_before: the same before any run.  verdict: learned
    where it moved by more than its uncertainty; unused where no run has work of this kind.
    """

    factor: str
    title: str
    longer: float
    deviation: float
    deviation_before: float
    verdict: Literal["learned", "cannot tell yet", "unused"]


class LearnedKind(Document):
    """The factors learned from the runs of one accelerator and runtime."""

    accelerator: str
    runtime: str
    runs: int
    factors: tuple[LearnedFactor, ...]


class RunError(Document):
    """The error of one run's estimate: without the site, and with all of the site's other runs.

    Errors are estimated / measured - 1.
    """

    id: str
    file: str
    measured_s: float
    estimated_s: float
    error_without: float
    error_left_out: float


class Calibrated(Document):
    """A site's calibration: when and on what, and how many points it has of each kind."""

    measured_at: str
    hardware: dict[str, str]
    points: dict[str, int]


class CoverageByLevel(Document):
    """Of so many runs, by per cent that intervals are to hold: the share that they hold."""

    runs: int
    shares: dict[str, float]


class SiteAnswer(Document):
    """A site: its runs, what they say by kind, and its errors (medians are of their sizes).

    steps: of reinforcement learning, which say how fast its engines generate.

    held_without: by intervals that know none of its runs; held_left_out: by those that know all of
    the others.
    """

    name: str
    digest: str
    calibration: Calibrated | None
    runs: tuple[LearnedRun, ...]
    steps: tuple[LearnedStep, ...] = ()
    kinds: tuple[LearnedKind, ...]
    errors: tuple[RunError, ...]
    median_error_without: float | None
    median_error_left_out: float | None
    held_without: CoverageByLevel | None = None
    held_left_out: CoverageByLevel | None = None


def site_answer(site: Site) -> SiteAnswer:
    """The answer about a site: its runs, its factors, its errors."""
    run_errors = errors(site)
    single = len(run_errors) < 2
    at_first_sight = [first_sight().mixture(run.features) for run in site.runs]
    return SiteAnswer(
        name=site.name,
        digest=site.digest,
        calibration=_calibrated(site),
        runs=site.runs,
        steps=site.steps,
        kinds=kinds(site),
        errors=run_errors,
        median_error_without=_median([e.error_without for e in run_errors]) if run_errors else None,
        median_error_left_out=None if single else _median([e.error_left_out for e in run_errors]),
        held_without=_interval_coverage(site, at_first_sight) if run_errors else None,
        held_left_out=None if single else _interval_coverage(site, site.belief.left_out()),
    )


def _interval_coverage(site: Site, believed: Sequence[Mixture]) -> CoverageByLevel:
    """How often the site's runs lie within the intervals that are believed of them."""
    shares = {}
    for share in SHARES:
        bounds = [m.bounds(float(share)) for m in believed]
        inside = [low <= run.ln <= high for run, (low, high) in zip(site.runs, bounds, strict=True)]
        shares[share] = float(np.mean(inside))
    return CoverageByLevel(runs=len(believed), shares=shares)


def _calibrated(site: Site) -> Calibrated | None:
    if (c := site.calibration) is None:
        return None
    points = {name: len(getattr(c.points, name)) for name in type(c.points).model_fields}
    return Calibrated(
        measured_at=c.measured_at,
        hardware=dict(c.hardware),
        points={name: count for name, count in points.items() if count},
    )


def kinds(site: Site) -> tuple[LearnedKind, ...]:
    """The learned factors by accelerator and runtime, those with the most runs first."""
    by_groups: dict[tuple[str, str, str, str], list[LearnedRun]] = {}
    for run in site.runs:
        by_groups.setdefault(run.groups, []).append(run)
    groups_by_size = sorted(by_groups.items(), key=lambda item: -len(item[1]))
    return tuple(
        LearnedKind(
            accelerator=groups[1], runtime=groups[2], runs=len(runs),
            factors=_factors(site, runs),
        )
        for groups, runs in groups_by_size
    )  # fmt: skip


def _factors(site: Site, runs: list[LearnedRun]) -> tuple[LearnedFactor, ...]:
    """How far each factor is off, on average over these runs."""
    of = runs[-1].features
    mean, deviations = site.belief.factors(of)
    _, before = first_sight().factors(of)
    largest = [1.0, *np.max([run.features.shares for run in runs], axis=0)]
    learned = []
    for i, (name, title) in enumerate(LEARNED.items()):
        verdict: Literal["learned", "cannot tell yet", "unused"] = "cannot tell yet"
        if largest[i] < MIN_SHARE:
            verdict = "unused"
        elif abs(mean[i]) > deviations[i]:
            verdict = "learned"
        times = exp(mean[i])
        learned.append(
            LearnedFactor(
                factor=name, title=title, longer=times - 1.0,
                deviation=float(deviations[i]) * times, deviation_before=float(before[i]),
                verdict=verdict,
            )
        )  # fmt: skip
    return tuple(learned)


def errors(site: Site) -> tuple[RunError, ...]:
    """The errors of each run."""
    if not site.runs:
        return ()
    missed = [
        run.ln - others.mean for run, others in zip(site.runs, site.belief.left_out(), strict=True)
    ]
    return tuple(
        RunError(
            id=run.id, file=run.file, measured_s=run.step_s, estimated_s=run.estimated_s,
            error_without=expm1(-run.ln), error_left_out=expm1(-ln),
        )
        for run, ln in zip(site.runs, missed, strict=True)
    )  # fmt: skip


def _median(values: list[float]) -> float:
    return float(np.median(np.abs(values)))
