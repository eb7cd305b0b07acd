"""`planner validate`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE, OUR_FAULT
from planner.commands.options import request_options
from planner.commands.server import as_a_job, only_here, service
from planner.commands.shared import PLAN, Json, read_request

if TYPE_CHECKING:
    from planner.commands.server import Client
    from planner.documents.request import PlanRequest
    from planner.running.validate.processes.process import RunFailed
    from planner.running.validate.run import Options

OUTSIDE = 3  # exit code: a prediction is outside the tolerance
_RUN, _LIMITS, _ELSEWHERE = "The run", "Limits of the run", "On other machines"


def _option(panel: str, help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, **more)


Steps = Annotated[int, _option(_RUN, "timed steps", min=1, max=1000)]
WarmupSteps = Annotated[int, _option(_RUN, "warm-up steps before them", min=0, max=1000)]
CheckNumerics = Annotated[
    bool, _option(_RUN, "compare gradients with those of one process, in fp32")
]
TimeTolerance = Annotated[
    float | None,
    _option(_RUN, "share of the step time; default 0.2 on CPUs, 0.05 on GPUs", min=0, max=10),
]
MemoryTolerance = Annotated[float, _option(_RUN, "share of the peak", min=0, max=10)]
Output = Annotated[Path | None, _option(_RUN, "keep scripts, logs and results here", metavar="DIR")]
Port = Annotated[
    int | None, _option(_RUN, "rendezvous port of the ranks; default: a free one", min=1, max=65535)
]
MaxSeconds = Annotated[float, _option(_LIMITS, "of one start of ranks", min=1, max=86_400)]
MaxSilentSeconds = Annotated[
    float, _option(_LIMITS, "without a step before the run counts as hung", min=1, max=86_400)
]
MaxMemory = Annotated[int | None, _option(_LIMITS, "of all ranks together", metavar="BYTES", min=1)]
Launcher = Annotated[
    str | None,
    _option(
        _ELSEWHERE,
        "write what starts it on the plan's cluster, whole: torchrun, slurm, jobset, trainjob",
        metavar="NAME",
    ),
]
Submit = Annotated[
    bool, _option(_ELSEWHERE, "start that from --output, which every node sees, and report")
]
Image = Annotated[
    str, _option(_ELSEWHERE, "container with torch and this package (jobset, trainjob)")
]
Follow = Annotated[
    Path | None, _option(_ELSEWHERE, "report on what was submitted from this folder", metavar="DIR")
]


@request_options(PLAN)
def validate(
    *,
    source: str | None,
    steps: Steps = 10,
    warmup_steps: WarmupSteps = 2,
    check_numerics: CheckNumerics = False,
    time_tolerance: TimeTolerance = None,
    memory_tolerance: MemoryTolerance = 0.03,
    output: Output = None,
    port: Port = None,
    max_seconds: MaxSeconds = 1800.0,
    max_silent_seconds: MaxSilentSeconds = 300.0,
    max_memory: MaxMemory = None,
    launcher: Launcher = None,
    submit: Submit = False,
    image: Image = "",
    follow: Follow = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Train with the plan for a few steps on this machine, and hold it against the estimate.

    With --site that site learns from the run, where it is one of its accelerators.
    Exit code 3: outside the tolerance; 0: within it, or the repeats scatter too widely to tell.
    """
    from planner.commands import validate_elsewhere as remote_command
    from planner.running.validate.processes.process import Limits
    from planner.running.validate.report import Tolerance
    from planner.running.validate.run import Options, default_tolerance

    if submit and launcher is None:
        raise typer.BadParameter("--submit needs --launcher")
    if (client := service()) is not None:
        if launcher or submit or follow or output or port:
            only_here("--launcher, --submit, --follow, --output or --port")
        request = read_request(source, option_values, need_plan=True)
        settings = {
            "steps": steps, "warmup_steps": warmup_steps, "check_numerics": check_numerics,
            "time_tolerance": time_tolerance, "memory_tolerance": memory_tolerance,
            "wall_s": max_seconds, "silence_s": max_silent_seconds, "memory_bytes": max_memory,
        }  # fmt: skip
        return _validate_on_service(client, request, settings, json)
    tolerance = Tolerance(time=time_tolerance or default_tolerance(), memory=memory_tolerance)
    if follow is not None:
        return remote_command.follow(follow, tolerance, json)
    request = read_request(source, option_values, need_plan=True)
    options = Options(
        steps=steps,
        warmup_steps=warmup_steps,
        check_numerics=check_numerics,
        tolerance=tolerance,
        limits=Limits(wall_s=max_seconds, silence_s=max_silent_seconds, memory_bytes=max_memory),
        port=port,
    )
    if launcher is not None:
        away = remote_command.submit if submit else remote_command.write
        return away(launcher, request, options, output, image, json)
    return _validate_locally(request, options, output, json)


def _validate_locally(
    request: PlanRequest, options: Options, output: Path | None, json: bool
) -> int:
    """Validate on this machine; store the report and add the run to the request's site."""
    from planner.presentation.terminal import output as outputs
    from planner.presentation.terminal.validation_screen import validation_screen
    from planner.running.validate import results
    from planner.running.validate.learned_run import learn
    from planner.running.validate.run import validate as run

    with running(json) as progress:
        report = run(request, options, output=output, progress=progress)
    stored = results.keep(request, report.model_dump(mode="json"))
    lines = [f"\nkept with the plan as {stored.id}"]
    if lesson := learn(request, report, options.warmup_steps):
        lines.append(lesson)
    outputs.show(report, json, partial(validation_screen, report), lines)
    return OUTSIDE if report.verdict == "outside" else FINE


def _validate_on_service(
    client: Client, request: PlanRequest, settings: Mapping[str, Any], json: bool
) -> int:
    """Validate on the machine of a service."""
    from planner.presentation.terminal import output
    from planner.presentation.terminal.validation_screen import validation_screen
    from planner.running.validate.report import ValidationReport

    spec = {name: value for name, value in settings.items() if value is not None}
    document = request.document() | {"validation": spec}
    report = as_a_job(client, "validations", document, "report", ValidationReport)
    output.show(report, json, partial(validation_screen, report))
    return OUTSIDE if report.verdict == "outside" else FINE


@contextmanager
def running(json: bool) -> Iterator[Callable[[str], None]]:
    """Real runs, with lines of their progress; a failure or a signal ends the command."""
    from planner.running.validate.processes.process import RunFailed, Stopped, stoppable

    try:
        with stoppable(), progress_lines() as progress:
            yield progress
    except RunFailed as error:
        raise typer.Exit(failed(error, json)) from None
    except Stopped as by:
        print(f"Stopped by {by}: every process of the run is ended.", file=sys.stderr)
        raise typer.Exit(128 + by.number) from None


@contextmanager
def progress_lines() -> Iterator[Callable[[str], None]]:
    """Progress lines on standard error; on a terminal one line, which is cleared at the end."""
    terminal = sys.stderr.isatty()

    def say(text: str) -> None:
        line = f"\r\x1b[K{text}" if terminal else f"{text}\n"
        print(line, end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        if terminal:
            say("")


def failed(error: RunFailed, json: bool) -> int:
    """Report why a run failed, with the last lines of its log; returns the exit code."""
    from planner.presentation.terminal.output import print_document

    if json:
        print_document(error.document())
        return OUR_FAULT
    print(f"The run failed: {error}.", file=sys.stderr)
    if error.log:
        whose = "The run's log" if error.rank is None else f"The log of rank {error.rank}"
        print(f"{whose} ends:", file=sys.stderr)
        for line in error.log.splitlines():
            print(f"  {line}", file=sys.stderr)
    return OUR_FAULT
