"""The request of each kind of job, checked before the job is queued."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field

from cost_models.fields import Spec
from planner.documents.loading import plain
from planner.documents.problems import Gathered, RequestError, refuse
from planner.documents.request import PlanRequest
from planner.documents.service import Kind
from planner.documents.typed_values import plain_object, require_object, validate
from planner.inputs.requests.parser import parse_request
from planner.running.jobs.settings import JobSettings
from planner.running.sweeps.grid import Grid, parse_grid

Seconds = Annotated[float, Field(gt=0, le=86_400)]


class ValidationSpec(Spec):
    """How a plan is validated; the defaults are those of `planner validate`."""

    steps: Annotated[int, Field(ge=1, le=1000)] = Field(10, description="timed steps")
    warmup_steps: Annotated[int, Field(ge=0, le=1000)] = Field(
        2, description="warm-up steps before them"
    )
    check_numerics: bool = Field(
        False, description="compare gradients with those of one process, in fp32"
    )
    time_tolerance: Annotated[float, Field(gt=0, le=10)] | None = Field(
        None, description="share of the step time; else 0.2 on CPUs, 0.05 on GPUs"
    )
    memory_tolerance: Annotated[float, Field(gt=0, le=10)] = Field(
        0.03, description="share of the peak"
    )
    wall_s: Seconds = Field(1800.0, description="of one start of ranks")
    silence_s: Seconds = Field(300.0, description="without a step before a run counts as hung")
    memory_bytes: Annotated[int, Field(gt=0)] | None = Field(
        None, description="of all ranks together; else nine tenths of what is free"
    )


class CalibrationSpec(Spec):
    """What a calibration measures, and the site that stores the profile."""

    name: Annotated[str, Field(max_length=64)] = Field(
        "local", description="of the site, and of its profile"
    )
    extends: Annotated[str, Field(max_length=64)] | None = Field(
        None, description="profile that has the rest; else the machine's"
    )
    budget_s: Annotated[float, Field(ge=10, le=43_200)] = Field(
        300.0, description="for each start of processes; what is left then is left out"
    )


class DryrunSpec(Spec):
    """The ranks that a dry run traces."""

    ranks: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (), max_length=64, description="else first, middle and last of each distinct stage"
    )


class JobRequest(NamedTuple):
    """A job's request in its stored form, and the job's title in lists."""

    document: dict[str, Any]
    title: str


def parse(kind: Kind, document: Any, settings: JobSettings) -> JobRequest:
    """The user's request, checked, with every default filled in.

    Raises RequestError, planner.frameworks.base.Unsupported and
    planner.answers.plans.plan_answers.IllegalPlan.
    """
    return _PARSERS[kind](document, settings)


def taught_by(kind: Kind, document: dict[str, Any]) -> str | None:
    """The site that a job will teach, by a document that `parse` made."""
    if kind == "calibrations":
        return str(document["calibration"]["name"])
    return document.get("site") if kind == "validations" else None


def read(document: dict[str, Any], part: str, spec: type[Spec]) -> tuple[PlanRequest, Any]:
    """The plan request and the job's own part, from a document that `parse` made."""
    rest = dict(document)
    parsed = validate(f"/{part}", rest.pop(part), spec)
    return parse_request(rest, need_plan=True), parsed


def _validation(document: Any, settings: JobSettings) -> JobRequest:
    from planner.running.validate.run import prepare_here, require_torch

    request, spec = _split(document, "validation", ValidationSpec)
    require_torch()
    assert request is not None
    _check_rank_count(prepare_here(request).small.plan.accelerators, settings)
    return _job_request(request, "validation", spec)


def _calibration(document: Any, settings: JobSettings) -> JobRequest:
    from planner.running.validate.calibrate import calibration_request
    from planner.running.validate.run import require_torch

    request, spec = _split(document, "calibration", CalibrationSpec, optional=True)
    require_torch()
    try:
        calibration_request.names(spec.name, spec.extends)
    except RequestError as error:
        raise error.under("/calibration") from None
    if request is None:
        return JobRequest({"calibration": _plain(spec)}, f"{spec.name}: this machine")
    calibration_request.of_plan(request, spec.budget_s)
    return _job_request(request, "calibration", spec)


def _dryrun(document: Any, settings: JobSettings) -> JobRequest:
    from planner.running.validate.dryrun.run import prepare
    from planner.running.validate.run import require_torch

    request, spec = _split(document, "dryrun", DryrunSpec)
    require_torch()
    assert request is not None
    prepare(request)
    try:
        prepare(request, spec.ranks)
    except RequestError as error:  # the ranks are at fault: without them it succeeded
        raise error.under("/dryrun") from None
    return _job_request(request, "dryrun", spec)


def _sweep(document: Any, settings: JobSettings) -> JobRequest:
    document = plain(document)
    grid = parse_grid(document)
    _check_question_count(grid, settings)
    return JobRequest(document, f"{grid.count:,} questions: {', '.join(grid.inputs)}"[:200])


def _check_question_count(grid: Grid, settings: JobSettings) -> None:
    if grid.count > settings.max_sweep_questions:
        limit = settings.max_sweep_questions
        detail = f"has {grid.count:,} questions; this service takes {limit:,} in one job"
        raise refuse("/axes", "too_many", detail, grid.count)


_PARSERS: dict[Kind, Callable[[Any, JobSettings], JobRequest]] = {
    "validations": _validation,
    "calibrations": _calibration,
    "dryruns": _dryrun,
    "sweeps": _sweep,
}


def _split(
    document: Any, part: str, model: type[Spec], optional: bool = False
) -> tuple[PlanRequest | None, Any]:
    """The plan request and the job's own part.  Raises RequestError with the problems of both."""
    rest = plain_object(document)
    settings, problems, request = rest.pop(part, {}), Gathered(), None

    def spec_of() -> Spec:
        require_object(f"/{part}", settings)
        return validate(f"/{part}", settings, model)

    spec = problems.of(spec_of)
    if rest or not optional:
        request = problems.of(lambda: parse_request(rest, need_plan=True))
    problems.check()
    return request, spec


def _job_request(request: PlanRequest, part: str, spec: BaseModel) -> JobRequest:
    document = request.document() | {part: _plain(spec)}
    plan = request.named_plan.model_dump(mode="json", exclude_defaults=True)
    degrees = (f"{name} {plan[name]}" for name in ("tp", "pp", "dp", "cp", "ep") if name in plan)
    return JobRequest(document, " · ".join((request.model.name, *degrees))[:200])


def _plain(spec: BaseModel) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_none=True)


def _check_rank_count(ranks: int, settings: JobSettings) -> None:
    if ranks > settings.max_run_ranks:
        detail = f"needs {ranks} processes; this service starts {settings.max_run_ranks} at most"
        raise refuse("/plan", "too_many", detail, ranks)
