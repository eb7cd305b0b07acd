"""The runs of a site as a report that says nothing of whose they are."""

from __future__ import annotations

from cost_models.catalog.hardware import accelerators
from cost_models.catalog.models import models
from cost_models.parameters import total_parameters
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner.documents.problems import refuse
from planner.documents.request import PlanRequest
from planner.documents.run_report import ReportedRun, RunReport
from planner.evidence.uncertainty.site import LearnedRun, Site
from planner.learning.sites.learned_run import SHAPE

UNLISTED = "unlisted"
DEGREES = {"tp", "cp", "pp", "ep", "dp"}


def report_of(site: Site) -> RunReport:
    """All runs of a site.  Raises RequestError where it has none."""
    if not site.runs:
        raise refuse("/site", "no_runs", f"site {site.name} has no runs to report")
    return RunReport(runs=tuple(map(_reported_run, site.runs)))


def _reported_run(run: LearnedRun) -> ReportedRun:
    request = PlanRequest.model_validate(run.request)
    group, training = request.cluster.groups[0], request.training
    known = {entry.id for entry in accelerators()}
    accelerator = group.accelerator.id
    return ReportedRun(
        model=_model_name(request.model),
        experts=run.experts,
        parameters=int(_rounded(total_parameters(request.model), 2)),
        accelerator=accelerator if accelerator in known else UNLISTED,
        accelerators=request.cluster.accelerators,
        accelerators_per_node=group.accelerators_per_node,
        code_base=run.code_base,
        precision=training.precision,
        seq_length=training.seq_length,
        global_batch_size=training.global_batch_size,
        plan=_plan(request.named_plan),
        assumed=tuple(fact.partition(":")[0] for fact in run.left_open),
        version=run.version,
        calibrated=run.calibrated_at is not None,
        predicted_s=_rounded(run.estimated_s),
        measured_s=_rounded(run.step_s),
        steps=run.steps,
        memory_quantity=run.memory_quantity,
        predicted_peak_bytes=_rounded(run.estimated_peak_bytes) or None,
        measured_peak_bytes=_rounded(run.peak_bytes) or None,
    )


def _model_name(model: ModelSpec) -> str:
    """The catalog's model with these dimensions: a name of the user's own could identify them."""
    dims = [getattr(model, name) for name in SHAPE]
    for entry in models():
        if dims == [getattr(entry.spec, name) for name in SHAPE]:
            return entry.id
    return UNLISTED


def _plan(plan: ParallelPlan) -> dict[str, object]:
    degrees = plan.model_dump(mode="json", include=DEGREES)
    return {**degrees, **plan.model_dump(mode="json", exclude_defaults=True)}


def _rounded(value: float | None, digits: int = 4) -> float:
    """The value to so many digits: enough to score, too few to find a log by; 0 for None."""
    return 0.0 if value is None else float(f"{value:.{digits - 1}e}")
