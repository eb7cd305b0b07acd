"""Scores of shared reports on a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from planner.documents.formats import share
from planner.learning.accuracy.reports import ReportsAnswer
from planner.presentation.terminal.plain_table import plain_table


def reports_screen(answer: ReportsAnswer) -> RenderableType:
    """How far off predictions were, in all and by kind."""
    repeated = f", {answer.repeated:,} repeated" if answer.repeated else ""
    head = f"{answer.runs:,} runs of {answer.files:,} reports{repeated}"
    table = plain_table()
    table.add_column("iteration time", no_wrap=True)
    for title in ("runs", "median", "90 %", "bias"):
        table.add_column(title, justify="right")
    for kind, errors in {"all": answer.time, **answer.by_kind}.items():
        bias = f"{100.0 * errors.bias_ln:+.1f} %"
        median, p90 = share(errors.median_abs_ln), share(errors.p90_abs_ln)
        table.add_row(kind, f"{errors.runs:,}", median, p90, bias)
    rows: list[RenderableType] = [
        Text.assemble(("Predicted against measured", "bold"), f"  {head}"), Text(), table, Text(),
    ]  # fmt: skip
    if answer.memory_mean_abs_error is not None:
        off = share(answer.memory_mean_abs_error)
        rows.append(Text(f"peak memory: {off} off on average, {answer.memory_runs:,} runs"))
    versions = ", ".join(answer.versions)
    rows.append(Text(f"as ln(predicted / measured); predicted by version {versions}"))
    return Group(*rows)
