"""Waiting as the search has it against the simulator at the very size and times."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Costs
from cost_models.schedules.simulate import Times, simulate
from cost_models.schedules.simulated_bubble import simulated_extra_s

Seconds = tuple[float, float, float]
# Multiples of the 48ths to which times are rounded.
EXACT: tuple[Seconds, ...] = ((1.0, 1.0, 1.0), (0.5, 0.25, 0.25), (12.0, 30.0, 6.0))


def waited(name: str, pp: int, m: int, costs: Seconds, others: float = 1.0) -> float:
    """By the shares; others: work of another rank over that of the busiest one."""
    plans = Plans.from_rows([ParallelPlan(pp=pp, vpp=2, schedule=name)])
    total = Costs(*costs, (pp - 1) * sum(costs) * others)
    rows = np.array([True])
    return float(simulated_extra_s(SCHEDULES[name], plans, np.array([float(m)]), total, rows)[0])


def simulated(name: str, pp: int, m: int, costs: Seconds) -> float:
    times = Times.equal(pp, 2, *(cost / 2 for cost in costs))
    return simulate(SCHEDULES[name], pp, 2, m, times).makespan_s - m * sum(costs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v-half", "v-min"])
@pytest.mark.parametrize("costs", EXACT)
def test_up_to_two_rounds_it_is_simulated(name: str, costs: Seconds) -> None:
    for pp in (2, 3, 8):
        for m in (1, pp, 2 * pp, 2 * pp + 1, 3 * pp - 1):
            assert waited(name, pp, m, costs) == pytest.approx(simulated(name, pp, m, costs))


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_further_rounds_wait_at_the_pace_of_the_third(name: str) -> None:
    """In (2 + k) rounds and r more: what 2 and r wait, and k times what the third adds."""
    for costs in EXACT:
        for pp, m in ((4, 12), (4, 22), (3, 31), (8, 40)):
            few = 2 * pp + m % pp
            first, next_round = (simulated(name, pp, n, costs) for n in (few, few + pp))
            expected = first + (m - few) / pp * max(next_round - first, 0.0)
            assert waited(name, pp, m, costs) == pytest.approx(expected), (costs, pp, m)


@pytest.mark.parametrize("name", ["v-half", "v-min"])
def test_longer_pipelines_are_scaled_from_eight_ranks(name: str) -> None:
    """At equal times the waiting is linear in p - 1, but for the turns."""
    for pp in (16, 20):
        expected = simulated(name, pp, 4 * pp, EXACT[0])
        assert waited(name, pp, 4 * pp, EXACT[0]) == pytest.approx(expected, rel=0.15)


def test_times_are_rounded_to_a_48th() -> None:
    """As the work is kept, a third of a 48th more or less changes nothing."""
    third = 1 / 144
    moved = (1 / 3 + third, 1 / 3 - third / 2, 1 / 3 - third / 2)
    thirds = (1 / 3, 1 / 3, 1 / 3)
    assert waited("v-half", 4, 11, moved) == pytest.approx(waited("v-half", 4, 11, thirds))
    assert waited("v-half", 4, 11, moved) != pytest.approx(simulated("v-half", 4, 11, moved))


def test_scale_and_the_other_ranks() -> None:
    """Twice the times wait twice as long; others half as busy make the fixed part half."""
    plain = waited("v-half", 4, 7, EXACT[1])
    twice = (1.0, 0.5, 0.5)
    assert waited("v-half", 4, 7, twice) == pytest.approx(2 * plain)
    assert waited("v-half", 4, 7, EXACT[1], others=0.5) == pytest.approx(plain / 2)


def test_only_the_rows_asked_for_and_only_pipelines() -> None:
    """Rows of many sizes at once have what each has alone."""
    sizes = [(1, 8), (2, 8), (4, 9), (4, 30), (8, 16), (16, 70), (2, 8)]
    plans = Plans.from_rows([ParallelPlan(pp=pp, vpp=2, schedule="v-min") for pp, _ in sizes])
    m = np.array([float(count) for _, count in sizes])
    work = np.array([[1.0, 2.0, 0.5, 3.0, 1.0, 1.0, 5.0]]).T * EXACT[2]
    others = (plans.pp - 1) * work.sum(axis=1)
    rows = np.array([True] * 6 + [False])
    costs = Costs(*work.T, others)
    found = simulated_extra_s(SCHEDULES["v-min"], plans, m, costs, rows)
    alone = [
        waited("v-min", pp, count, tuple(row)) for (pp, count), row in zip(sizes, work, strict=True)
    ]
    assert found.tolist() == pytest.approx([0.0, *alone[1:6], 0.0])
    assert alone[1] > 0
    assert not simulated_extra_s(SCHEDULES["v-min"], plans, m, costs, rows & False).any()
