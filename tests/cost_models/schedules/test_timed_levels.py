"""Times of one schedule at many costs at once equal the simulator's at each of them."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Action, Kind
from cost_models.schedules.simulate import Deadlock, Times, run
from cost_models.schedules.timed_levels import Levels

FORWARD = np.array([1.0, 2.0, 0.3])
GRADIENT = np.array([1.0, 0.2, 2.0])
WEIGHT = np.array([1.0, 0.0, 0.5])


@pytest.mark.parametrize("name", SCHEDULES)
def test_equals_the_simulator(name: str) -> None:
    schedule, tried = SCHEDULES[name], 0
    for stages in (2, 3, 4, 6):
        for chunks in (1, 2, 3):
            for micro_batches in (1, stages, 2 * stages, 2 * stages + 3):
                if schedule.allowed(stages, chunks, micro_batches):
                    continue
                order = schedule.order(stages, chunks, micro_batches)
                routes = [schedule.route(stages, chunks, m) for m in range(micro_batches)]
                found = Levels(order, routes).makespans_s(FORWARD, GRADIENT, WEIGHT)
                for cost, makespan_s in zip(
                    zip(FORWARD, GRADIENT, WEIGHT, strict=True), found, strict=True
                ):
                    times = Times.equal(stages, chunks, *cost)
                    alone = run(order, routes, times).makespan_s
                    assert makespan_s == pytest.approx(alone, rel=1e-12)
                    tried += 1
    assert tried >= 9


def test_an_order_that_waits_for_ever_is_named() -> None:
    backward_first = ((Action(Kind.BACKWARD, 0, 0), Action(Kind.FORWARD, 0, 0)),)
    with pytest.raises(Deadlock, match="2 actions"):
        Levels(backward_first, [((0, 0),)])
