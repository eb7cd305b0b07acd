"""The screen of `planner dryrun`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from cost_models.plans import ParallelPlan
from planner.documents.formats import gib, plan_words, value_words
from planner.presentation.terminal.plain_table import plain_table
from planner.presentation.terminal.text_wrap import Flow
from planner.running.validate.dryrun.run import DryRunReport, RankReport

_MAX_TENSORS = 6  # number of saved tensors on the screen
_TERMS = {
    "parameter_bytes": "weights",
    "gathered_bytes": "gathered weights",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "activation_bytes": "activations",
    "working_bytes": "working",
    "peak_bytes": "peak",
}


def dryrun_screen(report: DryRunReport) -> Iterator[RenderableType]:
    """Traced and estimated terms, differences and largest tensors of each set of equal ranks."""
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
    for _, group in groupby(report.ranks, key=lambda r: (r.stage, r.traced)):
        yield Text("")
        yield from _rank(list(group))


def _rank(ranks: Sequence[RankReport]) -> Iterator[RenderableType]:
    first = ranks[0]
    numbers = ", ".join(str(rank.rank) for rank in ranks)
    slowest = max(rank.seconds for rank in ranks)
    fullest = max(rank.rss_bytes for rank in ranks)
    heading = f"Rank{'s' * (len(ranks) > 1)} {numbers}: stage {first.stage}"
    yield Text(heading, "bold").append(
        f"  ({slowest:.0f} s, {gib(fullest)} GiB to trace)", "not bold"
    )
    table = plain_table(("  GiB", "traced", "estimated", "difference"), {"  GiB"})
    for term, label in _TERMS.items():
        traced, estimated = getattr(first.traced, term), getattr(first.estimated, term)
        off = f"{100 * (traced / estimated - 1):+.2f} %" if estimated else "-"
        cells = (f"{value / 2**30:,.3f}" for value in (traced, estimated))
        table.add_row(f"  {label}", *cells, off)
    yield table
    yield Text("  What differs (of saved tensors: in one micro-batch)")
    for difference in first.differences:
        name = _TERMS.get(difference.term, difference.term)
        yield Text(f"    {name} {_signed(difference.bytes)}: {difference.reason}")
    yield Text("  Largest saved tensors of one micro-batch")
    largest = sorted(first.saved_tensors, key=lambda row: -row.bytes * row.count)[:_MAX_TENSORS]
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
