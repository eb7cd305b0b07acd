"""What each schedule says of itself against the order and the routes that it gives."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cost_models.plans import VOCABULARIES
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Kind
from cost_models.sources import SOURCES

every_schedule = pytest.mark.parametrize("name", list(SCHEDULES))


@every_schedule
def test_what_it_says_of_itself_is_what_its_order_does(name: str) -> None:
    """Four ranks, 16 micro-batches: split backwards, forwards kept, places and directions."""
    schedule = SCHEDULES[name]
    chunks = (schedule.chunk_counts or (2,))[0]
    order = schedule.order(4, chunks, 16)
    kinds = [[action.kind for action in actions] for actions in order]
    assert schedule.splits_backward == any(Kind.INPUT_GRADIENT in rank for rank in kinds)
    lasts = [len(rank) - 1 - rank[::-1].index(Kind.FORWARD) for rank in kinds]
    firsts = [min(rank.index(k) for k in set(rank) - {Kind.FORWARD}) for rank in kinds]
    all_kept = all(last < first for last, first in zip(lasts, firsts, strict=True))
    assert schedule.keeps_all == all_kept
    ways = [schedule.route(4, chunks, batch) for batch in range(16)]
    assert (schedule.placement == "two-way") == (len(set(ways)) == 2)
    turns = any(a[0] == b[0] for a, b in pairwise(ways[0]))
    assert (schedule.placement == "wave") == turns
    assert schedule.synchronous == (name not in ("pipedream", "pipedream-2bw"))
    copies = [float(schedule.weight_copies(rank, 4)) for rank in range(4)]
    expected = {"pipedream": [4, 3, 2, 1], "pipedream-2bw": [2] * 4, "dualpipe": [2] * 4}
    assert copies == expected.get(name, [1] * 4)


def test_a_plan_can_name_every_schedule() -> None:
    assert set(VOCABULARIES["schedule"]) == set(SCHEDULES)


def test_registry() -> None:
    assert all(name == schedule.id for name, schedule in SCHEDULES.items())
    assert all(schedule.citation in SOURCES for schedule in SCHEDULES.values())
    assert all(
        schedule.freed_at in ("input gradient", "weight gradient")
        for schedule in SCHEDULES.values()
    )


@every_schedule
def test_messages_are_the_hops_of_its_route(name: str) -> None:
    """Each change of rank sends an activation forward and its gradient back."""
    schedule = SCHEDULES[name]
    for p in range(1, 7):
        for v in schedule.chunk_counts or (1, 2, 3, 4):
            if all(schedule.allowed(p, v, m) for m in (2 * p, 4 * p)):
                continue
            route = schedule.route(p, v, 0)
            hops = sum(a != b for (a, _), (b, _) in pairwise(route))
            assert schedule.messages(p, v) == 2 * hops


@every_schedule
def test_a_refusal_of_chunks_names_the_schedule(name: str) -> None:
    schedule = SCHEDULES[name]
    if schedule.chunk_counts:
        assert schedule.allowed(2, 3, 8).startswith(f"{name} runs ")
