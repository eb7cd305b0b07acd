"""Closed forms against the simulator: extra time, activations in flight, published figures."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Costs
from cost_models.schedules.interleaved import round_size
from cost_models.schedules.simulate import Simulation, Times, simulate

Seconds = tuple[float, float, float]

# Forward, input gradient, weight gradient of a rank: equal, measured-like, and each the longest.
COSTS: tuple[Seconds, ...] = (
    (1.0, 1.0, 1.0),
    (10.0, 12.0, 8.0),
    (1.0, 0.8, 1.2),
    (1.0, 2.0, 1.5),
    (3.0, 1.0, 1.0),
    (1.0, 3.0, 0.5),
    (0.2, 1.0, 4.0),
)
CHUNKS = {
    "naive": (1,),
    "gpipe": (1,),
    "1f1b": (1,),
    "interleaved-1f1b": (1, 2, 3, 4),
    "looped-bfs": (1, 2, 3, 4),
    "interleaved-zero-bubble": (1, 2, 3, 4),
    "zb-v": (2,),
    "dualpipe-v": (2,),
}
# From how many micro-batches on the closed form holds.
FROM = {
    "interleaved-zero-bubble": lambda p: p,
    "zb-v": lambda p: 2 * p - 1,
    "dualpipe-v": lambda p: 2 * p,
}


def run(name: str, p: int, v: int, m: int, costs: Seconds) -> Simulation:
    """Equal stages without communication; costs are a rank's, a chunk has its part of them."""
    f, i, w = (cost / v for cost in costs)
    return simulate(SCHEDULES[name], p, v, m, Times.equal(p, v, f, i, w))


def extra_s(name: str, p: int, v: int, m: int, costs: Seconds) -> float:
    form = SCHEDULES[name].extra_s
    assert form is not None
    return float(form(Costs(*costs, (p - 1) * sum(costs)), p, v, m))


def cases(name: str, v: int, largest: int = 6) -> Iterator[tuple[int, int]]:
    """Every allowed (p, m) of a small grid."""
    for p in range(1, largest + 1):
        for m in (*range(1, 2 * p + 3), 3 * p, 4 * p + 1):
            if not SCHEDULES[name].allowed(p, v, m):
                yield p, m


def check(name: str, p: int, v: int, m: int, costs: Seconds) -> None:
    simulated = run(name, p, v, m, costs).makespan_s - m * sum(costs)
    assert extra_s(name, p, v, m, costs) == pytest.approx(simulated, abs=1e-9 * m * sum(costs)), (
        p, v, m, costs,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "v"), [(n, v) for n, vs in CHUNKS.items() for v in vs])
class TestAgainstTheSimulator:
    @pytest.mark.one_in(2, quick=2)
    def test_extra_time(self, name: str, v: int) -> None:
        """Exact inside the region; outside not a number, so that nobody takes it for one."""
        first = FROM.get(name, lambda p: 1)
        for p, m in cases(name, v):
            for costs in COSTS:
                if m >= first(p):
                    check(name, p, v, m, costs)
                else:
                    assert extra_s(name, p, v, m, costs) != extra_s(name, p, v, m, costs)

    @pytest.mark.one_in(1, quick=3)
    def test_in_flight(self, name: str, v: int) -> None:
        """Exact for every rank and number of micro-batches, but for ZB-V between two regions."""
        schedule = SCHEDULES[name]
        for p, m in cases(name, v, 8):
            peaks = run(name, p, v, m, COSTS[1]).peak_units
            for rank in range(p):
                claimed = float(schedule.in_flight(rank, p, v, m))
                assert claimed >= peaks[rank] * (1 - 1e-12), (p, v, m, rank)
                if name != "zb-v" or not 3 * p - 1 <= 2 * m < 4 * p - 2:
                    assert claimed == pytest.approx(peaks[rank], rel=1e-12), (p, v, m, rank)


def drawn(rng: random.Random) -> Seconds:
    """Times over two decades; half of them close together, where most critical paths meet."""
    f = 10 ** rng.uniform(-1, 1)
    if rng.random() < 0.5:
        return f, f * 10 ** rng.uniform(-0.15, 0.15), f * 10 ** rng.uniform(-1, 0.15)
    return f, 10 ** rng.uniform(-1, 1), 10 ** rng.uniform(-1, 1)


def drawn_cases(name: str, largest: int) -> Iterator[tuple[int, int]]:
    for p in range(1, largest + 1):
        for m in (2 * p - 1, 2 * p, 2 * p + 1, 3 * p, 4 * p + 1):
            if not SCHEDULES[name].allowed(p, 2, m):
                yield p, m


# Forms found from critical paths rather than proven, and the one with an upper bound by hand.
FOUND = ("zb-v", "dualpipe-v", "interleaved-zero-bubble")


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUND)
def test_extra_time_at_drawn_times(name: str) -> None:
    rng = random.Random(1)
    for p, m in drawn_cases(name, 6):
        for _ in range(12):
            check(name, p, 2, m, drawn(rng))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FOUND)
def test_extra_time_at_many_drawn_times(name: str) -> None:
    rng = random.Random(2)
    for p, m in drawn_cases(name, 9):
        for _ in range(300):
            check(name, p, 2, m, drawn(rng))


@pytest.mark.parametrize("name", ["naive", "gpipe"])
def test_unequal_stages(name: str) -> None:
    """Stages of 1, 3 and 2 times the work: the middle one is the busiest."""
    times = Times.equal(3, 1, 1.0, 1.0, 1.0)
    for table in (times.forward_s, times.input_gradient_s, times.weight_gradient_s):
        table[:, 0] *= (1.0, 3.0, 2.0)
    schedule = SCHEDULES[name]
    assert schedule.extra_s is not None
    for m in (1, 2, 7):
        claimed = float(schedule.extra_s(Costs(3.0, 3.0, 3.0, 9.0), 3, 1, m))
        assert claimed == simulate(schedule, 3, 1, m, times).makespan_s - 9.0 * m


@pytest.mark.parametrize(
    ("name", "v", "makespan_s", "in_flight"),
    [
        ("gpipe", 1, 33, [8, 8, 8, 8]),
        ("1f1b", 1, 33, [4, 3, 2, 1]),
        ("interleaved-1f1b", 2, 57, [5.5, 4.5, 3.5, 2.5]),
        ("looped-bfs", 2, 57, [8, 8, 8, 8]),
        ("interleaved-zero-bubble", 1, 27, [4, 4, 4, 4]),
        ("interleaved-zero-bubble", 2, 51, [4, 4, 4, 4]),
        ("zb-v", 2, 51, [4, 4, 4, 4]),
        ("dualpipe-v", 2, 51, [4.5, 4.5, 4.5, 4.5]),
    ],
)
def test_torch_lists_on_another_clock(
    name: str, v: int, makespan_s: float, in_flight: list[float]
) -> None:
    """At p = 4, m = 8, one second per chunk action: torch's lists through another clock."""
    result = run(name, 4, v, 8, (v, v, v))
    assert result.makespan_s == makespan_s
    assert result.peak_units.tolist() == in_flight


@pytest.mark.parametrize("p", [1, 2, 8, 64])
@pytest.mark.parametrize("m", [64, 512])
def test_published_bubbles(p: int, m: int) -> None:
    """Shares of the ideal: (K-1)/K of the total, (p-1)/m, (p-1)/(m v), a third of 1F1B's."""
    ideal = 3.0 * m
    equal = (1.0, 1.0, 1.0)
    naive = extra_s("naive", p, 1, m, equal)
    assert naive / (naive + ideal) == pytest.approx((p - 1) / p)
    for name in ("gpipe", "1f1b"):
        assert extra_s(name, p, 1, m, equal) / ideal == pytest.approx((p - 1) / m)
    for v in (2, 4):
        for name in ("interleaved-1f1b", "looped-bfs"):
            assert extra_s(name, p, v, m, equal) / ideal == pytest.approx((p - 1) / (m * v))
    zero_bubble = extra_s("interleaved-zero-bubble", p, 1, m, equal)
    assert zero_bubble == pytest.approx(extra_s("1f1b", p, 1, m, equal) / 3)


@pytest.mark.parametrize("p", range(2, 10))
def test_zb_v_with_few_micro_batches(p: int) -> None:
    """From p micro-batches on, ZB-V waits p-1 chunk forwards at equal times, as with many."""
    for m in range(p, 2 * p + 1):
        assert run("zb-v", p, 2, m, (2.0, 2.0, 2.0)).makespan_s == 6 * m + p - 1


def test_rounds() -> None:
    """Flexible rounds as in torch: ten micro-batches on four stages are two rounds of five."""
    assert float(round_size(4, 10)) == 5
    assert float(round_size(4, 12)) == 4
    assert float(round_size(4, 3)) == 3
    assert "11 micro-batches on 4 stages" in SCHEDULES["interleaved-1f1b"].allowed(4, 2, 11)
