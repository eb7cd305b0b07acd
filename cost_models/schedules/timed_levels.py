"""The makespan of one order for many costs at once, with messages of no time.

The order is laid out once, in levels of actions that wait only for earlier levels, and each level
is computed for all costs together.  `simulate.run` is the general case, and the tests compare the
two.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cost_models.schedules.base import Kind, Order, Route
from cost_models.schedules.simulate import Deadlock

FloatArray = NDArray[np.float64]


class Levels:
    """An order over its routes, as levels of actions.  Raises Deadlock if ranks wait for ever."""

    def __init__(self, order: Order, routes: list[Route]) -> None:
        length = len(routes[0])
        positions = {route: {spot: i for i, spot in enumerate(route)} for route in set(routes)}
        # Number 0 is the start of the step, for actions that wait for nothing else.
        kinds, places, previous, needed, level = [0], [0], [0], [0], [0]
        forward: dict[tuple[int, int], int] = {}
        backward: dict[tuple[int, int], int] = {}
        last, cursor = [0] * len(order), [0] * len(order)
        waiting = sum(map(len, order))
        while waiting:
            waiting_before = waiting
            for rank, actions in enumerate(order):
                while cursor[rank] < len(actions):
                    kind, batch, chunk = actions[cursor[rank]]
                    at = positions[routes[batch]][rank, chunk]
                    need: int | None = 0
                    if kind == Kind.FORWARD:
                        need = forward.get((batch, at - 1)) if at else 0
                    elif kind != Kind.WEIGHT_GRADIENT:
                        # The loss is where the forward ends: its gradient needs no message.
                        ends = at + 1 == length
                        need = forward.get((batch, at)) if ends else backward.get((batch, at + 1))
                    if need is None:
                        break
                    number = len(kinds)
                    kinds.append(kind)
                    places.append(at)
                    previous.append(last[rank])
                    needed.append(need)
                    level.append(1 + max(level[last[rank]], level[need]))
                    if kind == Kind.FORWARD:
                        forward[batch, at] = number
                    elif kind != Kind.WEIGHT_GRADIENT:
                        backward[batch, at] = number
                    last[rank] = number
                    cursor[rank] += 1
                    waiting -= 1
            if waiting == waiting_before:
                raise Deadlock(f"{waiting} actions wait for ever")
        by_level = np.argsort(level, kind="stable")
        row = np.empty_like(by_level)
        row[by_level] = np.arange(len(by_level))
        self.kinds = np.array(kinds)[by_level]
        self.places = np.array(places)[by_level]
        self.length = length
        self.before = row[previous][by_level]
        self.needed = row[needed][by_level]
        self.starts = np.searchsorted(np.array(level)[by_level], np.arange(1, max(level) + 2))

    def makespans_s(
        self, forward_s: ArrayLike, input_gradient_s: ArrayLike, weight_gradient_s: ArrayLike
    ) -> FloatArray:
        """Seconds of the step at each cost: the last axis of the arguments.

        They are times of one chunk on one rank, of all alike or of each place of a route: shape
        (costs,) or (places, costs).
        """
        forward, gradient, weight = np.broadcast_arrays(
            np.atleast_1d(forward_s), input_gradient_s, weight_gradient_s
        )
        # In the order of Kind.
        kinds = np.array([forward, gradient + weight, gradient, weight], dtype=np.float64)
        costs = kinds.shape[-1]
        seconds = np.broadcast_to(kinds.reshape(4, -1, costs), (4, self.length, costs))
        ends = np.zeros((len(self.kinds), costs))
        for first, after in zip(self.starts[:-1], self.starts[1:], strict=True):
            rows = slice(first, after)
            begin = np.maximum(ends[self.before[rows]], ends[self.needed[rows]])
            np.add(begin, seconds[self.kinds[rows], self.places[rows]], out=ends[rows])
        longest: FloatArray = ends.max(axis=0)
        return longest
