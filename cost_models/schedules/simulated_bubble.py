"""Bubble time where no closed form holds, from scaled-down simulations.

Some schedules have none, and those of the others hold for chunks that are alike on a rank.  The
search needs the time for thousands of plans, so costs are rounded and steps cut short.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cost_models.keys import group
from cost_models.plans import Plans
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Costs, PipelineSchedule
from cost_models.schedules.timed_levels import Levels
from cost_models.sources import Array

# Times are rounded to 1 / COST_STEPS of a micro-batch, pipelines are cut to MOST_STAGES ranks, and
# steps to ROUNDS rounds of p micro-batches: beyond them only the scale changes.
COST_STEPS = 48
MOST_STAGES = 8
ROUNDS = 2
# Where chunks differ, seconds are rounded to 1 / UNEVEN_STEPS of a mean chunk.
UNEVEN_STEPS = 32
# Longer steps would take seconds to lay out.
MOST_ACTIONS = 200_000


class _Step:
    """A scaled-down step of a schedule, with a cache of its bubble time by cost.

    Costs are the forward and the input gradient in COST_STEPS-ths of a micro-batch; the weight
    gradient is the rest.  Bubble times have the same unit.
    """

    def __init__(self, schedule_id: str, stages: int, chunks: int, micro_batches: int) -> None:
        schedule = SCHEDULES[schedule_id]
        routes = [schedule.route(stages, chunks, m) for m in range(micro_batches)]
        self.visits = len(routes[0]) / stages
        self.micro_batches = micro_batches
        self.levels = Levels(schedule.order(stages, chunks, micro_batches), routes)
        self.known = np.full((COST_STEPS + 1, COST_STEPS + 1), np.nan)

    def waiting(
        self, forward: NDArray[np.int64], gradient: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Bubble time of the step: its makespan less the work of its micro-batches."""
        new = np.isnan(self.known[forward, gradient])
        if new.any():
            costs = np.unique(np.stack([forward[new], gradient[new]]), axis=1)
            weight = np.maximum(COST_STEPS - costs.sum(axis=0), 0)
            took = self.levels.makespans_s(*(np.stack([*costs, weight]) / self.visits))
            self.known[*costs] = took - self.micro_batches * (costs.sum(axis=0) + weight)
        return self.known[forward, gradient]


_step = lru_cache(maxsize=1 << 10)(_Step)


def _wait_coefficients(
    schedule: PipelineSchedule, stages: int, chunks: int, micro_batches: int,
    forward: NDArray[np.int64], gradient: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """(fixed wait / the other ranks' work, wait per micro-batch / one rank's work).

    forward, gradient: forward and input-gradient time in COST_STEPS-ths of a micro-batch.
    """
    work = np.maximum(forward + gradient, COST_STEPS)

    def extra(count: int) -> NDArray[np.float64]:
        return _step(schedule.id, stages, chunks, count).waiting(forward, gradient)

    if schedule.allowed(stages, chunks, micro_batches):
        micro_batches = (ROUNDS + 1) * stages  # the cut step is refused, though the full one is not
    few = ROUNDS * stages + micro_batches % stages
    if micro_batches <= few:
        return extra(micro_batches) / ((stages - 1) * work), np.zeros(len(work))
    first = extra(few)
    pace = np.maximum(extra(few + stages) - first, 0.0) / stages
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
    # A shorter pipeline with as many rounds and a remainder reduced modulo its ranks.
    rounds, rest = np.divmod(count, stages)
    cut = np.where(stages > few, np.minimum(rounds, ROUNDS + 2) * few + rest % few, count)
    cut = np.maximum(np.minimum(cut, (ROUNDS + 1) * few + cut % few), 1)
    shares = (np.rint(part / work * COST_STEPS).astype(np.int64) for part in (forward, gradient))
    columns = (few, at(plans.vpp).astype(np.int64), cut, *shares)
    groups = group(*columns)
    *lengths, forwards, gradients = (column[groups.first] for column in columns)
    waits = np.empty((len(forwards), 2))
    steps = group(*lengths)
    for number, first in enumerate(steps.first):
        of = steps.inverse == number
        p, chunks, m = (int(column[first]) for column in lengths)
        seconds = _wait_coefficients(schedule, p, chunks, m, forwards[of], gradients[of])
        waits[of] = np.stack(seconds, axis=1)
    fixed, pace = groups.spread(waits).reshape(-1, 2).T
    result[index] = fixed * others + pace * count * work
    return result


def uneven_extra_s(
    schedule: PipelineSchedule,
    stages: int,
    chunks: int,
    micro_batches: NDArray[np.float64],
    forward_s: NDArray[np.float64],
    input_gradient_s: NDArray[np.float64],
    weight_gradient_s: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Seconds the busiest rank waits in plans whose ranks have chunks that are not alike.

    Seconds are of one micro-batch on each virtual stage, shape (virtual stages, plans).
    """
    seconds = np.stack([forward_s, input_gradient_s, weight_gradient_s])
    # Summed in order: a plan costs the same alone as among others.
    unit = np.cumsum(seconds.reshape(-1, seconds.shape[-1]), axis=0)[-1]
    unit = unit / (len(forward_s) * UNEVEN_STEPS)
    rounded = np.rint(seconds / unit).astype(np.int64)
    count = micro_batches.astype(np.int64)
    counts, place = np.unique(count, return_inverse=True)
    few = np.array([_simulated_micro_batches(schedule, stages, chunks, m) for m in counts.tolist()])
    few = few[place]
    longer = (count > few).astype(np.int64)
    groups = group(few, longer, *rounded.reshape(-1, len(unit)))
    extra, pace = np.zeros(len(groups.first)), np.zeros(len(groups.first))
    cut, costs = few[groups.first], rounded[..., groups.first]
    for m in np.unique(cut).tolist():
        of = np.flatnonzero(cut == m)
        extra[of] = _uneven_wait(schedule.id, stages, chunks, m, costs[..., of])
        more = of[longer[groups.first[of]] > 0]
        if len(more):
            wait = _uneven_wait(schedule.id, stages, chunks, m + stages, costs[..., more])
            pace[more] = np.maximum(wait - extra[more], 0.0) / stages
    fixed, later = groups.spread(extra), (count - few) * groups.spread(pace)
    return np.asarray(unit * (fixed + later), dtype=np.float64)


def first_rounds(
    schedule: PipelineSchedule, stages: int, chunks: int, micro_batches: int, least: int, most: int
) -> int:
    """Micro-batches of the first rounds of a step, so that one more round can be run too.

    From `least` to `most` rounds of p, with the step's remainder.  A cut of a legal step need not
    be one itself; then `most` rounds without the remainder.
    """
    cuts = (rounds * stages + micro_batches % stages for rounds in range(least, most + 1))
    legal = (
        cut
        for cut in cuts
        if not any(schedule.allowed(stages, chunks, count) for count in (cut, cut + stages))
    )
    return next(legal, most * stages)


def _simulated_micro_batches(
    schedule: PipelineSchedule, stages: int, chunks: int, micro_batches: int
) -> int:
    """Micro-batches of a step that is simulated whole, or in its first rounds."""
    few = first_rounds(schedule, stages, chunks, micro_batches, 1, ROUNDS)
    whole = micro_batches <= few and not schedule.allowed(stages, chunks, micro_batches)
    return micro_batches if whole else few


def _uneven_wait(
    schedule_id: str, stages: int, chunks: int, micro_batches: int, costs: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Makespans less the work of the busiest rank; costs: shape (3, virtual stages, costs)."""
    step = _step(schedule_id, stages, chunks, micro_batches)
    owner = np.array([rank for rank, _ in SCHEDULES[schedule_id].route(stages, chunks, 0)])
    work = [costs.sum(axis=0)[owner == rank].sum(axis=0) for rank in range(stages)]
    busiest: NDArray[np.float64] = np.max(work, axis=0)
    return step.levels.makespans_s(*costs.astype(np.float64)) - micro_batches * busiest
