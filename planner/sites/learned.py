"""What a site learned from its runs, what it cannot tell yet, and how far off it is."""

from __future__ import annotations

from math import exp, expm1
from typing import Literal

import numpy as np

from planner.answer import Document
from planner.posterior import FACTORS, Array, posterior, scatter
from planner.sites.site import LearnedRun, Site

# A factor that no run spends so much of its time on says nothing.
LEAST_SHARE = 0.01


class LearnedFactor(Document):
    """How much longer one kind of work takes here than is answered elsewhere: -0.1 is 10 % less.

    deviation: of that; deviation_before: what it was before any run.  verdict: learned where it
    moved by more than it is uncertain; unused where no run has work of this kind.
    """

    factor: str
    title: str
    longer: float
    deviation: float
    deviation_before: float
    verdict: Literal["learned", "cannot tell yet", "unused"]


class LearnedKind(Document):
    """What runs of one accelerator and runtime say."""

    accelerator: str
    runtime: str
    runs: int
    factors: tuple[LearnedFactor, ...]


class RunError(Document):
    """One run: how far off its time is without the site, and with all of the site's other runs.

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


class SiteAnswer(Document):
    """A site: its runs, what they say by kind, and its errors (medians are of their sizes)."""

    name: str
    digest: str
    calibration: Calibrated | None
    runs: tuple[LearnedRun, ...]
    kinds: tuple[LearnedKind, ...]
    errors: tuple[RunError, ...]
    median_error_without: float | None
    median_error_left_out: float | None


def site_answer(site: Site) -> SiteAnswer:
    """All that a site can say of itself."""
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
    )


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
    """What was learned, by accelerator and runtime, the most runs first."""
    by_groups: dict[tuple[str, str, str, str], list[LearnedRun]] = {}
    for run in site.runs:
        by_groups.setdefault(run.groups, []).append(run)
    several = sorted(by_groups.items(), key=lambda item: -len(item[1]))
    return tuple(
        LearnedKind(
            accelerator=groups[1], runtime=groups[2], runs=len(runs),
            factors=_factors(site, groups, runs),
        )
        for groups, runs in several
    )  # fmt: skip


def _factors(
    site: Site, groups: tuple[str, str, str, str], runs: list[LearnedRun]
) -> tuple[LearnedFactor, ...]:
    mean, shared = site.correction.off(groups)
    _, before = posterior().off(groups)
    deviations, usual = (np.sqrt(np.maximum(np.diag(one), 0.0)) for one in (shared, before))
    most = np.max([run.leaning.shares for run in runs], axis=0)
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
    """Of each run."""
    if not site.runs:
        return ()
    missed = left_out(site)
    return tuple(
        RunError(
            id=run.id, file=run.file, measured_s=run.step_s, estimated_s=run.estimated_s,
            error_without=expm1(-run.ln), error_left_out=expm1(-own),
        )
        for run, own in zip(site.runs, missed.tolist(), strict=True)
    )  # fmt: skip


def left_out(site: Site) -> Array:
    """ln(measured / answered) of each run by a site of all the others.

    In closed form (Rasmussen and Williams 2006, section 5.4.2).
    """
    known = posterior()
    leanings = [run.leaning for run in site.seen]
    _, shared = known.joint(leanings)
    noise = known.scales.noise_variance(np.array([one.experts for one in leanings]))
    ln, count = np.array([run.ln for run in site.seen]), len(leanings)
    if count == 1:
        return ln
    more = np.array([run.noise for run in site.seen]) * scatter(count - 1) / scatter(count)
    inverse = np.linalg.inv(shared + np.diag(noise * more))
    return np.asarray(inverse @ ln / np.diag(inverse))


def _median(values: list[float]) -> float:
    return float(np.median(np.abs(values)))
