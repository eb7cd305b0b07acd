"""DualPipe: micro-batches enter from both ends (DeepSeek-V3, arXiv 2412.19437, section 3.2.1).

The model has p stages and every rank holds two of them, r and p-1-r, as chunks 0 and 1: two copies
of all weights.  Half of the micro-batches go down the ranks through chunk 0, half go up through
chunk 1; here the even ones go down and the odd ones up, so that a route does not depend on m.  A
micro-batch visits one chunk per rank, so that a rank's share of it is one stage.

The forward of one direction and the backward of the other overlap on a rank; here they run one
after the other, which takes the same time if the overlap hides communication only.
"""

from __future__ import annotations

import numpy as np

from cost_models.schedules.base import Action, Costs, Order, PipelineSchedule, Route, loop_messages
from cost_models.schedules.dualpipe_v import pair_steps, pairs_extra_s, pairs_refusal
from cost_models.schedules.zb_v import numbered
from cost_models.sources import Array, formula


@formula("s", "derived", "dualpipe")
def dualpipe_extra_s(
    forward_s: Array, input_gradient_s: Array, weight_gradient_s: Array, others_s: Array
) -> Array:
    """Seconds the busiest rank waits: DualPipeV's form with h = p/2 - 1 hops to the middle.

    The two middle ranks exchange results at equal times, as if each passed them to itself at the
    turn of a V, so each half of the ranks runs the order of a DualPipeV of p/2 ranks, with whole
    stages as chunks.  At t_f = t_b = t_w: h t_f, half of the README's (p/2 - 1)(F&B + B - 3 W),
    which assumes that pairs deliver both results at their end; with F&B = F + B it is h t_b more
    than ours while t_w <= t_b <= t_f <= t_b + t_w.
    Unequal stages: the other ranks are assumed to have the busiest rank's t_f : t_b : t_w.
    """
    total_s = np.add(forward_s, input_gradient_s) + weight_gradient_s
    hops = (others_s / total_s - 1.0) / 2.0
    return np.maximum(0.0, pairs_extra_s(forward_s, input_gradient_s, weight_gradient_s, hops))


@formula("1", "dualpipe")
def dualpipe_in_flight(stage: Array, stages: Array) -> Array:
    """Activation units a rank holds at its peak: p + 1 on every rank.  Exact.

    A rank with d ranks to the nearer end and h - d to the middle starts with 2(h-d) forwards of the
    near direction and d+1 of each direction, p in all; its steady state begins with one more.
    """
    return np.add(stages, 1.0) + np.multiply(stage, 0.0)


def route(stages: int, chunks: int, micro_batch: int) -> Route:
    """Even micro-batches go down the ranks in chunk 0, odd ones up in chunk 1."""
    if micro_batch % 2 == 0:
        return tuple((rank, 0) for rank in range(stages))
    return tuple((rank, 1) for rank in reversed(range(stages)))


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Rank r: the steps of the DualPipeV rank at the same distance from the end, min(r, p-1-r); the
    direction that enters at this end takes the place of the first chunk, the other of the second.
    """
    half = stages // 2

    def of_rank(rank: int) -> tuple[Action, ...]:
        before = min(rank, stages - 1 - rank)
        near = int(rank >= half)
        steps = pair_steps(before, half - 1 - before, micro_batches // 2 - stages + before + 1)
        return tuple(
            Action(kind, 2 * turn + (chunk ^ near), chunk ^ near)
            for kind, turn, chunk in numbered(steps)
        )

    return tuple(of_rank(rank) for rank in range(stages))


def refusal(stages: int, chunks: int, micro_batches: int) -> str:
    """Why DualPipe cannot run; "" if it can."""
    if stages % 2:
        return f"dualpipe pairs ranks from both ends: an even number of stages, got {stages}"
    if micro_batches % 2:
        return (
            f"dualpipe sends half the micro-batches either way: an even number, got {micro_batches}"
        )
    return pairs_refusal("dualpipe", stages, chunks, micro_batches)


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    return dualpipe_extra_s(*costs)


DUALPIPE = PipelineSchedule(
    id="dualpipe",
    title="DualPipe",
    citation="dualpipe",
    extra_s=_extra_s,
    holds="wherever it is allowed, m >= 2p",
    in_flight=lambda stage, stages, chunks, micro_batches: dualpipe_in_flight(stage, stages),
    weight_copies=lambda stage, stages: np.multiply(stage, 0.0) + 2.0,
    messages=lambda stages, chunks: loop_messages(stages, 1),
    allowed=refusal,
    route=route,
    order=order,
    chunk_counts=(2,),
    splits_backward=True,
    placement="two-way",
)
