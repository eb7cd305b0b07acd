"""A sweep on a terminal: the number of requests with each outcome, and the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.documents.formats import gib, plan_words, value_words
from planner.presentation.terminal.plain_table import plain_table
from planner.presentation.terminal.text_wrap import Flow, prose
from planner.running.sweeps.question import OUTCOMES
from planner.running.sweeps.run import SweepAnswer
from planner.running.sweeps.table import Row

_MAX_ROWS = 10
_MIN_PLAN = 12  # cells


def sweep_screen(answer: SweepAnswer, width: int) -> RenderableType:
    """The counts, the first rows with figures, and an example reason for each failed outcome."""
    counts = [f"{answer.outcomes[o]:,} {OUTCOMES[o]}" for o in OUTCOMES if o in answer.outcomes]
    count = len(answer.rows)
    title = Text(f"{count:,} request{'s' * (count != 1)}", "bold")
    rows: list[RenderableType] = [Flow([title, *counts], indent=2)]
    priced = [row for row in answer.rows if row["iteration_time_s"] is not None]
    if priced:
        rows += [Text(), _table(answer.inputs, priced[:_MAX_ROWS], width)]
        if len(priced) > _MAX_ROWS:
            rows.append(Text(f"and {len(priced) - _MAX_ROWS:,} more"))
    for outcome in OUTCOMES:
        first = next((r for r in answer.rows if r["outcome"] == outcome and r["reason"]), None)
        if first is not None:
            which = (f"{name} {_cell_text(first[name])}" for name in answer.inputs)
            head = f"One {OUTCOMES[outcome]}: "
            rows += [Text(), Flow(which, ", ", indent=2, head=head)]
            rows.append(prose(first["reason"]))
    return Group(*rows)


def _table(inputs: Sequence[str], rows: Sequence[Row], width: int) -> Table:
    columns = [
        *([name.rpartition(".")[2].replace("_", " "), *(_cell_text(row[name]) for row in rows)]
          for name in inputs),
        ["s/iter", *(f"{row['iteration_time_s']:,.4g}" for row in rows)],
        ["tokens/s", *(f"{row['tokens_per_s']:,.0f}" for row in rows)],
        ["GiB", *(gib(row["peak_bytes"]) for row in rows)],
    ]  # fmt: skip
    table = plain_table()
    room = width
    for heading, *cells in columns:
        size = max(map(len, [*heading.split(), *cells]))
        room -= size + 2
        table.add_column(heading, justify="right", vertical="bottom", width=size)
    table.add_column("plan", no_wrap=True, vertical="bottom")
    for *cells, row in zip(*(cells for _, *cells in columns), rows, strict=True):
        plan = Text(" ".join(plan_words(row)))
        plan.truncate(max(room, _MIN_PLAN), overflow="ellipsis")
        table.add_row(*cells, plan)
    return table


def _cell_text(value: Any) -> str:
    return "" if value is None else value_words(value)
