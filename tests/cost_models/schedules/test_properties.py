"""Laws that every schedule in the registry obeys, over drawn sizes, times and links."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Action, Costs, Kind, PipelineSchedule
from cost_models.schedules.makespan import makespan_s
from cost_models.schedules.simulate import Links, Simulation, Times, simulate
from tests.fixtures.tiers import examples

every_schedule = pytest.mark.parametrize("name", list(SCHEDULES))
drawn = settings(max_examples=examples(100), deadline=None, derandomize=True)
EPSILON_S = 1e-9


class Size(NamedTuple):
    stages: int
    chunks: int
    micro_batches: int


def sizes(name: str) -> st.SearchStrategy[Size]:
    """Every allowed size up to 6 ranks and a few rounds of micro-batches."""
    schedule = SCHEDULES[name]
    return st.sampled_from(
        [
            Size(p, v, m)
            for p in range(1, 7)
            for v in schedule.chunk_counts or (1, 2, 3, 4)
            for m in (*range(1, 2 * p + 3), 3 * p, 4 * p)
            if not schedule.allowed(p, v, m)
        ]
    )


@st.composite
def unequal_times(draw: st.DrawFn, size: Size) -> Times:
    """Seconds per rank and chunk, none of them zero."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (3, size.stages, size.chunks)
    return Times(*rng.integers(1, 10, shape).astype(np.float64))


links = st.builds(Links, st.sampled_from([0.0, 0.5]), st.sampled_from([0.0, 2.0]), st.booleans())


@pytest.mark.one_in(1, quick=4)
@every_schedule
@drawn
@given(data=st.data())
def test_a_makespan_alone_is_that_of_the_simulation(name: str, data: st.DataObject) -> None:
    size = data.draw(sizes(name))
    asked = SCHEDULES[name], *size, data.draw(unequal_times(size)), data.draw(links)
    assert makespan_s(*asked) == pytest.approx(simulate(*asked).makespan_s, rel=1e-12)


def visits(schedule: PipelineSchedule, size: Size) -> int:
    """Chunks of one rank that a micro-batch passes."""
    return len(schedule.route(size.stages, size.chunks, 0)) // size.stages


@pytest.mark.slow
@every_schedule
@drawn
@given(data=st.data())
def test_each_action_exactly_once(name: str, data: st.DataObject) -> None:
    """A forward and either a backward or both gradients per micro-batch and virtual stage."""
    schedule, size = SCHEDULES[name], data.draw(sizes(name))
    expected = Counter(
        (rank, batch, chunk)
        for batch in range(size.micro_batches)
        for rank, chunk in schedule.route(size.stages, size.chunks, batch)
    )
    done: dict[Kind, Counter[tuple[int, int, int]]] = {kind: Counter() for kind in Kind}
    for rank, actions in enumerate(schedule.order(*size)):
        for kind, batch, chunk in actions:
            done[kind][rank, batch, chunk] += 1
    assert done[Kind.FORWARD] == expected
    assert done[Kind.BACKWARD] + done[Kind.INPUT_GRADIENT] == expected
    assert done[Kind.INPUT_GRADIENT] == done[Kind.WEIGHT_GRADIENT]
    if not schedule.splits_backward:
        assert done[Kind.BACKWARD] == expected


def spans(result: Simulation) -> dict[tuple[int, Action], tuple[float, float]]:
    """Start and end of each action of each rank; a rank does one thing at a time."""
    table = {}
    for rank, actions in enumerate(result.order):
        start, end = result.start_s[rank], result.end_s[rank]
        assert (start[1:] >= end[:-1]).all()
        table.update(
            {(rank, a): (float(s), float(e)) for a, s, e in zip(actions, start, end, strict=True)}
        )
    return table


@pytest.mark.slow
@every_schedule
@drawn
@given(data=st.data())
def test_dependencies_hold_in_simulated_time(name: str, data: st.DataObject) -> None:
    """With any times and links: no deadlock, and everything after what it needs."""
    schedule, size = SCHEDULES[name], data.draw(sizes(name))
    times, link = data.draw(unequal_times(size)), data.draw(links)
    result = simulate(schedule, *size, times, link)
    table = spans(result)

    def gradient(rank: int, batch: int, chunk: int) -> tuple[float, float]:
        fused = table.get((rank, Action(Kind.BACKWARD, batch, chunk)))
        return fused or table[rank, Action(Kind.INPUT_GRADIENT, batch, chunk)]

    for batch in range(size.micro_batches):
        route = schedule.route(size.stages, size.chunks, batch)
        for position, (rank, chunk) in enumerate(route):
            forward = table[rank, Action(Kind.FORWARD, batch, chunk)]
            backward = gradient(rank, batch, chunk)
            assert backward[0] >= forward[1]
            weight = table.get((rank, Action(Kind.WEIGHT_GRADIENT, batch, chunk)))
            assert weight is None or weight[0] >= backward[1]
            if position + 1 == len(route):
                continue
            after, after_chunk = route[position + 1]
            message_s = (link.latency_s + link.transfer_s) * (after != rank)
            following = table[after, Action(Kind.FORWARD, batch, after_chunk)]
            assert following[0] >= forward[1] + message_s
            assert backward[0] >= gradient(after, batch, after_chunk)[1] + message_s


@pytest.mark.slow
@every_schedule
@drawn
@given(data=st.data())
def test_never_more_in_flight_than_claimed(name: str, data: st.DataObject) -> None:
    schedule, size = SCHEDULES[name], data.draw(sizes(name))
    result = simulate(schedule, *size, data.draw(unequal_times(size)))
    for rank, peak in enumerate(result.peak_units):
        claimed = float(schedule.in_flight(rank, *size))
        assert peak <= claimed * (1 + 1e-12), (size, rank)


@pytest.mark.slow
@every_schedule
@drawn
@given(data=st.data())
def test_makespan_is_above_its_lower_bounds(name: str, data: st.DataObject) -> None:
    """Each rank's work after the earliest start it can have, and each micro-batch's own way."""
    schedule, size = SCHEDULES[name], data.draw(sizes(name))
    times, link = data.draw(unequal_times(size)), data.draw(links)
    makespan_s = simulate(schedule, *size, times, link).makespan_s
    work_s = np.zeros(size.stages)
    arrival_s = np.full(size.stages, np.inf)
    for batch in range(size.micro_batches):
        now_s = back_s = 0.0
        last = None
        for rank, chunk in schedule.route(size.stages, size.chunks, batch):
            message_s = (link.latency_s + link.transfer_s) * (last not in (None, rank))
            now_s += message_s
            arrival_s[rank] = min(arrival_s[rank], now_s)
            now_s += times.forward_s[rank, chunk]
            back_s += times.input_gradient_s[rank, chunk] + message_s
            work_s[rank] += (
                times.forward_s[rank, chunk]
                + times.input_gradient_s[rank, chunk]
                + times.weight_gradient_s[rank, chunk]
            )
            last = rank
        assert makespan_s >= now_s + back_s - EPSILON_S
    assert (makespan_s >= arrival_s + work_s - EPSILON_S).all()


@pytest.mark.parametrize(
    "name", [n for n, s in SCHEDULES.items() if s.extra_s is not None and s.synchronous]
)
@drawn
@given(data=st.data())
def test_closed_form_equals_the_simulator(name: str, data: st.DataObject) -> None:
    """At equal stages without communication, wherever a form is claimed and is a number."""
    schedule, size = SCHEDULES[name], data.draw(sizes(name))
    assert schedule.extra_s is not None
    shares = [data.draw(st.integers(1, 40)) / 4 for _ in range(3)]
    # A chunk's times are whole quarters; a rank's are those of the chunks a micro-batch visits.
    count = visits(schedule, size)
    rank_s = [share * count for share in shares]
    ideal_s = size.micro_batches * sum(rank_s)
    costs = Costs(*rank_s, (size.stages - 1) * sum(rank_s))
    claimed = float(schedule.extra_s(costs, *size))
    if np.isnan(claimed):
        assert schedule.holds != "always"
        return
    times = Times.equal(size.stages, size.chunks, *shares)
    makespan_s = simulate(schedule, *size, times).makespan_s
    assert ideal_s + claimed == pytest.approx(makespan_s, rel=1e-12), (size, shares)


@pytest.mark.parametrize(
    "name",
    [n for n in ("zb-h1", "zb-h2", "interleaved-zero-bubble", "zb-v") if n in SCHEDULES],
)
@drawn
@given(data=st.data())
def test_zero_bubble_is_never_worse_than_1f1b(name: str, data: st.DataObject) -> None:
    """At equal forward, input-gradient and weight-gradient times."""
    schedule, size = SCHEDULES[name], data.draw(sizes(name))
    share = 1.0 / size.chunks
    result = simulate(schedule, *size, Times.equal(size.stages, size.chunks, share, share, share))
    plain = simulate(
        SCHEDULES["1f1b"], size.stages, 1, size.micro_batches, Times.equal(size.stages, 1, 1, 1, 1)
    )
    assert result.makespan_s <= plain.makespan_s * (1 + 1e-12), size


@pytest.mark.slow
@every_schedule
@drawn
@given(data=st.data())
def test_same_input_same_output(name: str, data: st.DataObject) -> None:
    schedule, size = SCHEDULES[name], data.draw(sizes(name))
    times, link = data.draw(unequal_times(size)), data.draw(links)
    first, second = (simulate(schedule, *size, times, link) for _ in range(2))
    assert first.order == second.order
    assert first.makespan_s == second.makespan_s
    for one, other in zip(first.start_s, second.start_s, strict=True):
        assert (one == other).all()


@pytest.mark.slow
@every_schedule
def test_refuses_what_its_order_cannot_do(name: str) -> None:
    """A refusal gives numbers; whatever is not refused runs."""
    schedule = SCHEDULES[name]
    refused = 0
    for p in range(1, 6):
        for v in range(1, 6):
            for m in range(1, 2 * p + 3):
                reason = schedule.allowed(p, v, m)
                if reason:
                    refused += 1
                    assert re.search(r"\d", reason), reason
                    continue
                assert not schedule.chunk_counts or v in schedule.chunk_counts
                simulate(schedule, p, v, m, Times.equal(p, v, 1.0, 1.0, 1.0))
    assert refused or not schedule.chunk_counts


@every_schedule
def test_closed_forms_broadcast(name: str) -> None:
    """Arrays of candidates give what one candidate at a time gives."""
    schedule = SCHEDULES[name]
    v = float((schedule.chunk_counts or (2,))[-1])
    stages, batches = np.array([2.0, 4.0, 4.0, 8.0]), np.array([8.0, 8.0, 16.0, 16.0])
    rank = np.array([0.0, 1.0, 3.0, 5.0])
    work = np.array([1.0, 2.0, 3.0, 4.0])
    held = schedule.in_flight(rank, stages, v + 0 * rank, batches)
    copies = schedule.weight_copies(rank, stages)
    costs = Costs(work, work, work / 2, 2.5 * work * (stages - 1))
    for i in range(4):
        assert float(np.asarray(held)[i]) == float(
            schedule.in_flight(rank[i], stages[i], v, batches[i])
        )
        assert float(np.asarray(copies)[i]) == float(schedule.weight_copies(rank[i], stages[i]))
        if schedule.extra_s is not None:
            together = np.broadcast_to(schedule.extra_s(costs, stages, v, batches), 4)
            one = Costs(*(column[i] for column in costs))
            assert together[i] == float(schedule.extra_s(one, stages[i], v, batches[i]))
