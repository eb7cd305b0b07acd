"""The searched space as a table of an answer: axis, values, count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cost_models.plans import Plans
from planner.documents.answer import SpaceAxis
from planner.search.axes import GROUP_FIELDS, SEARCHED, Axes
from planner.search.layout_axes import LayoutAxes
from planner.search.option_axes import OptionAxes, module_names

_NOTES = {
    "tp": "divisors of the accelerators, inside the fastest domain",
    "cp": "divisors of the accelerators",
    "pp": "divisors of the accelerators, at most one layer per stage",
    "ep": "divisors of the experts",
    "etp": "1, or tp",
    "zero_stage": "one where nothing is sharded",
    "micro_batch_size": "divisors of each pipeline's share of the batch",
}


def space_axes(
    axes: Axes, laid: LayoutAxes, options: OptionAxes, groups: Plans, layouts: Plans
) -> Iterator[SpaceAxis]:
    """One row for each axis.

    groups, layouts: the legal process groups, and the legal layouts.
    """
    v = axes.values
    for name in (*GROUP_FIELDS, "zero_stage", "micro_batch_size"):
        yield _row(name, v[name], _NOTES.get(name, ""))
    yield _row("dp", tuple(int(d) for d in np.unique(groups.dp)), "accelerators left over")
    yield from _layout_rows(v["schedule"], laid, layouts)
    modules = ", ".join("+".join(module_names(bits)) for bits in options.selective_sets)
    note = f"selective: {modules}; full: fewest layers that fit, and all"
    yield _row("recompute", tuple(v["recompute"]), note)
    for name, values in v.items():
        if name not in SEARCHED:
            yield _row(name, values)


def _layout_rows(
    schedules: tuple[Any, ...], laid: LayoutAxes, layouts: Plans
) -> Iterator[SpaceAxis]:
    """Schedules, chunks and splits of layers."""
    dominated = {"gpipe", "1f1b"} <= set(schedules)
    yield _row("schedule", schedules, "gpipe dominated by 1f1b" if dominated else "")
    yield _row("vpp", tuple(np.unique(layouts.vpp).tolist()), "divisors of a stage's layers")
    splits = {
        (int(first), int(last))
        for first, last in zip(layouts.first_stage_layers, layouts.last_stage_layers, strict=True)
    }
    lighter = laid.most_layers_lighter
    note = f"(first, last) stage layers, 0 as the middle; ends up to {lighter} layers lighter"
    yield _row("first/last_stage_layers", tuple(sorted(splits)), note)
    if laid.split_table:
        note = "layers by stage, or virtual stage; by time for the best plans"
        yield _row("stage_layers", laid.split_table, note)


def _row(name: str, values: tuple[Any, ...], note: str = "") -> SpaceAxis:
    return SpaceAxis(axis=name, values=values, count=len(values), note=note)
