"""Turns a validation into a run that a site learns from."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime

from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.site import LearnedRun, Site
from planner.evidence.uncertainty.site_pricing import run_of_plan
from planner.running.validate.report import ValidationReport

CODE_BASE = "pytorch"  # every validation runs this framework's script


def measured_run(
    report: ValidationReport, site: Site, file: str, warmup_steps: int = 0
) -> LearnedRun:
    """The run of a report; file: stands where other runs have the name of their log.

    Raises ValueError if the cost model cannot price its plan.
    """
    step = report.measured_iteration_time_s
    content = json.dumps([report.request, step.model_dump(), report.losses])
    measured = {
        "id": hashlib.sha256(content.encode()).hexdigest()[:12],
        "file": file,
        "code_base": CODE_BASE,
        "learned_at": datetime.now(UTC),
        "step_s": step.median,
        "steps": step.n,
        "left_out": {"warm-up": warmup_steps} if warmup_steps else {},
    }
    return run_of_plan(PlanRequest.model_validate(report.request), site, measured)


def learn(request: PlanRequest, report: ValidationReport, warmup_steps: int = 0) -> str:
    """Add a validation to the site that its request names; returns a sentence on it, or "".

    A run that was scaled down to another accelerator is not added.
    """
    if request.site is None:
        return ""
    ran = PlanRequest.model_validate(report.request).cluster.groups[0].accelerator.id
    expected = request.cluster.groups[0].accelerator.id
    reason = f"it ran on {ran}, the site's plan is for {expected}"
    if ran == expected:
        try:
            run = measured_run(report, storage.find(request.site), "planner validate", warmup_steps)
            site, _ = storage.learn(request.site, (run,))
        except RequestError as error:
            reason = "; ".join(problem.detail for problem in error.problems)
        except ValueError as error:
            reason = str(error)
        else:
            return f"site {site.name} has learned it as run {run.id[:6]}, {len(site.runs)} in all"
    return f"site {request.site} has not learned it: {reason}"
