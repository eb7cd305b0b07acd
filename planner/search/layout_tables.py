"""Tables of the legal layouts and micro-batch sizes of each process group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from cost_models.plans import IntArray, Plans, code
from cost_models.schedules.waits import waits_as_a_loop
from cost_models.spec import ModelSpec
from cost_models.stage_layers import is_loop, middle_layers, virtual_stage_count
from planner.constraints import BoolArray
from planner.search.axes import LAYOUT_FIELDS, Axes, divisors
from planner.search.layout_axes import LayoutAxes
from planner.search.legality import Legality

_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


@dataclass(frozen=True)
class GroupOffsets:
    """Values of each group: where they begin in the columns, and how many there are."""

    columns: dict[str, IntArray]
    starts: IntArray
    counts: IntArray

    def count_of(self, chosen: BoolArray) -> IntArray:
        """The number of chosen values of each group."""
        cumulative = np.concatenate([[0], np.cumsum(chosen)])
        return np.asarray(cumulative[self.starts + self.counts] - cumulative[self.starts])


class Layouts:
    """Legal ways to lay the layers on stages and chunks, for some process groups."""

    def __init__(self, axes: LayoutAxes, groups: Plans, model: ModelSpec, legality: Legality):
        self._axes, self._groups, self._model, self._legality = axes, groups, model, legality

    @cached_property
    def legal(self) -> Plans:
        """The legal layouts of all pipeline sizes, in the order of these."""
        rows = []
        for pp in np.unique(self._groups.pp).tolist():
            layout_rows = [(pp, *row) for row in self._axes.layout_rows(pp)]
            if not layout_rows:
                self._legality.rejected["user_limit"] += 1
            rows += layout_rows
        values = np.array(rows, dtype=np.int64).reshape(-1, 1 + len(LAYOUT_FIELDS)).T
        columns = dict(zip(("pp", *LAYOUT_FIELDS), values, strict=True))
        plans = Plans.build(stage_layers_table=self._axes.split_table, **columns)
        return self._legality.passed(plans, "layout")

    def schedules(self) -> list[int]:
        """Codes of the schedules any layout uses."""
        return [int(c) for c in np.unique(self.legal.schedule)]

    @cached_property
    def longest_chunk(self) -> IntArray:
        """Layers of the longest chunk in any layout of each group."""
        pps, inverse = np.unique(self._groups.pp, return_inverse=True)
        longest = np.zeros(len(pps), dtype=np.int64)
        layers = chunk_layers(self._model, self.legal)
        np.maximum.at(longest, np.searchsorted(pps, self.legal.pp), layers)
        return longest[inverse]

    @cached_property
    def quickest(self) -> dict[str, IntArray]:
        """The schedule and the chunks per rank with which the ranks of each group wait least."""
        pps, inverse = np.unique(self._groups.pp, return_inverse=True)
        largest = np.ones(len(pps), dtype=np.int64)
        schedule = np.full(len(pps), code("schedule", "interleaved-1f1b"))
        index = np.searchsorted(pps, self.legal.pp)
        np.maximum.at(largest, index, np.broadcast_to(self.legal.vpp, index.shape))
        others = ~np.broadcast_to(waits_as_a_loop(self.legal), index.shape)
        schedule[index[others]] = np.broadcast_to(self.legal.schedule, index.shape)[others]
        return {"schedule": schedule[inverse], "vpp": largest[inverse]}

    def table(self, schedule: int | None, explicit: bool) -> GroupOffsets:
        """Layouts of one schedule, or of all, for each group; explicit: by named stages."""
        chosen = (self.legal.stage_layers > 0) == explicit
        layouts = self.legal.take(
            chosen if schedule is None else chosen & (self.legal.schedule == schedule)
        )
        starts, ends = (np.searchsorted(layouts.pp, self._groups.pp, side) for side in _SIDES)
        table = {name: getattr(layouts, name) for name in LAYOUT_FIELDS}
        if schedule is not None:
            table["schedule"] = np.asarray(schedule)
        return GroupOffsets(table, starts, ends - starts)


def micro_batch_table(axes: Axes, groups: Plans, legality: Legality) -> GroupOffsets:
    """Micro-batches that divide the data-parallel share of each group."""
    batch = axes.request.training.global_batch_size
    allowed = set(axes.values["micro_batch_size"])
    flat: list[int] = []
    slices: dict[int, tuple[int, int]] = {}
    sizes = groups.dp.tolist()
    for d in sorted(set(sizes)):
        sizes_of_dp = [b for b in divisors(batch // d) if b in allowed]
        legality.rejected["batch_identity"] += not sizes_of_dp
        slices[d] = (len(flat), len(sizes_of_dp))
        flat.extend(sizes_of_dp)
    starts = np.array([slices[d][0] for d in sizes], dtype=np.int64)
    counts = np.array([slices[d][1] for d in sizes], dtype=np.int64)
    values = np.array(flat or [1], dtype=np.int64)
    return GroupOffsets({"micro_batch_size": values}, starts, counts)


def chunk_layers(model: ModelSpec, plans: Plans) -> IntArray:
    """Layers of the longest chunk of each plan: the most full recompute can redo."""
    layers = model.num_layers
    middle, _ = middle_layers(layers, plans)
    larger = np.maximum(np.maximum(plans.first_stage_layers, plans.last_stage_layers), middle)
    # A longer end carries its surplus in one chunk.
    per_chunk = middle // plans.vpp + np.maximum(larger - middle, 0)
    per_chunk = np.where(plans.pp == 1, layers, per_chunk)
    count = virtual_stage_count(plans)
    longest = np.where(is_loop(plans.schedule), per_chunk, layers // count)
    if plans.stage_layers_table:
        largest = plans.of_stage_layers(max)
        each = np.where(plans.of_stage_layers(len) == count, largest, largest // plans.vpp)
        longest = np.where(plans.stage_layers > 0, each, longest)
    return longest


def repeated(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Repeat rows `counts` times: the row of each repeat, and its number within the row."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def batches(counts: IntArray, size: int) -> Iterator[tuple[int, int]]:
    """Consecutive row ranges with about `size` candidates each (at least one row)."""
    ends, low, begun = np.cumsum(counts), 0, 0
    while low < len(counts):
        high = max(int(np.searchsorted(ends, begun + size, side="right")), low + 1)
        if ends[high - 1] > begun:
            yield low, high
        low, begun = high, int(ends[high - 1])
