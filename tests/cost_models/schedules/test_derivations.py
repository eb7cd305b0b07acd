"""Forms derived here because no tool or paper text could be run against: what holds, what does not.

Each closed form equals the simulator over a grid of sizes and times inside its region.  Where a
published or recalled form differs, the difference is shown.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations

import numpy as np
import pytest

from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Action, Costs, Kind
from cost_models.schedules.building_block import INTERVAL, Block
from cost_models.schedules.simulate import Links, Simulation, Times, simulate
from cost_models.schedules.v_half import block as v_half_block
from cost_models.schedules.v_min import block as v_min_block

Seconds = tuple[float, float, float]


def grid(seed: int, count: int) -> list[Seconds]:
    """Forward, input and weight gradient of a chunk: chosen ones, then drawn ones.

    The first are the reference's; the others have each time longest, shortest, and tied.
    """
    chosen = [
        (1, 1, 1), (10, 12, 8), (5, 4, 6), (1, 2, 2), (1, 2, 1), (2, 1, 1), (1, 3, 1), (1, 1, 3),
        (3, 1, 2), (4, 1, 1), (1, 9, 1), (10, 1, 1), (1, 13, 14), (18, 12, 3), (8, 15, 16),
    ]  # fmt: skip
    rng = random.Random(seed)
    drawn = [(rng.randint(1, 20), rng.randint(1, 20), rng.randint(1, 20)) for _ in range(count)]
    return [(float(f), float(i), float(w)) for f, i, w in chosen + drawn]


def run(name: str, p: int, v: int, m: int, costs: Seconds) -> Simulation:
    """Equal stages without communication; costs are of one chunk."""
    return simulate(SCHEDULES[name], p, v, m, Times.equal(p, v, *costs))


def simulated_extra_s(name: str, p: int, v: int, m: int, costs: Seconds) -> float:
    visited = len(SCHEDULES[name].route(p, v, 0)) // p
    return run(name, p, v, m, costs).makespan_s - m * visited * sum(costs)


def claimed_extra_s(name: str, p: int, v: int, m: int, costs: Seconds) -> float:
    schedule = SCHEDULES[name]
    assert schedule.extra_s is not None
    visited = len(schedule.route(p, v, 0)) // p
    rank = [visited * seconds for seconds in costs]
    return float(schedule.extra_s(Costs(*rank, (p - 1) * sum(rank)), p, v, m))


def from_p(p: int) -> Iterator[int]:
    return iter(range(p, 3 * p + 2))


def rounds(p: int) -> Iterator[int]:
    return iter((p, 2 * p, 5 * p))


def two_ways(p: int) -> Iterator[int]:
    return iter((2 * p, 2 * p + 2, 5 * p + p % 2))


CLAIMS: list[tuple[str, int, tuple[int, ...], Callable[[int], Iterator[int]]]] = [
    ("zb-h1", 1, (1, 2, 3, 4, 7), from_p),
    ("zb-h2", 1, (1, 2, 3, 4, 7), from_p),
    ("dualpipe", 2, (2, 4, 6, 8, 14), two_ways),
    ("hanayo", 2, (1, 2, 3, 4, 8), rounds),
    ("hanayo", 4, (1, 2, 3, 4, 8), rounds),
    ("hanayo", 8, (2, 3, 6), rounds),
]


def check(name: str, v: int, p: int, m: int, costs: Seconds) -> None:
    assert SCHEDULES[name].allowed(p, v, m) == ""
    simulated = simulated_extra_s(name, p, v, m, costs)
    assert claimed_extra_s(name, p, v, m, costs) == pytest.approx(
        simulated, abs=1e-9 * m * v * sum(costs)
    ), (p, m, costs)


@pytest.mark.parametrize(("name", "v", "ranks", "batches"), CLAIMS)
class TestClosedForms:
    @pytest.mark.one_in(1, quick=3)
    def test_extra_time(
        self, name: str, v: int, ranks: tuple[int, ...], batches: Callable[[int], Iterator[int]]
    ) -> None:
        for p in ranks:
            for m in batches(p):
                for costs in grid(p, 4):
                    check(name, v, p, m, costs)

    @pytest.mark.exhaustive
    def test_extra_time_at_many_times(
        self, name: str, v: int, ranks: tuple[int, ...], batches: Callable[[int], Iterator[int]]
    ) -> None:
        for p in ranks:
            for m in batches(p):
                for costs in grid(100 + p, 200):
                    check(name, v, p, m, costs)

    def test_in_flight_is_exact(
        self, name: str, v: int, ranks: tuple[int, ...], batches: Callable[[int], Iterator[int]]
    ) -> None:
        for p in ranks:
            for m in batches(p):
                peaks = run(name, p, v, m, (10.0, 12.0, 8.0)).peak_units
                claimed = SCHEDULES[name].in_flight(np.arange(p), p, v, m)
                assert np.broadcast_to(claimed, p) == pytest.approx(peaks), (p, m)


class TestMessages:
    @pytest.mark.parametrize(
        ("name", "p", "v", "m"),
        [
            *(("interleaved-1f1b", p, v, m * p) for p in (2, 4) for v in (2, 5) for m in (1, 3)),
            *(("looped-bfs", p, v, 2 * p) for p in (2, 4) for v in (2, 5)),
            *(("dualpipe-v", p, 2, 2 * p) for p in (2, 4, 8)),
        ],
    )
    def test_what_filling_and_draining_shows(self, name: str, p: int, v: int, m: int) -> None:
        """Messages that others' chunks could hide: however many micro-batches, the same show."""
        schedule, times = SCHEDULES[name], Times.equal(p, v, 1.0, 1.0, 1.0)
        with_links = simulate(schedule, p, v, m, times, Links(latency_s=0.01)).makespan_s
        shown = (with_links - simulate(schedule, p, v, m, times).makespan_s) / 0.01
        told = (schedule.shown_messages or schedule.messages)(p, v)
        assert told == pytest.approx(shown, abs=1e-6)


class TestZeroBubble:
    @pytest.mark.parametrize(
        ("costs", "paper", "fitted", "derived"),
        [
            ((1.0, 1.0, 1.0), 1.0, 1.0, 1.0),
            ((10.0, 12.0, 8.0), 14.0, 14.0, 14.0),
            ((1.0, 0.8, 1.2), 0.6, 1.0, 1.0),
            ((1.0, 2.0, 2.0), 1.0, 1.0, 2.0),
            ((1.0, 3.0, 2.0), 2.0, 2.0, 3.0),
        ],
    )
    def test_three_forms_of_h1(
        self, costs: Seconds, paper: float, fitted: float, derived: float
    ) -> None:
        """Per rank: t_f + t_b - t_w (paper), t_f + max(0, t_b - t_w) (fitted), and ours.

        The fit misses the wait of rank 0 for its first gradient, where t_b > t_f and t_w > t_f.
        """
        f, i, w = costs
        assert f + i - w == pytest.approx(paper)
        assert f + max(0.0, i - w) == pytest.approx(fitted)
        for p in (2, 4, 8):
            for m in (p, 4 * p):
                assert simulated_extra_s("zb-h1", p, 1, m, costs) == pytest.approx(
                    (p - 1) * derived
                )

    def test_h2_span_is_the_papers(self) -> None:
        """The longest span has (p-1) max(0, t_f + t_b - 2 t_w) extra; the makespan has more."""
        for p in (2, 4, 8):
            for f, i, w in ((10.0, 12.0, 8.0), (1.0, 1.0, 1.0), (4.0, 5.0, 3.0)):
                result = run("zb-h2", p, 1, 4 * p, (f, i, w))
                ideal_s = 4 * p * (f + i + w)
                assert float(result.span_s.max()) - ideal_s == pytest.approx(
                    (p - 1) * max(0.0, f + i - 2 * w)
                )
                assert result.makespan_s - ideal_s == pytest.approx((p - 1) * f)


class TestDualPipe:
    @pytest.mark.parametrize("p", [4, 6, 8, 16])
    def test_readme_form_is_for_atomic_pairs(self, p: int) -> None:
        """(p/2 - 1)(F&B + B - 3 W) with F&B = F + B: t_b per hop more than F, then B, takes."""
        hops = p // 2 - 1
        for f, i, w in ((1.0, 1.0, 1.0), (12.0, 10.0, 8.0), (4.0, 4.0, 3.0)):
            readme = hops * ((f + i + w) + (i + w) - 3 * w)
            simulated = simulated_extra_s("dualpipe", p, 2, 2 * p, (f, i, w))
            assert simulated == pytest.approx(readme - hops * i)
        assert simulated_extra_s("dualpipe", p, 2, 2 * p, (1.0, 1.0, 1.0)) == hops

    def test_half_the_hops_of_dualpipe_v(self) -> None:
        """Each half of the ranks is a DualPipeV with whole stages as chunks."""
        for p in (2, 4, 8, 12):
            for costs in grid(1, 5):
                assert simulated_extra_s("dualpipe", p, 2, 2 * p, costs) == pytest.approx(
                    simulated_extra_s("dualpipe-v", p // 2, 2, p, costs)
                )

    def test_a_micro_batch_visits_each_rank_once(self) -> None:
        schedule = SCHEDULES["dualpipe"]
        assert schedule.route(4, 2, 0) == ((0, 0), (1, 0), (2, 0), (3, 0))
        assert schedule.route(4, 2, 1) == ((3, 1), (2, 1), (1, 1), (0, 1))


class TestHanayo:
    @pytest.mark.parametrize("waves", [1, 2, 4])
    @pytest.mark.parametrize("p", [2, 4, 8])
    def test_bubble_at_m_equal_p(self, p: int, waves: int) -> None:
        """At t_b = 2 t_f: (2p-2) / (3pw + 2p-2), not the quoted (2p-2) / (3pw + p-1)."""
        result = run("hanayo", p, 2 * waves, p, (1.0, 1.0, 1.0))
        ideal_s = p * 2 * waves * 3.0
        bubble = (result.makespan_s - ideal_s) / result.makespan_s
        assert bubble == pytest.approx((2 * p - 2) / (3 * p * waves + 2 * p - 2))
        assert bubble < (2 * p - 2) / (3 * p * waves + p - 1)

    @pytest.mark.parametrize("v", [2, 4, 8])
    def test_three_waits_of_the_last_rank(self, v: int) -> None:
        """Rank p-1 at m = p: start, wait for the first backward, end.  No order has less."""
        for p in (2, 4, 8):
            for f, b in ((1.0, 2.0), (1.0, 1.0), (3.0, 4.0)):
                result = run("hanayo", p, v, p, (f, b, 0.0))
                assert result.start_s[-1][0] == (p - 1) * f
                assert result.makespan_s - result.end_s[-1][-1] == (p - 1) * b
                idle_s = result.makespan_s - p * v * (f + b)
                assert idle_s == (p - 1) * (f + b + (b - f))

    def test_slots_never_collide(self) -> None:
        """In slots of `order`, a rank has one forward per slot, for even p, and all slots full."""
        for p in (2, 4, 8):
            for v in (2, 4, 8):
                for rank in range(p):
                    slots = sorted(
                        entry + chunk * p + (p - 1 - rank if chunk % 2 else rank)
                        for entry in range(0, 2 * p, 2)
                        for chunk in range(v)
                    )
                    assert len(set(slots)) == p * v
                    assert len({slot % (p * v) for slot in slots}) == p * v


def versions(actions: tuple[Action, ...]) -> list[int]:
    """Updates a rank has made when it starts each forward, one after every backward."""
    made, seen = 0, []
    for action in actions:
        if action.kind is Kind.FORWARD:
            seen.append(made)
        else:
            made += 1
    return seen


class TestAsynchronous:
    @pytest.mark.parametrize("name", ["pipedream", "pipedream-2bw"])
    def test_a_further_micro_batch_adds_the_slowest_rank_only(self, name: str) -> None:
        """So a step of m has no extra time once the pipeline is full; the fill comes once."""
        rng = np.random.default_rng(3)
        for p in (2, 3, 5):
            times = Times(*rng.integers(1, 9, (3, p, 1)).astype(np.float64))
            ends = [simulate(SCHEDULES[name], p, 1, m, times).makespan_s for m in range(p, 4 * p)]
            assert np.diff(ends) == pytest.approx(float(times.work_s.max()))
            # One fill and drain in all, at equal stages (p-1) T.
            assert simulated_extra_s(name, p, 1, 4 * p, (1.0, 2.0, 3.0)) == (p - 1) * 6.0
            assert claimed_extra_s(name, p, 1, 4 * p, (1.0, 1.0, 1.0)) == 0

    def test_pipedream_stashes_one_version_per_micro_batch_in_flight(self) -> None:
        """Rank r: micro-batch k runs with version k - (p-1-r); p - r versions are in use."""
        schedule, p, m = SCHEDULES["pipedream"], 5, 20
        for rank, actions in enumerate(schedule.order(p, 1, m)):
            behind = p - 1 - rank
            assert versions(actions) == [max(0, k - behind) for k in range(m)]
            used = versions(actions)
            for k in range(behind, m):
                stash = {used[j] for j in range(k - behind, k + 1)}
                assert len(stash) <= float(schedule.weight_copies(rank, p))
            assert len({used[j] for j in range(m - behind - 1, m)}) == p - rank

    def test_two_buffers_do_for_2bw(self) -> None:
        """With m >= p, micro-batches in flight on a rank are of two batches at most."""
        schedule = SCHEDULES["pipedream-2bw"]
        assert float(schedule.weight_copies(0, 4)) == 2
        for p in (2, 4, 7):
            for m in (p, p + 1, 2 * p):
                for actions in schedule.order(p, 1, 5 * m):
                    flying: set[int] = set()
                    for kind, batch, _ in actions:
                        if kind is Kind.FORWARD:
                            flying.add(batch)
                        else:
                            flying.remove(batch)
                        assert len({k // m for k in flying}) <= 2

    def test_told_to_be_asynchronous(self) -> None:
        stale = {name for name, schedule in SCHEDULES.items() if schedule.staleness}
        assert stale == {"pipedream", "pipedream-2bw"}
        assert "at least 8 micro-batches, got 7" in SCHEDULES["pipedream-2bw"].allowed(8, 1, 7)


class TestBuildingBlocks:
    @pytest.mark.parametrize("block", [v_half_block, v_min_block])
    def test_never_two_actions_in_a_slot(self, block: Callable[[int], Block]) -> None:
        """Repeated every six slots, on any rank of any number of ranks."""
        for p in range(1, 129):
            for rank in range(p):
                slots = block(p).slots(p, rank).values()
                assert all((a - b) % INTERVAL for a, b in combinations(slots, 2)), (p, rank)

    @pytest.mark.slow
    def test_makespan_at_equal_times(self) -> None:
        """In chunk times: V-Min 6m + 4p - 5; V-Half 6m + 3p - 5, odd p 6m + 3p - 4."""
        equal = (1.0, 1.0, 1.0)
        for p in range(2, 26):
            for m in (p, 2 * p, 3 * p + 1):
                assert simulated_extra_s("v-min", p, 2, m, equal) == 4 * p - 5
                if p not in (2, 4):
                    assert simulated_extra_s("v-half", p, 2, m, equal) == 3 * p - 5 + p % 2
        for m in (4, 9):
            assert simulated_extra_s("v-half", 2, 2, m, equal) == 1
            assert simulated_extra_s("v-half", 4, 2, m, equal) == 5

    @pytest.mark.slow
    def test_half_and_two_thirds_of_the_bubble_of_1f1b(self) -> None:
        """The paper's claims, with memory of about a half and a third of 1F1B's p."""
        equal = (1.0, 1.0, 1.0)
        for p in (8, 16, 32):
            plain = 2 * simulated_extra_s("1f1b", p, 1, 2 * p, equal)
            assert simulated_extra_s("v-half", p, 2, 2 * p, equal) < 0.5 * plain
            assert simulated_extra_s("v-min", p, 2, 2 * p, equal) < 0.67 * plain
            assert run("v-half", p, 2, 2 * p, equal).peak_units.max() == p / 2 + 1
            assert run("v-min", p, 2, 2 * p, equal).peak_units.max() == (p + 4) // 3

    @pytest.mark.slow
    def test_limits_hold_and_nothing_is_left_out(self) -> None:
        for name in ("v-half", "v-min"):
            for p in (*range(1, 20), 48, 64):
                for m in (1, 2, p, 2 * p):
                    result = run(name, p, 2, m, (1.0, 1.0, 1.0))
                    assert sum(map(len, result.order)) == 6 * p * m
                    limit = float(SCHEDULES[name].in_flight(0, p, 2, m))
                    assert result.peak_units.max() <= limit
