"""`planner dryrun`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE, OUR_FAULT
from planner.commands.options import request_options
from planner.commands.shared import PLAN, Json, read_request

if TYPE_CHECKING:
    from planner.running.validate.dryrun.run import Progress


@request_options(PLAN)
def dryrun(
    *,
    source: str | None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="0,8", help="which to trace; else first, middle, last of each stage"),
    ] = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Trace ranks of a plan at full scale, without a GPU, and compare with the estimate."""
    from planner.presentation.terminal import output
    from planner.presentation.terminal.dryrun_screen import dryrun_screen
    from planner.running.validate.dryrun.run import dry_run
    from planner.running.validate.dryrun.trace_process import TraceFailed

    request = read_request(source, option_values, need_plan=True)
    try:
        with _progress_display() as progress:
            report = dry_run(request, _numbers(ranks), progress=progress)
    except TraceFailed as error:
        print(error, file=sys.stderr)
        if json:
            output.print_document({"type": "/problems/trace", "detail": str(error)})
        return OUR_FAULT
    if json:
        output.print_json(report)
        return FINE
    screen = output.Screen()
    for part in dryrun_screen(report):
        screen.print(part)
    return FINE


def _numbers(text: str | None) -> tuple[int, ...]:
    """The ranks in an option's comma-separated text."""
    from planner.documents.problems import wrong_type

    parts = text.split(",") if text is not None else ()
    if wrong := [part for part in parts if not (part.isascii() and part.isdigit())]:
        from planner.documents.problems import RequestError

        raise RequestError([wrong_type("/ranks", "ranks as numbers, such as 0,8", wrong[0])])
    return tuple(int(part[:10]) for part in parts)


@contextmanager
def _progress_display() -> Iterator[Progress]:
    """Progress on standard error: bars on a terminal, else a line for each rank."""
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    console = Console(stderr=True)
    with Bars(console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks: dict[int, TaskID] = {}

        def progress(rank: int, share: float) -> None:
            if rank not in tasks:
                tasks[rank] = bars.add_task(f"rank {rank}", total=1.0)
                if not console.is_terminal:
                    print(f"tracing rank {rank}", file=sys.stderr, flush=True)
            bars.update(tasks[rank], completed=share)

        yield progress
