"""`planner validate --launcher`: the files of a run elsewhere, or the run itself."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from planner.commands.failures import FINE

if TYPE_CHECKING:
    from planner.documents.request import PlanRequest
    from planner.running.validate.executors import Handle
    from planner.running.validate.report import Tolerance
    from planner.running.validate.run import Options


def write(
    launcher: str, request: PlanRequest, options: Options, output: Path | None, image: str,
    json: bool,
) -> int:  # fmt: skip
    """Print the files that validate a plan elsewhere, or write them into a folder."""
    from planner.commands.shared import print_bundle
    from planner.running.validate import executors
    from planner.running.validate.executors import remote

    bundle = remote.render(launcher, [request], options, image)
    as_script = bundle.main == executors.MAIN  # else a cluster's file, which is printed alone
    return print_bundle(bundle, output, json, as_script=as_script)


def submit(
    launcher: str, request: PlanRequest, options: Options, output: Path | None, image: str,
    json: bool,
) -> int:  # fmt: skip
    """Submit a run, wait for it and report; if interrupted, the run goes on for `follow`."""
    from planner.documents.problems import refuse
    from planner.running.validate.executors import remote

    if output is None:
        detail = "a run elsewhere needs a folder that every node sees: --output DIR"
        raise refuse("/output", "missing", detail)
    handle = remote.submit(launcher, [request], options, output, image)
    status = handle.by_hand or f"submitted to {launcher} as {handle.id}; its files: {output}"
    print(status, file=sys.stderr)
    return _print_report(handle, options.tolerance, json)


def follow(folder: Path, tolerance: Tolerance, json: bool) -> int:
    """Wait for a run that was submitted from a folder, and report."""
    from planner.running.validate import executors

    return _print_report(executors.started(folder), tolerance, json)


def _print_report(handle: Handle, tolerance: Tolerance, json: bool) -> int:
    from planner.commands import validate as run_command
    from planner.documents.request import PlanRequest
    from planner.presentation.terminal import output
    from planner.presentation.terminal.validation_screen import validation_screen
    from planner.running.validate.executors import remote
    from planner.running.validate.learned_run import learn
    from planner.running.validate.processes.process import RunFailed, Stopped, stoppable

    try:
        with stoppable(), run_command.progress_lines() as progress:
            (report,) = remote.reports(handle, tolerance, progress)
    except Stopped as stopped:
        print(f"Stopped by {stopped}; the run goes on, from {handle.folder}.", file=sys.stderr)
        return 128 + stopped.number
    if isinstance(report, RunFailed):
        return run_command.failed(report, json)
    lesson = learn(PlanRequest.model_validate(report.request), report)
    output.show(report, json, partial(validation_screen, report), [f"\n{lesson}"] if lesson else [])
    return run_command.OUTSIDE if report.verdict == "outside" else FINE
