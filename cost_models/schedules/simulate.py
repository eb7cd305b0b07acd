"""A simulator for any action order: action times, causes of idle time, and activations held.

Ranks run their actions strictly in order; an action starts when its rank is free and its input
has arrived.  A message leaves when its action ends, queues on its link behind earlier ones
(finite capacity), and arrives after transfer and latency; a blocking send also holds its rank
until the transfer is done.  Everything is deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.schedules.base import Action, Kind, Order, PipelineSchedule, Route

FloatArray = NDArray[np.float64]
# Causes of idle time, in the order of Simulation.idle_s.
IDLE_CAUSES = ("fill", "forward", "backward", "communication", "drain")
_NEVER = float("inf")
_FORWARD, _BACKWARD, _WEIGHT_GRADIENT = Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT_GRADIENT


@dataclass(frozen=True)
class Times:
    """Seconds of one chunk on one rank: arrays of shape (ranks, chunks)."""

    forward_s: FloatArray
    input_gradient_s: FloatArray
    weight_gradient_s: FloatArray

    @classmethod
    def equal(
        cls, stages: int, chunks: int, forward_s: float, input_gradient_s: float,
        weight_gradient_s: float,
    ) -> Times:  # fmt: skip
        """Equal times on every rank and chunk."""
        shape = (stages, chunks)
        return cls(
            np.full(shape, forward_s),
            np.full(shape, input_gradient_s),
            np.full(shape, weight_gradient_s),
        )

    @property
    def work_s(self) -> FloatArray:
        """Seconds of one micro-batch per rank."""
        total: FloatArray = (self.forward_s + self.input_gradient_s + self.weight_gradient_s).sum(
            axis=1
        )
        return total


@dataclass(frozen=True)
class Links:
    """Messages between ranks: latency, seconds on the link, and whether the sender waits."""

    latency_s: float = 0.0
    transfer_s: float = 0.0
    blocking: bool = False


@dataclass(frozen=True)
class Simulation:
    """The result, per rank: start and end of its actions in order; idle seconds by IDLE_CAUSES.

    peak_units: most activation units held at once (a unit: one rank's share of one micro-batch);
    peak_at_s: when the rank holds them.
    """

    order: Order
    start_s: tuple[FloatArray, ...]
    end_s: tuple[FloatArray, ...]
    makespan_s: float
    span_s: FloatArray
    idle_s: FloatArray
    peak_units: FloatArray
    peak_at_s: FloatArray

    held_units: tuple[FloatArray, ...]
    """Units held by each rank after each of its actions."""


class Deadlock(ValueError):
    """An order in which every rank waits for another one."""


def simulate(
    schedule: PipelineSchedule,
    stages: int,
    chunks: int,
    micro_batches: int,
    times: Times,
    links: Links = Links(),
    reduce_s: FloatArray | float = 0.0,
    freed_at_input: float | None = None,
) -> Simulation:
    """Run a schedule's own order.

    times: per rank and chunk, including the extra work of the first and last stage.  reduce_s:
    gradient reduction after each rank's last action.  freed_at_input: share of an activation
    freed at the input gradient, the rest at the weight gradient; None: the schedule's own.
    Raises Deadlock.
    """
    share = freed_at_input
    if share is None:
        share = 1.0 if schedule.freed_at == "input gradient" else 0.0
    routes = [schedule.route(stages, chunks, m) for m in range(micro_batches)]
    order = schedule.order(stages, chunks, micro_batches)
    return run(order, routes, times, links, reduce_s, share)


def _refuse_deadlock(order: Order, cursor: Sequence[int]) -> None:
    stuck = [rank for rank, actions in enumerate(order) if cursor[rank] < len(actions)]
    if stuck:
        action = order[stuck[0]][cursor[stuck[0]]]
        raise Deadlock(f"ranks {stuck[:8]} wait for ever at {action}")


def run(
    order: Order,
    routes: list[Route],
    times: Times,
    links: Links = Links(),
    reduce_s: FloatArray | float = 0.0,
    freed_at_input: float = 0.0,
) -> Simulation:
    """Run any order over any routes; see simulate."""
    ranks = len(order)
    state = _Run(order, routes, times, links)
    waiting = list(range(ranks))
    while waiting:
        waiting += state.advance(waiting.pop())
    _refuse_deadlock(order, state.cursor)
    starts = state.starts
    finish = np.array(state.clock) + np.broadcast_to(np.asarray(reduce_s, np.float64), (ranks,))
    makespan = float(finish.max())
    state.idle_s[:, 4] = makespan - finish
    begin = np.array([row[0] if row else 0.0 for row in starts])
    visits = state.length / ranks
    held_units = tuple(_units_held(actions, visits, freed_at_input) for actions in order)
    worst = [int(np.argmax(row)) if len(row) else 0 for row in held_units]
    peaks = [row[w] if len(row) else 0.0 for row, w in zip(held_units, worst, strict=True)]
    return Simulation(
        order=order,
        start_s=tuple(np.array(row) for row in starts),
        end_s=tuple(np.array(row) for row in state.ends),
        makespan_s=makespan,
        span_s=finish - begin,
        idle_s=state.idle_s,
        peak_units=np.array(peaks),
        peak_at_s=np.array([row[w] if row else 0.0 for row, w in zip(starts, worst, strict=True)]),
        held_units=held_units,
    )


class _Run:
    """The state of a simulation: the clock of each rank, and the inputs that have arrived.

    ready, sent: by direction (forward, backward), micro-batch and position on its route: when the
    input is on its rank, and when the rank before had computed it.
    """

    def __init__(self, order: Order, routes: list[Route], times: Times, links: Links) -> None:
        ranks, self.length = len(order), len(routes[0])
        self._order, self._links = order, links
        # The position of (rank, chunk) on each distinct route: one, or one per direction.
        kinds: dict[Route, int] = {}
        self._route_of = [kinds.setdefault(route, len(kinds)) for route in routes]
        self._positions = [{spot: i for i, spot in enumerate(route)} for route in kinds]
        self._spots = list(kinds)
        gradient, weight = times.input_gradient_s, times.weight_gradient_s
        # By kind; `advance` adds the weight gradient's seconds to a fused backward.
        by_kind = (times.forward_s, gradient, gradient, weight)
        self._seconds = [seconds.tolist() for seconds in by_kind]
        self._ready, self._sent = (
            [[[_NEVER] * self.length for _ in routes] for _ in ("forward", "backward")]
            for _ in ("ready", "sent")
        )
        for batch in range(len(routes)):
            self._ready[0][batch][0] = self._sent[0][batch][0] = 0.0
        self._link_free_s: dict[tuple[int, int], float] = {}
        self.clock, self.cursor = [0.0] * ranks, [0] * ranks
        self.starts: list[list[float]] = [[] for _ in range(ranks)]
        self.ends: list[list[float]] = [[] for _ in range(ranks)]
        self.idle_s = np.zeros((ranks, len(IDLE_CAUSES)))

    def advance(self, rank: int) -> list[int]:
        """Run a rank's actions until one lacks its input; returns the ranks it sent messages to."""
        actions, done, now = self._order[rank], self.cursor[rank], self.clock[rank]
        reached = []
        while done < len(actions):
            kind, batch, chunk = actions[done]
            position = self._positions[self._route_of[batch]][rank, chunk]
            start = now
            if kind != _WEIGHT_GRADIENT:
                back = kind != _FORWARD
                ready = self._ready[back][batch][position]
                if ready == _NEVER:
                    break
                if ready > now:
                    start = ready
                    self._record_idle(rank, back, now, start, self._sent[back][batch][position])
            now = start + self._seconds[kind][rank][chunk]
            if kind == _BACKWARD:
                now += self._seconds[_WEIGHT_GRADIENT][rank][chunk]
            self.starts[rank].append(start)
            self.ends[rank].append(now)
            done += 1
            if kind != _WEIGHT_GRADIENT:
                target, arrival = self._pass_on(rank, back, batch, position, now)
                if target != rank:
                    reached.append(target)
                    if self._links.blocking:
                        now = arrival - self._links.latency_s
        self.cursor[rank], self.clock[rank] = done, now
        return reached

    def _record_idle(self, rank: int, back: bool, now: float, start: float, sent: float) -> None:
        """Record idle time by cause: the fill, a late message, or the sender's computation."""
        row = self.idle_s[rank]
        if not self.starts[rank]:
            row[0] += start - now
        else:
            late = start - max(now, min(sent, start))
            row[3] += late
            row[2 if back else 1] += start - now - late

    def _pass_on(
        self, rank: int, back: bool, batch: int, position: int, end: float
    ) -> tuple[int, float]:
        """Pass a result to the next position on its route; returns (rank there, arrival time)."""
        if not back and position + 1 == self.length:
            # The loss is here: its gradient needs no message.
            self._ready[1][batch][position] = self._sent[1][batch][position] = end
            return rank, end
        if back and position == 0:
            return rank, end
        following = position - 1 if back else position + 1
        target = self._spots[self._route_of[batch]][following][0]
        arrival = end
        if target != rank:
            # A link serves one message at a time.
            free = max(end, self._link_free_s.get((rank, target), 0.0)) + self._links.transfer_s
            self._link_free_s[rank, target] = free
            arrival = free + self._links.latency_s
        self._ready[back][batch][following] = arrival
        self._sent[back][batch][following] = end
        return target, arrival


def _units_held(actions: tuple[Action, ...], visits: float, freed_at_input: float) -> FloatArray:
    """Units a rank holds after each of its actions; a forward takes its share at its start.

    visits: chunks that a micro-batch visits on one rank; each keeps 1/visits of a unit.
    """
    change = (1.0, -1.0, -freed_at_input, freed_at_input - 1.0)
    steps = np.array([change[action.kind] for action in actions])
    return np.cumsum(steps) / visits
