"""Orders equal those of torch.distributed.pipelining 2.13, read from its classes without a run.

Two named differences.  `Schedule1F1B` numbers the last rank's forwards 1..m in its list, though
its runtime runs 0..m-1: the list is wrong (forward 0 is missing and forward m does not exist), so
that rank's forwards are shifted by one here before they are compared.  And ZB-V with few
micro-batches, 2m < 3p-1: torch drops the missing ones from the order for 2p-1 of them, so each
weight gradient still stands right behind its input gradient, in the way of the next one, though
there is room to put it off.  Ours has torch's forwards and input gradients, and later weight
gradients; it is faster (p = m = 4, equal times: 27 instead of 30 chunk times) in the same memory.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import Action, Kind, Order
from cost_models.schedules.simulate import Times, run

# torch's name of each schedule, and its chunks per rank.
TORCH: dict[str, tuple[str, tuple[int, ...]]] = {
    "gpipe": ("GPipe", (1,)),
    "1f1b": ("1F1B", (1,)),
    "interleaved-1f1b": ("Interleaved1F1B", (1, 2, 4)),
    "looped-bfs": ("LoopedBFS", (1, 2, 4)),
    "interleaved-zero-bubble": ("InterleavedZeroBubble", (1, 2, 4)),
    "zb-v": ("ZBVZeroBubble", (2,)),
    "dualpipe-v": ("DualPipeV", (2,)),
}
KINDS = {
    "FORWARD": Kind.FORWARD,
    "FULL_BACKWARD": Kind.BACKWARD,
    "BACKWARD_INPUT": Kind.INPUT_GRADIENT,
    "BACKWARD_WEIGHT": Kind.WEIGHT_GRADIENT,
}
CASES = [
    pytest.param(
        ours, p, m, v, id=f"{ours}-p{p}-m{m}-v{v}", marks=pytest.mark.exhaustive if p == 8 else ()
    )
    for ours, (_, chunk_counts) in TORCH.items()
    for v in chunk_counts
    for p in (2, 4, 8)
    for m in (p, 2 * p, 4 * p)
    if (ours != "dualpipe-v" or m >= 2 * p) and (ours != "zb-v" or 2 * m >= 3 * p - 1)
]
# Rounds that are larger than p, a single short round, and ZB-V without all of its micro-batches.
ODD_CASES = [
    ("interleaved-1f1b", 4, 10, 2),
    ("interleaved-1f1b", 4, 3, 2),
    ("interleaved-zero-bubble", 4, 10, 2),
    ("interleaved-zero-bubble", 4, 3, 4),
    ("looped-bfs", 4, 3, 2),
    ("looped-bfs", 4, 11, 2),
    ("zb-v", 4, 6, 2),
    ("zb-v", 8, 12, 2),
    ("dualpipe-v", 4, 11, 2),
]


def torch_lists(name: str, stages: int, micro_batches: int, chunks: int) -> list[list[Any]]:
    """The action list per rank, as torch's class makes it on the first one."""
    # Imported here: it takes seconds, and every worker collects this file.
    from torch.distributed.pipelining import schedules as torch_schedules
    from torch.distributed.pipelining.stage import PipelineStage

    kind = torch_schedules.get_schedule_class(name)
    parts = []
    for chunk in range(chunks):
        part = mock.create_autospec(PipelineStage, instance=True)
        part.group_rank, part.group_size = 0, stages
        part.stage_index, part.num_stages = chunk * stages, chunks * stages
        part.submod = None
        parts.append(part)
    if issubclass(kind, torch_schedules.PipelineScheduleSingle):
        lists = kind(parts[0], micro_batches)._get_pipeline_order()
    else:
        # Sends and receives are added to a copy of the order, at length.
        runtime = torch_schedules._PipelineScheduleRuntime
        with mock.patch.object(runtime, "_prepare_schedule_with_comms"):
            lists = kind(parts, micro_batches).pipeline_order
    return [lists[rank] for rank in range(stages)]


def torch_order(ours: str, stages: int, micro_batches: int, chunks: int) -> Order:
    """That order in our terms: only arithmetic, overlapped pairs as forward, then backward."""
    route = SCHEDULES[ours].route(stages, chunks, 0)
    order = []
    for rank, actions in enumerate(torch_lists(TORCH[ours][0], stages, micro_batches, chunks)):
        shift = int(ours == "1f1b" and rank == stages - 1)
        row = []
        for action in actions:
            for single in (action and action.sub_actions) or (action,):
                kind = single and KINDS.get(single.computation_type.name)
                if kind is None:
                    # A pause, or the reduction of gradients.
                    continue
                place, chunk = route[single.stage_index]
                assert place == rank
                number = single.microbatch_index - (shift if kind is Kind.FORWARD else 0)
                row.append(Action(kind, number, chunk))
        order.append(tuple(row))
    return tuple(order)


@pytest.mark.one_in(2, quick=3)
@pytest.mark.slow
@pytest.mark.parametrize(("ours", "p", "m", "v"), [*CASES, *ODD_CASES])
def test_equals_torch(ours: str, p: int, m: int, v: int) -> None:
    assert SCHEDULES[ours].allowed(p, v, m) == ""
    assert SCHEDULES[ours].order(p, v, m) == torch_order(ours, p, m, v)


@pytest.mark.slow
@pytest.mark.one_in(1, quick=7)
@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 4), (8, 8), (4, 1), (4, 5), (8, 3), (8, 11)])
def test_zb_v_puts_weight_gradients_off(p: int, m: int) -> None:
    """The named difference: torch's order but for the weight gradients, and faster."""
    theirs, ours = torch_order("zb-v", p, m, 2), SCHEDULES["zb-v"].order(p, 2, m)
    for their_row, our_row in zip(theirs, ours, strict=True):
        assert sorted(their_row) == sorted(our_row)
        without = [
            [action for action in row if action.kind is not Kind.WEIGHT_GRADIENT]
            for row in (their_row, our_row)
        ]
        assert without[0] == without[1]
    routes = [SCHEDULES["zb-v"].route(p, 2, batch) for batch in range(m)]
    for seconds in ((1.0, 1.0, 1.0), (10.0, 12.0, 8.0)):
        times = Times.equal(p, 2, *seconds)
        their_result, our_result = (run(order, routes, times) for order in (theirs, ours))
        assert our_result.makespan_s < their_result.makespan_s or m == 1
        assert our_result.peak_units.max() <= min(m, p)


@pytest.mark.one_in(1, quick=4)
@pytest.mark.parametrize(
    ("ours", "p", "m", "v"),
    [
        ("interleaved-1f1b", 4, 9, 2),
        ("interleaved-zero-bubble", 4, 13, 2),
        ("dualpipe-v", 4, 7, 2),
        ("dualpipe-v", 4, 8, 4),
        ("zb-v", 4, 8, 4),
    ],
)
def test_refuses_what_torch_refuses(ours: str, p: int, m: int, v: int) -> None:
    with pytest.raises(ValueError, match=r"requires|stages per rank"):
        torch_lists(TORCH[ours][0], p, m, v)
    assert SCHEDULES[ours].allowed(p, v, m) != ""


def test_last_rank_of_1f1b_is_off_by_one_in_torch() -> None:
    """The named difference: it goes when torch numbers that rank's forwards from 0."""
    last = torch_lists("1F1B", 4, 8, 1)[-1]
    forwards = [a.microbatch_index for a in last if a and a.computation_type.name == "FORWARD"]
    assert forwards == list(range(1, 9))
