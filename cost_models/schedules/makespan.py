"""The makespan of a schedule's order: the one that `simulate` finds, about ten times faster.

Which action waits for which depends on the schedule alone, so the dependencies are cached; for
given times, one pass over the actions remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Kind, PipelineSchedule
from cost_models.schedules.simulate import Links, Times, simulate

# Longer orders are simulated: they seldom recur, and would fill the cache's memory.
MOST_ACTIONS = 20_000


def makespan_s(
    schedule: PipelineSchedule,
    stages: int,
    chunks: int,
    micro_batches: int,
    times: Times,
    links: Links,
) -> float:
    """Seconds from the first forward to the last backward of a schedule's own order.

    times: per rank and chunk.  Raises Deadlock.
    """
    if 3 * stages * chunks * micro_batches > MOST_ACTIONS:
        return simulate(schedule, stages, chunks, micro_batches, times, links).makespan_s
    waits = _waits(schedule.id, stages, chunks, micro_batches)
    both = times.input_gradient_s + times.weight_gradient_s
    # In the order of Kind.
    by_kind = np.stack([times.forward_s, both, times.input_gradient_s, times.weight_gradient_s])
    seconds = by_kind.ravel()[waits.seconds_of].tolist()
    latency, transfer, blocking = links.latency_s, links.transfer_s, links.blocking
    # By action: when its rank continues, when its message arrives, and when its link is free.  The
    # last entry (index -1) is the start, for actions that wait for nothing.
    size = len(seconds)
    free, arrived, link_free = ([0.0] * (size + 1) for _ in range(3))
    for i, (previous, source, sent_before) in enumerate(waits.actions):
        now, ready = free[previous], arrived[source]
        end = (ready if ready > now else now) + seconds[i]
        if sent_before is None:
            free[i] = arrived[i] = end
            continue
        busy = link_free[sent_before]
        done = (busy if busy > end else end) + transfer
        link_free[i], arrived[i] = done, done + latency
        free[i] = done if blocking else end
    return max(free[last] for last in waits.last)


@dataclass(frozen=True)
class _Waits:
    """The actions of all ranks, each after those that it waits for.

    actions: indices of (the action before it on its rank, the action whose result it needs, the
    action before it that sent on its link, or None if it sends nothing); -1: no such action.
    seconds_of: flat index of its seconds in an array of shape (kinds, ranks, chunks).  last: each
    rank's last action.
    """

    actions: tuple[tuple[int, int, int | None], ...]
    seconds_of: np.ndarray[tuple[int], np.dtype[np.int64]]
    last: tuple[int, ...]


@lru_cache(maxsize=64)
def _waits(name: str, stages: int, chunks: int, micro_batches: int) -> _Waits:
    schedule = SCHEDULES[name]
    equal = Times.equal(stages, chunks, 1.0, 1.0, 1.0)
    simulated = simulate(schedule, stages, chunks, micro_batches, equal)
    # Every action takes some time, so it ends after all that it waits for.
    rows = sorted(
        (end, rank, index)
        for rank, ends in enumerate(simulated.end_s)
        for index, end in enumerate(ends.tolist())
    )
    routes = [schedule.route(stages, chunks, batch) for batch in range(micro_batches)]
    spots = [{spot: position for position, spot in enumerate(route)} for route in routes]
    on_rank, on_link = [-1] * stages, dict[tuple[int, int], int]()
    forward, backward = dict[tuple[int, int], int](), dict[tuple[int, int], int]()
    actions: list[tuple[int, int, int | None]] = []
    seconds_of = []
    for i, (_, rank, index) in enumerate(rows):
        kind, batch, chunk = simulated.order[rank][index]
        position, end = spots[batch][rank, chunk], len(routes[batch]) - 1
        source, target = -1, rank
        if kind == Kind.FORWARD:
            forward[batch, position] = i
            source = forward.get((batch, position - 1), -1)
            target = routes[batch][min(position + 1, end)][0]
        elif kind != Kind.WEIGHT_GRADIENT:
            backward[batch, position] = i
            # The loss is on the last rank: its gradient needs no message.
            after = forward[batch, end] if position == end else backward[batch, position + 1]
            source, target = after, routes[batch][max(position - 1, 0)][0]
        sent_before = None if target == rank else on_link.get((rank, target), -1)
        if target != rank:
            on_link[rank, target] = i
        actions.append((on_rank[rank], source, sent_before))
        on_rank[rank] = i
        seconds_of.append((int(kind) * stages + rank) * chunks + chunk)
    return _Waits(tuple(actions), np.array(seconds_of), tuple(on_rank))
