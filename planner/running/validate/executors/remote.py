"""Validation of a plan on its own cluster at full scale: submission, waiting, report.

All input of a run stays in its folder, so another process may follow it and report later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import ValidationError

from planner.answers.plans import plan_answers
from planner.documents.problems import refuse, shown
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.frameworks.pytorch import FRAMEWORK
from planner.frameworks.rules import on_cpus
from planner.running.validate import executors, run_files
from planner.running.validate.as_pytorch_script import native
from planner.running.validate.executors import Handle, RemoteRun, Status
from planner.running.validate.processes.process import RunFailed, tail
from planner.running.validate.report import Tolerance, ValidationReport
from planner.running.validate.run import Options, collect, compare
from planner.running.validate.run_files import Job
from planner.running.validate.scaling.scale_down import Scaled

_OF_THIS_MACHINE = ("cores", "load_average", "system")  # keys of a report's environment


def render(
    launcher: str, requests: Sequence[PlanRequest], options: Options, image: str = ""
) -> Bundle:
    """The files that validate these plans, to read or to submit by hand.

    Raises RequestError, planner.frameworks.base.Unsupported.
    """
    return executors.render(launcher, [_launch(r, options, image) for r in requests])


def submit(
    launcher: str, requests: Sequence[PlanRequest], options: Options, folder: Path, image: str = ""
) -> Handle:
    """Write the files into a folder that every node sees, and start them.

    Raises RequestError, planner.frameworks.base.Unsupported.
    """
    runs = [_launch(r, options, image) for r in requests]
    return executors.start(launcher, runs, folder)


def reports(
    handle: Handle, tolerance: Tolerance, progress: Callable[[str], None] = lambda text: None
) -> tuple[ValidationReport | RunFailed, ...]:
    """Wait for the runs; for each its comparison with the estimate, or why it has no result.

    Raises RequestError if the cluster no longer answers.
    """
    requests = executors.requests(handle)
    states = executors.follow(handle, progress)
    folders = executors.get(handle.launcher).collect(handle)
    return tuple(
        _report(request, state, folder, handle.ranks, tolerance)
        for request, state, folder in zip(requests, states, folders, strict=True)
    )


def _launch(request: PlanRequest, options: Options, image: str) -> RemoteRun:
    if options.check_numerics:
        detail = "gradients are compared on this machine, without a launcher"
        raise refuse("/launcher", "cannot_launch", detail)
    as_run = native(request)
    job = Job(
        warmup_steps=options.warmup_steps,
        steps=options.steps,
        threads=1 if on_cpus(request.cluster) else None,
        collective_timeout_s=options.limits.silence_s,
    )
    files = FRAMEWORK.render(as_run.request, as_run.plan).files
    try:
        return RemoteRun(
            request=request,
            files={
                run_files.SCRIPT: files[run_files.SCRIPT],
                run_files.JOB: job.model_dump_json(indent=1) + "\n",
            },
            time_limit_s=options.limits.wall_s,
            image=image,
        )
    except ValidationError:
        detail = f"must name a container image, got {shown(image)!r}"
        raise refuse("/image", "not_allowed", detail) from None


def _report(
    request: PlanRequest, state: Status, folder: Path, ranks: int, tolerance: Tolerance
) -> ValidationReport | RunFailed:
    if state.state != "succeeded":
        return RunFailed(state.state, f"{state.state}: {state.detail}", None, _last_words(folder))
    as_run = native(request)
    answer = plan_answers.estimate(as_run.request, as_run.plan)
    try:
        results = collect(folder, ranks)
    except RunFailed as error:
        return error
    unscaled = Scaled(as_run.request, ())
    report = compare(as_run, unscaled, answer, results, {}, tolerance)
    kept = {key: value for key, value in report.environment.items() if key not in _OF_THIS_MACHINE}
    return report.model_copy(update={"environment": kept})


def _last_words(folder: Path) -> str:
    """The end of the newest log of a run."""
    logs = [*folder.glob("*.out"), *folder.glob("*.log")]
    return tail(max(logs, key=lambda path: path.stat().st_mtime, default=None))
