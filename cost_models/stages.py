"""The layers that each stage holds and recomputes, by kind, and the stages that can be the worst.

cost_models/stage_layers.py gives the number of layers of a stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.arrays import maximum, minimum, per_row, where
from cost_models.keys import Groups, Key
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan, Plans, code
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Placement
from cost_models.spec import ModelSpec
from cost_models.stage_layers import (
    PLACEMENT_CODES,
    PLACEMENTS,
    FloatArray,
    forward_layers,
    is_loop,
    virtual_stage_layers,
    virtual_stages,
)


@dataclass(frozen=True)
class StageTable:
    """The stages of each distinct layout that can be the worst.

    Arrays of shape (slots, layouts), padded by repetition; counts: slots of each layout without.

    slot_of: the slot that is composed as a stage is, shape (stages, layouts); -1: no such stage.
    layers, recomputed, inputs: shape (kinds, slots, layouts); inputs counts stored inputs of
    recomputed layers.  totals, recomputed_totals: summed over all stages, shape (kinds, layouts).
    virtual: by layout, the virtual stages that loop over the ranks where a plan gives each its
    layers, and not only the first and the last a number of its own.
    """

    stage: FloatArray
    first: FloatArray
    last: FloatArray
    layers: FloatArray
    recomputed: FloatArray
    inputs: FloatArray
    totals: FloatArray
    recomputed_totals: FloatArray
    slot_of: NDArray[np.int64]
    counts: NDArray[np.int64]
    virtual: Mapping[int, VirtualStages] = field(default_factory=dict)


@dataclass(frozen=True)
class VirtualStages:
    """Virtual stages in forward order: their ranks, shares of the micro-batches, and layers.

    layers, recomputed: shape (kinds, virtual stages); multi-token prediction counts as layers after
    the last one.
    """

    sizes: NDArray[np.int64]
    owner: NDArray[np.int64]
    share: FloatArray
    first: NDArray[np.bool_]
    last: NDArray[np.bool_]
    layers: FloatArray
    recomputed: FloatArray


@lru_cache(maxsize=1 << 12)
def virtual_layers(
    order: tuple[int, ...],
    predicted: tuple[int, ...],
    placement: Placement,
    pp: int,
    layers: tuple[int, ...],
    recompute_num_layers: int,
    uniform: bool,
    recompute_layers: tuple[int, ...] = (),
) -> VirtualStages:
    """The layers that each virtual stage of a layout holds and recomputes.

    order: the kind of each layer; predicted: those of the multi-token-prediction layers.
    """
    sizes, owner, share = virtual_stages(placement, pp, layers)
    # Both ranks of a stage in two directions begin at the same layer.
    copies = 2 if placement == "two-way" else 1
    starts = np.repeat(np.concatenate([[0], np.cumsum(sizes[::copies])[:-1]]), copies)
    is_kind = np.array(order) == np.arange(max((*order, *predicted)) + 1)[:, None]
    cumulative = np.pad(np.cumsum(is_kind, axis=1), ((0, 0), (1, 0))).astype(np.float64)

    def split(stops: NDArray[np.int64]) -> FloatArray:
        return cumulative[:, stops] - cumulative[:, starts]

    layer_counts = split(starts + sizes)
    if recompute_num_layers == 0:
        redone = np.zeros_like(layer_counts)
    elif uniform:
        redone = layer_counts.copy()
    else:
        redone = split(starts + minimum(sizes, recompute_layers or recompute_num_layers))
    positions = np.arange(len(sizes)) // copies
    first, last = positions == 0, positions == positions[-1]
    for kind in predicted:
        layer_counts[kind, last] += 1.0
        redone[kind, last] += float(recompute_num_layers > 0)
    return VirtualStages(sizes, owner, share, first, last, layer_counts, redone)


def plan_stages(model: ModelSpec, plan: ParallelPlan) -> VirtualStages:
    """The virtual stages of one plan."""
    layers = layers_of(model)
    return virtual_layers(
        layers.order,
        layers.predicted,
        SCHEDULES[plan.schedule].placement if plan.pp > 1 else "loop",
        plan.pp,
        forward_layers(model.num_layers, plan),
        plan.recompute_num_layers,
        plan.recompute == "full" and plan.recompute_method == "uniform",
        plan.recompute_layers,
    )


@lru_cache(maxsize=1 << 16)
def _rows(
    order: tuple[int, ...],
    predicted: tuple[int, ...],
    placement: Placement,
    pp: int,
    vpp: int,
    ends: tuple[int, int],
    explicit: tuple[int, ...],
    recompute_num_layers: int,
    uniform: bool,
    recompute_layers: tuple[int, ...],
) -> tuple[FloatArray, FloatArray, NDArray[np.int64], VirtualStages]:
    """(values of the stages that can be the worst, sums over all stages, slot of each stage, all
    virtual stages).

    Rows: stage, first, last, then for each kind layers, then recomputed, then inputs.
    Dominance: middle stages of equal composition differ only in what is in flight, which never
    grows along the pipeline, so the earliest of them bounds the others in every part; where the
    schedule is a wave it may grow instead (Hanayo with m = p), so the latest is kept too.
    """
    layers = virtual_stage_layers(len(order), placement, pp, vpp, *ends, explicit)
    v = virtual_layers(
        order, predicted, placement, pp, layers, recompute_num_layers, uniform, recompute_layers
    )

    def per_rank(counts: NDArray[Any]) -> FloatArray:
        totals = np.bincount(v.owner, weights=counts * v.share, minlength=pp)
        return totals.astype(np.float64)

    layer_counts = [per_rank(counts) for counts in v.layers]
    redone = [per_rank(counts) for counts in v.recomputed]
    inputs = redone
    if uniform and recompute_num_layers > 1:
        # One input per checkpoint of n layers; mixed kinds share in proportion.
        segments = per_rank(np.ceil(v.sizes / recompute_num_layers))
        portion = segments / maximum(sum(redone), 1.0)
        inputs = [counts * portion for counts in redone]
    stage = np.arange(pp, dtype=np.float64)
    losses = per_rank(v.last) * (1.0 + len(predicted))
    values = np.stack([stage, per_rank(v.first), losses, *layer_counts, *redone, *inputs])
    earliest: dict[bytes, int] = {}
    latest: dict[bytes, int] = {}
    for r in range(1, pp - 1):
        earliest.setdefault(values[1:, r].tobytes(), r)
        if placement == "wave":
            latest[values[1:, r].tobytes()] = r
    distinct = sorted({0, pp - 1, *earliest.values(), *latest.values()})
    same_as = [earliest.get(values[1:, r].tobytes(), r) if 0 < r < pp - 1 else r for r in range(pp)]
    slot_of = np.array([distinct.index(stage) for stage in same_as], dtype=np.int64)
    return values[:, distinct], values[3:].sum(axis=1), slot_of, v


LAYOUT_KEY = Key(
    "pp", "vpp", "schedule", "first_stage_layers", "last_stage_layers", "stage_layers",
    "recompute", "recompute_num_layers", "recompute_layers", "recompute_method",
)  # fmt: skip


def stage_table(model: ModelSpec, plans: Plans) -> tuple[Groups, StageTable]:
    """The distinct layouts of some plans."""
    groups, keys = LAYOUT_KEY.distinct(plans)
    every = layers_of(model)
    full = keys.recompute == code("recompute", "full")
    columns = (
        keys.pp, keys.vpp, PLACEMENT_CODES[keys.schedule], keys.first_stage_layers,
        keys.last_stage_layers, keys.stage_layers, keys.recompute_num_layers * full,
        (keys.recompute_method == code("recompute_method", "uniform")) & full,
        keys.recompute_layers * full,
    )  # fmt: skip
    size = len(groups.first)
    several = (keys.vpp > 1) & (keys.stage_layers > 0) & is_loop(keys.schedule)
    rows = []
    table = ((), *plans.stage_layers_table)
    for pp, vpp, placement, first, last, explicit, redone, uniform, each in zip(
        *(per_row(column, size).tolist() for column in columns), strict=True
    ):
        rows.append(
            _rows(
                every.order, every.predicted, PLACEMENTS[placement], pp, vpp, (first, last),
                table[explicit], redone, uniform, table[each],
            )
        )  # fmt: skip
    values, sums, slots, virtual = zip(*rows, strict=True)
    stacked = _stacked(values)
    slot_of = np.full((max(map(len, slots)), len(slots)), -1, dtype=np.int64)
    for i, slot_row in enumerate(slots):
        slot_of[: len(slot_row), i] = slot_row
    per_kind = stacked[3:].reshape(3, -1, *stacked.shape[1:])
    totals = np.stack(sums, axis=1).reshape(3, -1, len(sums))
    return groups, StageTable(
        stacked[0], stacked[1], stacked[2], per_kind[0], per_kind[1], per_kind[2], totals[0],
        totals[1], slot_of, np.array([table.shape[1] for table in values]),
        {
            i: virtual[i]
            for i in np.flatnonzero(per_row(several, size)).tolist()
            if len(np.unique(virtual[i].sizes[1:-1])) > 1
        },
    )  # fmt: skip


def mean_stages(model: ModelSpec, plans: Plans) -> tuple[Groups, StageTable]:
    """One average stage for each plan, without embedding and head.

    Full recompute is of all layers.
    """
    fields = "pp", "recompute", "recompute_method", "recompute_num_layers"
    groups, keys = Key(*fields).distinct(plans)
    shape = (1, len(groups.first))
    counts = np.array(layers_of(model).trained_counts, dtype=np.float64)[:, None, None]
    layers = np.broadcast_to(counts / keys.pp, (len(counts), *shape))
    redone = layers * (keys.recompute == code("recompute", "full"))
    uniform = keys.recompute_method == code("recompute_method", "uniform")
    inputs = redone / where(uniform, maximum(keys.recompute_num_layers, 1), 1)
    totals = np.broadcast_to(counts[:, 0], (len(counts), shape[1]))
    none, ones = np.zeros(shape), np.ones(shape[1], dtype=np.int64)
    return groups, StageTable(
        none, none, none, layers, redone, inputs, totals, (redone * keys.pp)[:, 0],
        none.astype(np.int64), ones,
    )  # fmt: skip


def _stacked(tables: Sequence[FloatArray]) -> FloatArray:
    """Tables (rows, slots) one behind the other: (rows, most slots, tables), the last slot of each
    repeated.
    """
    widths = [table.shape[1] for table in tables]
    stacked = np.empty((len(tables[0]), max(widths), len(tables)))
    for i, (table, width) in enumerate(zip(tables, widths, strict=True)):
        stacked[:, :width, i] = table
        stacked[:, width:, i] = table[:, -1:]
    return stacked
