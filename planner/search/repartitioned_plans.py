"""Plans with their layers partitioned anew, by the time and memory of each layer in the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.estimate import CostModel
from cost_models.layer_amounts import LayerAmounts, layer_amounts
from cost_models.layers import layers_of
from cost_models.plans import IntArray, ParallelPlan, Plans, is_one_of, joined
from cost_models.schedules import SCHEDULES
from cost_models.spec import ModelSpec
from cost_models.stage_layers import forward_layers, virtual_stages
from planner.constraints import BoolArray
from planner.constraints.layout_fields import layout_fields
from planner.evidence.uncertainty.memory_risk import Room
from planner.search.layer_partition import (
    LayerLoads,
    Stages,
    held_bytes,
    least_s,
    pace_s,
    partition_layers,
)
from planner.search.partial_plans import ROUNDING
from planner.search.partition_tables import FloatArray

# A partition is kept if it may come this close to the best one before it: closed forms of the
# pipeline are no more exact.
CLOSE = 1.005
_TWO_WAY = tuple(name for name, own in SCHEDULES.items() if own.placement == "two-way")
_WAVES = tuple(name for name, own in SCHEDULES.items() if own.placement == "wave")


@dataclass(frozen=True)
class ShortList:
    """Plans, the step time of each, and the time that a partition of one must be able to beat."""

    plans: Plans
    seconds: FloatArray
    worth_s: float

    @property
    def shares(self) -> FloatArray:
        """The share of each plan's time that is to be beaten."""
        if not np.isfinite(self.worth_s):
            return np.ones(len(self.seconds))
        return self.worth_s / self.seconds


def repartitioned_plans(
    model: CostModel, lists: Sequence[ShortList], room: Room
) -> list[list[ParallelPlan]]:
    """The plans of each list with layers partitioned so that a step takes less time.

    Each one found lowers the time to beat.  The time and memory of a partition are derived from
    those of its plan here, so the caller must price it.  Stages of two directions hold their layers
    twice and stay even.
    """
    rows_by_list = [_by_stages(s.plans) for s in lists]
    if not any(map(len, rows_by_list)):
        return [[] for _ in lists]
    plans = joined([s.plans.take(at) for s, at in zip(lists, rows_by_list, strict=True)])
    amounts = layer_amounts(model.context, plans)
    shares = np.concatenate([s.shares[at] for s, at in zip(lists, rows_by_list, strict=True)])
    promising = ~_are_hopeless(model.context.model, plans, amounts, shares, room)
    results, start = [], 0
    for short, at in zip(lists, rows_by_list, strict=True):
        columns = start + np.flatnonzero(promising[start : start + len(at)])
        rows = [
            (plans.row(column), float(short.seconds[at[column - start]]), column)
            for column in columns.tolist()
        ]
        results.append(list(_of_short_list(model, rows, short.worth_s, amounts, room)))
        start += len(at)
    return results


def _by_stages(plans: Plans) -> IntArray:
    """Places of the plans with stages that may be uneven, those of as many stages together."""
    size = len(plans)
    both_ways = is_one_of(plans.schedule, "schedule", *_TWO_WAY) > 0
    rows = np.flatnonzero(np.broadcast_to((plans.pp > 1) & ~both_ways, (size,)))
    _, first, group = np.unique(
        np.broadcast_to(plans.pp, (size,))[rows], return_index=True, return_inverse=True
    )
    return rows[np.argsort(first[group], kind="stable")]


def _are_hopeless(
    spec: ModelSpec, plans: Plans, amounts: LayerAmounts, shares: FloatArray, room: Room
) -> BoolArray:
    """Plans that fit, and of which no partition takes a share of the time: sooner than one by one.

    The bounds of least_s, for all plans but those whose virtual stages wait for each other now.
    """
    layers, recompute_s = layers_of(spec), (amounts.redone > 0) * amounts.again_s
    each = amounts.layer_s + np.where(amounts.redone < 1, 0.0, recompute_s)
    predicted = np.array(layers.predicted, dtype=np.int64)
    first_s = amounts.embedding_s
    last_s = amounts.head_s + (amounts.layer_s + recompute_s)[predicted].sum(axis=0)
    least_s = np.maximum(np.array(layers.counts) @ each + first_s + last_s, 0.0) / plans.pp
    least_s = np.maximum(least_s, np.maximum(first_s, last_s))
    most_s = shares * amounts.busiest_s / ROUNDING
    # Whole layers that the ranks have time for, where all are alike.
    back = is_one_of(plans.schedule, "schedule", *_WAVES) * (plans.vpp % 2 == 0) > 0
    free_s = np.stack([most_s - first_s - back * last_s, most_s - (1 - back) * last_s, most_s])
    count = np.maximum(np.floor(free_s / each[0]), 0.0)
    room_for = count[0] + count[1] + (plans.pp - 2) * count[2]
    equal_layers = (np.ptp(each, axis=0) == 0.0) & ((amounts.redone == 0) | (amounts.redone == 1))
    too_slow = (least_s > most_s) | (equal_layers & (room_for < spec.num_layers))
    fits = amounts.total_bytes.max(axis=0) <= ROUNDING * room.of(plans)
    waits = (plans.vpp > 1) & (plans.stage_layers > 0)
    return np.asarray(fits & too_slow & ~waits, dtype=np.bool_)


def _of_short_list(
    model: CostModel,
    rows: Iterable[tuple[ParallelPlan, float, int]],
    worth_s: float,
    amounts: LayerAmounts,
    room: Room,
) -> Iterator[ParallelPlan]:
    """Repartitioned plans of one list; rows: its plans, step times, columns of the amounts."""
    for plan, seconds, column in rows:
        share = worth_s / seconds if np.isfinite(worth_s) else 1.0
        for other, other_share in _repartitioned(model, plan, amounts, column, share, room):
            yield other
            worth_s = min(worth_s, CLOSE * other_share * seconds)


def _repartitioned(
    model: CostModel,
    plan: ParallelPlan,
    amounts: LayerAmounts,
    column: int,
    share: float,
    room: Room,
) -> Iterator[tuple[ParallelPlan, float]]:
    """(plan, its busiest rank's time over that of the given plan) of better partitions.

    share: the largest ratio of interest, if the given plan fits.
    """
    spec = model.context.model
    now = forward_layers(spec.num_layers, plan)
    layers = _layer_loads(spec, plan, amounts, column, max(now))
    stages = _stages(model, plan, now, layers, amounts, column, room.of_plan(plan))
    now_s = pace_s(layers, stages, now)
    fits = np.all(held_bytes(layers, stages, now) <= stages.room_bytes)
    if fits and least_s(layers, stages) > share * now_s:
        return
    sizes = partition_layers(layers, stages, empty_ends=True)
    partitions = {sizes}
    if sizes and min(sizes) == 0:  # not every runtime has a stage without layers
        partitions.add(partition_layers(layers, stages))
    for other in partitions - {None, now}:
        assert other is not None
        yield with_stage_layers(plan, now, other), pace_s(layers, stages, other) / now_s


def with_stage_layers(
    plan: ParallelPlan, now: tuple[int, ...], sizes: tuple[int, ...]
) -> ParallelPlan:
    """A plan with other layers on its virtual stages; if it recomputed all, it still does."""
    fields = {"first_stage_layers": 0, "last_stage_layers": 0, "stage_layers": ()}
    fields |= layout_fields(plan.schedule, plan.pp, plan.vpp, sizes)
    if plan.recompute_num_layers >= max(now) and plan.recompute_method == "block":
        fields["recompute_num_layers"] = max(sizes)
    return ParallelPlan.model_validate({**plan.model_dump(), **fields})


def _layer_loads(
    spec: ModelSpec, plan: ParallelPlan, amounts: LayerAmounts, column: int, longest: int
) -> LayerLoads:
    """Time and memory of each layer as the plan runs it."""
    kind = np.array(layers_of(spec).order)
    n, uniform = plan.recompute_num_layers, plan.recompute_method == "uniform"
    every = plan.recompute == "full" and (uniform or n >= longest)
    # One input per checkpoint of n layers.
    inputs = float(amounts.input_bytes[column]) / (n if n and uniform else 1)
    return LayerLoads(
        seconds=amounts.layer_s[kind, column],
        again_s=amounts.again_s[kind, column],
        state_bytes=amounts.state_bytes[kind, column],
        saved_bytes=amounts.saved_bytes[kind, column],
        input_bytes=np.full(len(kind), inputs),
        redone=spec.num_layers if every else n,
    )


def _stages(
    model: CostModel, plan: ParallelPlan, now: tuple[int, ...], layers: LayerLoads,
    amounts: LayerAmounts, column: int, room_bytes: float,
) -> Stages:  # fmt: skip
    """The virtual stages, with the time and memory that do not depend on their layers."""
    spec = model.context.model
    _, owner, _ = virtual_stages(SCHEDULES[plan.schedule].placement, plan.pp, now)
    fixed = np.zeros(len(now))
    fixed[0] = amounts.embedding_s[column]
    predicted = np.array(layers_of(spec).predicted, dtype=np.int64)
    seconds = amounts.layer_s + amounts.again_s * (layers.redone > 0)
    fixed[-1] += amounts.head_s[column] + seconds[predicted, column].sum()
    stages = Stages(
        owner, fixed, amounts.in_flight[: plan.pp, column], np.full(plan.pp, room_bytes)
    )
    other_bytes = amounts.total_bytes[: plan.pp, column] - held_bytes(layers, stages, now)
    return Stages(owner, fixed, stages.in_flight, room_bytes - other_bytes)
