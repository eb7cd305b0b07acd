"""Plans with their layers partitioned anew, by the time and memory of each layer in the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import numpy as np

from cost_models.estimate import CostModel
from cost_models.layer_amounts import LayerAmounts, layer_amounts
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.spec import ModelSpec
from cost_models.stage_layers import forward_layers, virtual_stages
from planner.constraints.layout_fields import layout_fields
from planner.evidence.uncertainty.memory_risk import Room
from planner.search.layer_partition import (
    FloatArray,
    LayerLoads,
    Stages,
    busiest_s,
    held_bytes,
    least_s,
    partition_layers,
)

# A partition is kept if it may come this close to the best one before it: closed forms of the
# pipeline are no more exact.
CLOSE = 1.005


# Plans, the step time of each, and the time that a partition of one must be able to beat.
ShortList = tuple[Sequence[ParallelPlan], FloatArray, float]


def repartitioned_plans(
    model: CostModel, plans: Sequence[ParallelPlan], seconds: FloatArray, worth_s: float, room: Room
) -> list[tuple[int, ParallelPlan]]:
    """See repartitioned_lists; of a single list."""
    (found,) = repartitioned_lists(model, [(plans, seconds, worth_s)], room)
    return found


def repartitioned_lists(
    model: CostModel, asked: Sequence[ShortList], room: Room
) -> list[list[tuple[int, ParallelPlan]]]:
    """(index, plan) of each list's plans whose layers may be partitioned for a shorter step.

    Each one found lowers the time to beat.  The time and memory of a partition are derived from
    those of its plan here, so the caller must price it.  Stages of two directions hold their layers
    twice and stay even.
    """
    places = [_by_stages(plans) for plans, *_ in asked]
    rows = [plans[i] for (plans, *_), own in zip(asked, places, strict=True) for i in own]
    if not rows:
        return [[] for _ in asked]
    amounts = layer_amounts(model.context, Plans.from_rows(rows))
    columns = count()
    return [
        list(_of_list(model, one, zip(own, columns), amounts, room))
        for one, own in zip(asked, places, strict=True)
    ]


def _by_stages(plans: Sequence[ParallelPlan]) -> list[int]:
    """Places of the plans with stages that may be uneven, those of as many stages together."""
    by_stages: dict[int, list[int]] = {}
    for place, plan in enumerate(plans):
        if plan.pp > 1 and SCHEDULES[plan.schedule].placement != "two-way":
            by_stages.setdefault(plan.pp, []).append(place)
    return [place for alike in by_stages.values() for place in alike]


def _of_list(
    model: CostModel, asked: ShortList, places: Iterable[tuple[int, int]], amounts: LayerAmounts,
    room: Room,
) -> Iterator[tuple[int, ParallelPlan]]:  # fmt: skip
    """The same of one list; places: of its plans, each with its column among the amounts."""
    plans, seconds, worth_s = asked
    for place, column in places:
        share = worth_s / seconds[place] if np.isfinite(worth_s) else 1.0
        for other, other_share in _repartitioned(model, plans[place], amounts, column, share, room):
            yield place, other
            worth_s = min(worth_s, CLOSE * other_share * float(seconds[place]))


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
    now_s = busiest_s(layers, stages, now)
    fits = np.all(held_bytes(layers, stages, now) <= stages.room_bytes)
    if fits and least_s(layers, stages) > share * now_s:
        return
    sizes = partition_layers(layers, stages, empty_ends=True)
    found = {sizes}
    if sizes and min(sizes) == 0:  # not every runtime has a stage without layers
        found.add(partition_layers(layers, stages))
    for other in found - {None, now}:
        assert other is not None
        yield relaid(plan, now, other), busiest_s(layers, stages, other) / now_s


def relaid(plan: ParallelPlan, now: tuple[int, ...], sizes: tuple[int, ...]) -> ParallelPlan:
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
    beside = amounts.total_bytes[: plan.pp, column] - held_bytes(layers, stages, now)
    return Stages(owner, fixed, stages.in_flight, room_bytes - beside)
