"""The functions of long steps, each run in its own process: plain data in, plain data out.

A step may be killed at any moment and repeated, in the same folder or in an empty one on another
machine.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.running.jobs.documents import CalibrationSpec, DryrunSpec, ValidationSpec, read
from planner.running.jobs.settings import JobSettings
from planner.running.sweeps.question import ask

if TYPE_CHECKING:
    from planner.documents.request import PlanRequest
    from planner.running.validate.calibrate.job import Job
    from planner.running.validate.run import Options, Prepared

_COUNTED = re.compile(r"(\d+) of (\d+)$")
_DONE_FILE = "done"  # a file that marks a folder as complete


@dataclass(frozen=True)
class Task:
    """One step: its request, its arguments, its folder, and callbacks.

    report_progress: takes a text, the count done and the total.  keep_part: takes a partial result,
    which is kept if the job is cancelled.
    """

    request: dict[str, Any]
    arguments: dict[str, Any]
    folder: Path
    settings: JobSettings
    report_progress: Callable[[str, int, int], None]
    keep_part: Callable[[dict[str, Any]], None]

    def report_text(self, text: str) -> None:
        """Report a text as progress, with its counts if it ends in "N of M"."""
        counted = _COUNTED.search(text)
        self.report_progress(text, *(map(int, counted.groups()) if counted else (0, 0)))


def reference(task: Task) -> None:
    """Write the gradients of a single process, the reference for the comparison."""
    from planner.running.validate.run import REFERENCE, disk_full_as_run_failure, run_reference

    prepared, options = _validation(task)
    shutil.rmtree(task.folder / REFERENCE, ignore_errors=True)
    with disk_full_as_run_failure(task.folder):
        run_reference(prepared, options, task.folder, task.report_text)
        (task.folder / REFERENCE / _DONE_FILE).touch()


def run(task: Task) -> dict[str, Any]:
    """The timed run of a validation: its report."""
    from planner.running.validate import run as validating

    prepared, options = _validation(task)
    for name in ("run", "numerics"):
        shutil.rmtree(task.folder / name, ignore_errors=True)
    if options.check_numerics and not (task.folder / validating.REFERENCE / _DONE_FILE).exists():
        reference(task)  # the reference step ran on another machine
    with validating.disk_full_as_run_failure(task.folder):
        report = validating.run(prepared, options, task.folder, task.report_text)
    return report.model_dump(mode="json")


def measure(task: Task) -> dict[str, Any]:
    """One job of a calibration: its measurements with one number of ranks."""
    from planner.running.validate.calibrate import calibration_request
    from planner.running.validate.calibrate.run import measure as measured

    request, jobs, spec = calibration(task.request)
    ranks, job = jobs[task.arguments["number"]]
    folder = task.folder / "measure"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    limits = calibration_request.limits(spec.budget_s)
    measurement = measured(folder, request, ranks, job, limits, task.report_text)
    return measurement.model_dump(mode="json")


def trace(task: Task) -> dict[str, Any]:
    """The trace of one rank of a dry run."""
    from planner.running.validate.dryrun.run import prepare, trace_rank
    from planner.running.validate.dryrun.trace_process import Limits

    request, spec = read(task.request, "dryrun", DryrunSpec)
    rank = task.arguments["rank"]
    settings = task.settings
    limits = Limits(
        wall_s=min(Limits.wall_s, settings.max_run_s),
        rss_bytes=min(Limits.rss_bytes, settings.max_run_bytes),
    )
    report = trace_rank(
        prepare(request, spec.ranks), rank, limits,
        lambda share: task.report_progress(f"rank {rank}", round(100 * share), 100),
    )  # fmt: skip
    return report.model_dump(mode="json")


def questions(task: Task) -> dict[str, Any]:
    """The results of some of a sweep's questions, by key."""
    documents: dict[str, Any] = task.arguments["questions"]
    results = {}
    for key, document in documents.items():
        results[key] = ask(document).model_dump(mode="json", exclude_none=True)
        task.keep_part({key: results[key]})
        task.report_progress("", len(results), len(documents))
    return results


STEPS: dict[str, Callable[[Task], Any]] = {
    "reference": reference,
    "run": run,
    "measure": measure,
    "trace": trace,
    "questions": questions,
}


def calibration(
    request: dict[str, Any],
) -> tuple[PlanRequest, list[tuple[int, Job]], CalibrationSpec]:
    """The request, measurement jobs and spec of a calibration; the same at every call."""
    from planner.running.validate.calibrate import calibration_request

    if request.keys() == {"calibration"}:
        spec = CalibrationSpec.model_validate(request["calibration"])
        return *calibration_request.full(spec.budget_s), spec
    of, spec = read(request, "calibration", CalibrationSpec)
    return *calibration_request.of_plan(of, spec.budget_s), spec


def _validation(task: Task) -> tuple[Prepared, Options]:
    from planner.running.validate.processes.process import Limits
    from planner.running.validate.report import Tolerance
    from planner.running.validate.run import Options, default_tolerance, prepare_here

    request, spec = read(task.request, "validation", ValidationSpec)
    settings = task.settings
    limits = Limits(
        ranks=settings.max_run_ranks,
        wall_s=min(spec.wall_s, settings.max_run_s),
        silence_s=spec.silence_s,
        memory_bytes=spec.memory_bytes and min(spec.memory_bytes, settings.max_run_bytes),
    )
    tolerance = Tolerance(
        time=spec.time_tolerance or default_tolerance(), memory=spec.memory_tolerance
    )
    return prepare_here(request), Options.of(spec, tolerance=tolerance, limits=limits)
