"""The simulator against small steps written out by hand: two ranks, two micro-batches."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Action, Kind
from cost_models.schedules.simulate import (
    IDLE_CAUSES,
    Deadlock,
    Links,
    Simulation,
    Times,
    run,
    simulate,
)

# Two seconds forward, one for each gradient.
EQUAL = Times.equal(2, 1, 2.0, 1.0, 1.0)
LINK = Links(latency_s=0.25, transfer_s=0.5)


def starts(result: Simulation) -> list[list[float]]:
    return [row.tolist() for row in result.start_s]


def test_fill_and_drain_over_a_link() -> None:
    """Forwards leave rank 0 at 2 and 4 s and arrive 0.75 s later, as do the gradients."""
    found = simulate(SCHEDULES["gpipe"], 2, 1, 2, EQUAL, LINK)
    assert starts(found) == [[0.0, 2.0, 9.5, 11.5], [2.75, 4.75, 6.75, 8.75]]
    assert [row.tolist() for row in found.end_s] == [
        [2.0, 4.0, 11.5, 13.5],
        [4.75, 6.75, 8.75, 10.75],
    ]
    assert found.makespan_s == 13.5
    assert found.span_s.tolist() == [13.5, 8.0]
    assert IDLE_CAUSES == ("fill", "forward", "backward", "communication", "drain")
    assert found.idle_s.tolist() == [[0, 0, 4.75, 0.75, 0], [2.75, 0, 0, 0, 2.75]]
    assert [row.tolist() for row in found.held_units] == [[1, 2, 1, 0], [1, 2, 1, 0]]
    assert found.peak_units.tolist() == [2, 2]
    assert found.peak_at_s.tolist() == [2.0, 4.75]


def test_a_sender_that_waits_loses_the_transfer_but_not_the_latency() -> None:
    blocking = Links(latency_s=0.25, transfer_s=0.5, blocking=True)
    found = simulate(SCHEDULES["gpipe"], 2, 1, 2, EQUAL, blocking)
    assert starts(found) == [[0.0, 2.5, 10.0, 12.5], [2.75, 5.25, 7.25, 9.75]]
    assert found.makespan_s == 14.5
    assert found.idle_s.tolist() == [[0, 0, 4.25, 1.25, 0], [2.75, 0, 0, 0.5, 2.25]]


def test_messages_queue_on_their_link() -> None:
    """Forwards end at 2 and 4 s; a link of 3 s carries one from 2, the other from 5 s on."""
    found = simulate(SCHEDULES["gpipe"], 2, 1, 2, EQUAL, Links(transfer_s=3.0))
    assert starts(found)[1] == [5.0, 8.0, 10.0, 12.0]
    # The link back is another one: gradients leave at 12 and 15.
    assert starts(found)[0] == [0.0, 2.0, 15.0, 18.0]


def test_each_rank_reduces_when_it_is_done() -> None:
    found = simulate(SCHEDULES["gpipe"], 2, 1, 2, EQUAL, LINK, np.array([0.0, 5.0]))
    assert found.makespan_s == 15.75
    assert found.span_s.tolist() == [13.5, 13.0]
    assert found.idle_s[:, 4].tolist() == [2.25, 0.0]


def test_a_rank_waits_for_slower_forwards() -> None:
    times = Times(np.array([[3.0], [1.0]]), np.array([[1.0], [2.0]]), np.array([[1.0], [0.5]]))
    assert times.work_s.tolist() == [5.0, 3.5]
    found = simulate(SCHEDULES["gpipe"], 2, 1, 2, times)
    assert starts(found) == [[0.0, 3.0, 9.5, 12.0], [3.0, 6.0, 7.0, 9.5]]
    assert found.idle_s.tolist() == [[0, 0, 3.5 + 0.5, 0, 0], [3, 2, 0, 0, 2]]


def test_where_an_activation_is_given_back() -> None:
    """One rank, one micro-batch: forward, input gradient, weight gradient."""
    times = Times.equal(1, 1, 1.0, 2.0, 4.0)
    for share, left in ((0.25, 0.75), (1.0, 0.0), (None, 1.0)):
        found = simulate(SCHEDULES["zb-h1"], 1, 1, 1, times, freed_at_input=share)
        assert found.held_units[0].tolist() == [1.0, left, 0.0]
        assert found.end_s[0].tolist() == [1.0, 3.0, 7.0]


def test_two_chunks_hold_a_half_each() -> None:
    times = Times.equal(1, 2, 1.0, 1.0, 1.0)
    found = simulate(SCHEDULES["interleaved-1f1b"], 1, 2, 1, times)
    assert found.held_units[0].tolist() == [0.5, 1.0, 0.5, 0.0]
    assert found.makespan_s == 6.0


def test_ranks_that_wait_for_each_other_are_named() -> None:
    order = ((Action(Kind.BACKWARD, 0, 0), Action(Kind.FORWARD, 0, 0)), ())
    with pytest.raises(Deadlock, match=r"ranks \[0\] wait for ever"):
        run(order, [((0, 0), (1, 0))], EQUAL)


def test_a_rank_with_nothing_to_do_idles() -> None:
    found = run(((Action(Kind.FORWARD, 0, 0),), ()), [((0, 0), (1, 0))], EQUAL)
    assert found.makespan_s == 2.0
    assert found.peak_units.tolist() == [1.0, 0.0]
    assert found.peak_at_s.tolist() == [0.0, 0.0]
    assert found.span_s.tolist() == [2.0, 0.0]
