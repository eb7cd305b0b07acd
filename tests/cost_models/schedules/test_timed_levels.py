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


@pytest.mark.slow
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


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "interleaved-zero-bubble", "zb-v"])
def test_virtual_stages_that_are_not_alike(name: str) -> None:
    """Times by place of the route are those of its rank and chunk."""
    schedule, stages, batches = SCHEDULES[name], 3, 9
    chunks = 1 if name == "1f1b" else 2
    order = schedule.order(stages, chunks, batches)
    routes = [schedule.route(stages, chunks, m) for m in range(batches)]
    each = np.random.default_rng(3).integers(1, 9, size=(3, stages * chunks)).astype(np.float64)
    by_chunk = np.empty((3, stages, chunks))
    for place, (rank, chunk) in enumerate(routes[0]):
        by_chunk[:, rank, chunk] = each[:, place]
    (found,) = Levels(order, routes).makespans_s(*each[..., None])
    assert found == pytest.approx(run(order, routes, Times(*by_chunk)).makespan_s, rel=1e-12)


def test_an_order_that_waits_for_ever_is_named() -> None:
    backward_first = ((Action(Kind.BACKWARD, 0, 0), Action(Kind.FORWARD, 0, 0)),)
    with pytest.raises(Deadlock, match="2 actions"):
        Levels(backward_first, [((0, 0),)])
