"""`planner dryrun`: the command and its screen."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE, OUR_FAULT
from planner.commands.options import request_options
from planner.commands.shared import PLAN, Json, RequestFile, RequestOption, read_request, source_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from planner.validate.dryrun.run import DryRunReport, Progress, RankReport

_LARGEST = 6  # number of saved tensors on the screen
_TERMS = {
    "parameter_bytes": "weights",
    "gathered_bytes": "gathered weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "activation_bytes": "activations",
    "working_bytes": "working",
    "peak_bytes": "peak",
}


@request_options(PLAN)
def dryrun(
    *,
    request_file: RequestFile = None,
    request: RequestOption = None,
    ranks: Annotated[
        str | None,
        typer.Option(metavar="0,8", help="which to trace; else first, middle, last of each stage"),
    ] = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Trace ranks of a plan at full scale, without a GPU, and compare with the estimate."""
    from planner.terminal import output
    from planner.validate.dryrun.run import dry_run
    from planner.validate.dryrun.trace_process import TraceFailed

    asked = read_request(source_of(request_file, request), option_values, need_plan=True)
    try:
        with _progress_display() as progress:
            report = dry_run(asked, _numbers(ranks), progress=progress)
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


def dryrun_screen(report: DryRunReport) -> Iterator[RenderableType]:
    """For each set of equal ranks: traced and estimated terms, differences, largest tensors."""
    from rich.text import Text

    from cost_models.plans import ParallelPlan
    from planner.documents.formats import plan_words, value_words
    from planner.terminal.text_wrap import Flow

    plan = ParallelPlan.model_validate(report.plan).model_dump()
    yield Flow([Text("Dry run", "bold"), *plan_words(plan)], " · ", indent=2)
    for change in report.changes:
        yield Text(
            f"  {change.field}: {value_words(change.used)} in place of "
            f"{value_words(change.asked)}: {change.why}"
        )
    if report.traced_micro_batches < report.micro_batches:
        yield Text(
            f"  {report.traced_micro_batches} of {report.micro_batches} micro-batches traced, and "
            "estimated: they fill the pipeline"
        )
    yield from (Text(f"  Not shown: {caveat}") for caveat in report.caveats)
    for _, alike in groupby(report.ranks, key=lambda one: (one.stage, one.traced)):
        yield Text("")
        yield from _rank(list(alike))


def _rank(alike: Sequence[RankReport]) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    from planner.documents.formats import gib

    one = alike[0]
    numbers = ", ".join(str(rank.rank) for rank in alike)
    slowest = max(rank.seconds for rank in alike)
    fullest = max(rank.rss_bytes for rank in alike)
    heading = f"Rank{'s' * (len(alike) > 1)} {numbers}: stage {one.stage}"
    yield Text(heading, "bold").append(
        f"  ({slowest:.0f} s, {gib(fullest)} GiB to trace)", "not bold"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for name in ("  GiB", "traced", "estimated", "difference"):
        table.add_column(name, justify="left" if name == "  GiB" else "right")
    for term, words in _TERMS.items():
        traced, estimated = getattr(one.traced, term), getattr(one.estimated, term)
        off = f"{100 * (traced / estimated - 1):+.2f} %" if estimated else "-"
        cells = (f"{value / 2**30:,.3f}" for value in (traced, estimated))
        table.add_row(f"  {words}", *cells, off)
    yield table
    yield Text("  What differs (of saved tensors: in one micro-batch)")
    for difference in one.differences:
        name = _TERMS.get(difference.term, difference.term)
        yield Text(f"    {name} {_signed(difference.bytes)}: {difference.reason}")
    yield Text("  Largest saved tensors of one micro-batch")
    largest = sorted(one.saved_tensors, key=lambda row: -row.bytes * row.count)[:_LARGEST]
    for row in largest:
        shape = "x".join(map(str, row.shape))
        yield Text(
            f"    {row.name}: {row.count} of {shape} {row.dtype}, "
            f"{row.bytes * row.count / 2**20:,.1f} MiB"
        )


def _signed(value: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= size:
            return f"{value / size:+,.1f} {unit}"
    return f"{value:+d} bytes"
