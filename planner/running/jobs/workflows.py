"""The steps of each kind of job: one function (a DBOS workflow) per kind.

Each takes the request and a `Steps`: `run_here` runs a short step in this process, `run_apart` a
long one in its own process.  The result of each step is stored and read back when a job is resumed,
so steps must come in the same order each time and return plain data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from planner.documents.service import Kind
from planner.running.jobs.documents import DryrunSpec, ValidationSpec, read
from planner.running.jobs.settings import JobSettings


class Cancelled(BaseException):
    """A user cancelled the job; result: its partial result, if there is one."""

    result: dict[str, Any] | None = None


class Steps(Protocol):
    """The interface that a workflow may call; executor.JobRun implements it."""

    @property
    def settings(self) -> JobSettings:
        """The limits on jobs."""

    @property
    def parts(self) -> Mapping[str, Any]:
        """Partial results of long steps, reported while they run."""

    def run_here(self, phase: str, work: Callable[[], Any]) -> Any:
        """The result of a short step, run in this process."""

    def run_apart(
        self, phase: str, step: str, at: tuple[int, int] = (0, 0), **arguments: Any
    ) -> Any:
        """The result of a long step, run in its own process.

        at: (done before it, total) for the job's progress; total 0: the step reports its own total.
        """


def _validations(request: dict[str, Any], steps: Steps) -> dict[str, Any]:
    settings = request["validation"]
    made_at = steps.run_here("prepare", _now)
    if settings.get("check_numerics"):
        steps.run_apart("reference", "reference")
    report: dict[str, Any] = steps.run_apart("run", "run")

    def keep() -> dict[str, str]:
        from planner.running.validate import results
        from planner.running.validate.learned_run import learn
        from planner.running.validate.report import ValidationReport

        validated, spec = read(request, "validation", ValidationSpec)
        stored = results.keep(validated, report, datetime.fromisoformat(made_at))
        parsed = ValidationReport.model_validate_json(_json(report))
        lesson = learn(validated, parsed, spec.warmup_steps)
        return {"validation_id": stored.id} | ({"site": lesson} if lesson else {})

    return {**steps.run_here("report", keep), "report": report}


def _calibrations(request: dict[str, Any], steps: Steps) -> dict[str, Any]:
    from planner.running.jobs.long_steps import calibration

    count = steps.run_here("prepare", lambda: len(calibration(request)[1]))
    parts = [steps.run_apart("measure", "measure", at=(i, count), number=i) for i in range(count)]

    def write() -> dict[str, Any]:
        from planner.evidence.uncertainty import profiles
        from planner.running.validate.calibrate import calibration_request, run
        from planner.running.validate.calibrate.job import Measured

        of, _, spec = calibration(request)
        base = calibration_request.names(spec.name, spec.extends)
        measured = [Measured.model_validate_json(_json(part)) for part in parts]
        profile = run.assemble(of, measured, spec.name, base)
        profiles.save(profile)
        return profile.model_dump(mode="json")

    return {"calibration": steps.run_here("profile", write)}


def _dryruns(request: dict[str, Any], steps: Steps) -> dict[str, Any]:
    from planner.running.validate.dryrun.run import RankReport, assemble, prepare

    traced_request, spec = read(request, "dryrun", DryrunSpec)
    ranks = steps.run_here("prepare", lambda: list(prepare(traced_request, spec.ranks).ranks))
    traced = [
        steps.run_apart("trace", "trace", at=(100 * i, 100 * len(ranks)), rank=rank)
        for i, rank in enumerate(ranks)
    ]

    def report() -> dict[str, Any]:
        reports = [RankReport.model_validate_json(_json(part)) for part in traced]
        return assemble(prepare(traced_request, spec.ranks), reports).model_dump(mode="json")

    return {"report": steps.run_here("report", report)}


def _sweeps(request: dict[str, Any], steps: Steps) -> dict[str, Any]:
    from planner.running.sweeps.grid import parse_grid
    from planner.running.sweeps.question import Result
    from planner.running.sweeps.run import answered

    grid = parse_grid(request)
    # Their keys are kept, since they change where a site learns meanwhile.
    questions = list(grid.questions())
    different = {question.key: question.document for question in questions}
    answers: dict[str, Any] = {}

    def rows() -> dict[str, Any]:
        results = {key: Result.model_validate_json(_json(part)) for key, part in answers.items()}
        return {"sweep": answered(grid, questions, results).model_dump(mode="json")}

    try:
        # Asked again is what a finished step found under other keys: by another build of the
        # planner, or before a site learned.
        while waiting := {key: part for key, part in different.items() if key not in answers}:
            for chunk in _chunks(waiting, steps.settings.sweep_step_questions):
                at = (len(answers), len(different))
                results = steps.run_apart("ask", "questions", at=at, questions=chunk)
                answers |= {key: part for key, part in results.items() if key in different}
    except Cancelled as cancelled:
        if answers := answers | dict(steps.parts):
            cancelled.result = rows()
        raise
    return rows()


WORKFLOWS: dict[Kind, Callable[[dict[str, Any], Steps], dict[str, Any]]] = {
    "validations": _validations,
    "calibrations": _calibrations,
    "dryruns": _dryruns,
    "sweeps": _sweeps,
}
# Kinds whose jobs run alone on the machine, since they measure it or fill its memory.
RUNS_ALONE: frozenset[Kind] = frozenset({"validations", "calibrations", "dryruns"})


def _chunks(documents: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    items = iter(documents.items())
    while chunk := dict(islice(items, size)):
        yield chunk


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _json(value: Any) -> str:
    # Strict models accept a list for a tuple only in JSON.
    return json.dumps(value)
