"""What a site's runs imply: corrections by factor, open questions, and the errors of estimates."""

from __future__ import annotations

from math import exp, expm1
from typing import Literal

import numpy as np

from planner.documents.plan_report import Document
from planner.evidence.uncertainty.error_features import FACTORS, Array
from planner.evidence.uncertainty.posterior import SHARES, posterior, site_noise_factor
from planner.evidence.uncertainty.site import LearnedRun, Site

# A factor that no run spends so much of its time on says nothing.
LEAST_SHARE = 0.01


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

    held_without: by intervals that know none of its runs; held_left_out: by those that know all of
    the others.
    """

    name: str
    digest: str
    calibration: Calibrated | None
    runs: tuple[LearnedRun, ...]
    kinds: tuple[LearnedKind, ...]
    errors: tuple[RunError, ...]
    median_error_without: float | None
    median_error_left_out: float | None
    held_without: CoverageByLevel | None = None
    held_left_out: CoverageByLevel | None = None


def site_answer(site: Site) -> SiteAnswer:
    """The answer about a site: its runs, its factors, its errors."""
    found = errors(site)
    alone = len(found) < 2
    return SiteAnswer(
        name=site.name,
        digest=site.digest,
        calibration=_calibrated(site),
        runs=site.runs,
        kinds=kinds(site),
        errors=found,
        median_error_without=_median([one.error_without for one in found]) if found else None,
        median_error_left_out=None if alone else _median([one.error_left_out for one in found]),
        held_without=_held_without(site) if found else None,
        held_left_out=None if alone else _held_left_out(site),
    )


def _held_without(site: Site) -> CoverageByLevel:
    """How often runs lie within the intervals of the published posterior, without the site."""
    known = posterior()
    of_runs = [known.predictive(run.features) for run in site.runs]
    missed = [run.ln / of.deviation for run, of in zip(site.runs, of_runs, strict=True)]
    return _held(np.array(missed))


def _held_left_out(site: Site) -> CoverageByLevel:
    missed, deviation = left_out(site)
    return _held(missed / deviation)


def _held(deviations: Array) -> CoverageByLevel:
    quantiles = posterior().quantiles
    shares = {share: float(np.mean(np.abs(deviations) <= quantiles[share])) for share in SHARES}
    return CoverageByLevel(runs=len(deviations), shares=shares)


def _calibrated(site: Site) -> Calibrated | None:
    if (own := site.calibration) is None:
        return None
    points = {name: len(getattr(own.points, name)) for name in type(own.points).model_fields}
    return Calibrated(
        measured_at=own.measured_at,
        hardware=dict(own.hardware),
        points={name: count for name, count in points.items() if count},
    )


def kinds(site: Site) -> tuple[LearnedKind, ...]:
    """The learned factors by accelerator and runtime, those with the most runs first."""
    by_groups: dict[tuple[str, str, str, str], list[LearnedRun]] = {}
    for run in site.runs:
        by_groups.setdefault(run.groups, []).append(run)
    several = sorted(by_groups.items(), key=lambda item: -len(item[1]))
    return tuple(
        LearnedKind(
            accelerator=groups[1], runtime=groups[2], runs=len(runs),
            factors=_factors(site, runs),
        )
        for groups, runs in several
    )  # fmt: skip


def _factors(site: Site, runs: list[LearnedRun]) -> tuple[LearnedFactor, ...]:
    """How far each factor is off, on average over these runs."""
    several = [run.features.groups for run in runs]
    mean, shared = site.correction.off(*several)
    _, before = posterior().off(*several)
    deviations, usual = (np.sqrt(np.maximum(np.diag(one), 0.0)) for one in (shared, before))
    most = np.max([run.features.shares for run in runs], axis=0)
    found = []
    for i, (name, title) in enumerate(FACTORS.items()):
        verdict: Literal["learned", "cannot tell yet", "unused"] = "cannot tell yet"
        if most[i] < LEAST_SHARE:
            verdict = "unused"
        elif abs(mean[i]) > deviations[i]:
            verdict = "learned"
        times = exp(mean[i])
        found.append(
            LearnedFactor(
                factor=name, title=title, longer=times - 1.0,
                deviation=float(deviations[i]) * times, deviation_before=float(usual[i]),
                verdict=verdict,
            )
        )  # fmt: skip
    return tuple(found)


def errors(site: Site) -> tuple[RunError, ...]:
    """The errors of each run."""
    if not site.runs:
        return ()
    missed, _ = left_out(site)
    return tuple(
        RunError(
            id=run.id, file=run.file, measured_s=run.step_s, estimated_s=run.estimated_s,
            error_without=expm1(-run.ln), error_left_out=expm1(-own),
        )
        for run, own in zip(site.runs, missed.tolist(), strict=True)
    )  # fmt: skip


def left_out(site: Site) -> tuple[Array, Array]:
    """ln(measured / answered) of each run by a site of all the others, and what it deviates by.

    In closed form (Rasmussen and Williams 2006, section 5.4.2).
    """
    known = posterior()
    features = [run.features for run in site.seen]
    _, shared = known.joint(features)
    noise = known.scales.noise_variance(features)
    ln, count = np.array([run.ln for run in site.seen]), len(features)
    if count == 1:
        return ln, np.sqrt(np.diag(shared) + noise)
    more = (
        np.array([run.noise for run in site.seen])
        * site_noise_factor(count - 1)
        / site_noise_factor(count)
    )
    inverse = np.linalg.inv(shared + np.diag(noise * more))
    own = np.diag(inverse)
    return np.asarray(inverse @ ln / own), np.asarray(1.0 / np.sqrt(own))


def _median(values: list[float]) -> float:
    return float(np.median(np.abs(values)))
