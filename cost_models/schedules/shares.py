"""Waiting of schedules without a closed form: simulated small, at about the right costs, scaled.

The search needs it for thousands of plans; the short list is simulated with its own stage times.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.grouping import group
from cost_models.plans import Plans
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Costs, Order, PipelineSchedule, Route
from cost_models.schedules.simulate import Times, run
from cost_models.sources import Array

# Times are rounded to this share of a micro-batch, pipelines cut to so many ranks, and steps to
# so many rounds of p micro-batches: beyond them only the scale changes.
COST_STEPS = 48
MOST_STAGES = 8
ROUNDS = 2


@lru_cache(maxsize=1 << 9)
def _actions(
    schedule_id: str, stages: int, chunks: int, micro_batches: int
) -> tuple[Order, list[Route]]:
    """The order of a schedule and its routes, which are the same at all costs."""
    schedule = SCHEDULES[schedule_id]
    routes = [schedule.route(stages, chunks, m) for m in range(micro_batches)]
    return schedule.order(stages, chunks, micro_batches), routes


@lru_cache(maxsize=1 << 14)
def _waiting(
    schedule_id: str, stages: int, chunks: int, micro_batches: int, forward: int, gradient: int
) -> tuple[float, float]:
    """(fixed waiting over the other ranks' work, waiting per micro-batch over one rank's work).

    forward, gradient: forward and input-gradient time in COST_STEPS-ths of a micro-batch.
    """
    schedule = SCHEDULES[schedule_id]
    visits = len(schedule.route(stages, chunks, 0)) / stages
    weight = max(COST_STEPS - forward - gradient, 0)
    times = Times.equal(stages, chunks, forward / visits, gradient / visits, weight / visits)
    work = float(forward + gradient + weight)

    def extra(count: int) -> float:
        order, routes = _actions(schedule_id, stages, chunks, count)
        return run(order, routes, times).makespan_s - count * work

    if schedule.allowed(stages, chunks, micro_batches):
        micro_batches = (ROUNDS + 1) * stages  # a cut of a legal step that is not one itself
    few = ROUNDS * stages + micro_batches % stages
    if micro_batches <= few:
        return extra(micro_batches) / ((stages - 1) * work), 0.0
    first = extra(few)
    pace = max(extra(few + stages) - first, 0.0) / stages
    return (first - few * pace) / ((stages - 1) * work), pace / work


def simulated_extra_s(
    schedule: PipelineSchedule,
    plans: Plans,
    micro_batches: NDArray[np.float64],
    costs: Costs,
    rows: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Seconds the busiest rank waits, for the plans where rows is True; 0 elsewhere."""
    size = (len(plans),)
    index = np.flatnonzero(np.broadcast_to(rows, size) & np.broadcast_to(plans.pp > 1, size))
    result = np.zeros(size)
    if not len(index):
        return result

    def at(values: Array) -> NDArray[np.float64]:
        return np.broadcast_to(np.asarray(values, dtype=np.float64), size)[index]

    forward, gradient, weight, others = (at(part) for part in costs)
    work = forward + gradient + weight
    stages = at(plans.pp).astype(np.int64)
    few = np.minimum(stages, MOST_STAGES)
    count = at(micro_batches).astype(np.int64)
    # A shorter pipeline with as many rounds and the same remainder within them.
    rounds, rest = np.divmod(count, stages)
    cut = np.where(stages > few, np.minimum(rounds, ROUNDS + 2) * few + rest % few, count)
    cut = np.maximum(np.minimum(cut, (ROUNDS + 1) * few + cut % few), 1)
    columns = (
        few,
        at(plans.vpp).astype(np.int64),
        cut,
        np.rint(forward / work * COST_STEPS).astype(np.int64),
        np.rint(gradient / work * COST_STEPS).astype(np.int64),
    )
    groups = group(*columns)
    keys = zip(*(column[groups.first].tolist() for column in columns), strict=True)
    waits = np.array([_waiting(schedule.id, *key) for key in keys])
    fixed, pace = groups.spread(waits).reshape(-1, 2).T
    result[index] = fixed * others + pace * count * work
    return result
