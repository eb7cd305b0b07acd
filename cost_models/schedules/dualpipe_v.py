"""DualPipeV: DualPipe cut in half, over a V of two chunks per rank (deepseek-ai/DualPipe).

The forward of one chunk and the backward of the other overlap on a rank, so that one's messages
hide behind the other's arithmetic.  Here, as in torch's runtime, the pair runs forward first,
then backward; how much communication it hides does not depend on the order.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

import numpy as np

from cost_models.schedules.base import Costs, Kind, Order
from cost_models.schedules.zb_v import (
    F0,
    F1,
    I0,
    I1,
    W0,
    W1,
    Step,
    numbered,
    two_chunks,
    v_schedule,
)
from cost_models.sources import Array, formula

# The unsplit backward of each chunk.
B0, B1 = (Kind.BACKWARD, 0), (Kind.BACKWARD, 1)


@formula("s", "derived", "dualpipe")
def pairs_extra_s(
    forward_s: Array, input_gradient_s: Array, weight_gradient_s: Array, hops: Array
) -> Array:
    """Seconds a rank waits when pairs run as forward, then backward, `hops` ranks from the turn.

    With q hops and chunk times f, b, w: the larger of q (f + max(0, b-w, f-b-w, f-2w)) and
    q (b + max(0, b-w)) - f; at equal times q f.  The README's q (F&B + B - 3W) assumes that pairs
    deliver both results at their end, and is twice that at equal times.  Each term is the length of
    a critical path of simulated schedules; that no path is longer is tested, not proven (p = 1..9,
    several m each and thousands of random times).
    """
    uncovered = np.maximum(input_gradient_s - weight_gradient_s, 0.0 * forward_s)
    behind = forward_s - weight_gradient_s - np.minimum(input_gradient_s, weight_gradient_s)
    return np.maximum(
        hops * (forward_s + np.maximum(uncovered, behind)),
        hops * (input_gradient_s + uncovered) - forward_s,
    )


@formula("1", "derived", "dualpipe")
def dualpipe_v_in_flight(stage: Array, stages: Array) -> Array:
    """Activation units a rank holds at its peak: p + 1/2 (2p+1 chunks).  Exact."""
    return stages + 0.5 + np.multiply(stage, 0.0)


def pairs_refusal(name: str, stages: int, chunks: int, micro_batches: int) -> str:
    """Why pairs cannot run; "" if they can.  Their steady state starts after 2p micro-batches."""
    if micro_batches < 2 * stages:
        least = f"{name} needs at least {2 * stages} micro-batches on {stages} stages"
        return f"{least}, got {micro_batches}"
    return two_chunks(name, chunks)


def pair_steps(before: int, behind: int, steady: int) -> list[Step]:
    """The README's eight steps of a rank with `before` ranks before it and `behind` ranks from it
    to the turn, and with `steady` turns in its steady state; micro-batches enter through chunk 0.
    """
    # Backwards of both chunks in turn; the later half of them is split.
    closing = [B1, B0] * (before + 1)
    split = [I1 if step == B1 else I0 for step in closing[before + 1 :]]
    delayed = [W1 if step == I1 else W0 for step in split] + [W0] * behind
    return [
        *[F0] * (2 * behind),
        *[F0, F1] * (before + 1),
        *[I1, W1, F1] * behind,
        *[F0, B1, F1, B0] * steady,
        *[B1, F1, B0] * behind,
        *closing[: before + 1],
        *split,
        *chain.from_iterable((weight, I0) for weight in delayed[:behind]),
        *delayed[behind:],
    ]


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Rank r: forwards of the first chunk, then of both; gradients and forwards of the second; the
    steady state, forward and backward of both in turn; then backwards, and at last the delayed
    weight gradients.
    """
    return tuple(
        numbered(pair_steps(rank, stages - 1 - rank, micro_batches - 2 * stages + rank + 1))
        for rank in range(stages)
    )


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    forward_s, input_s, weight_s = costs.forward_s, costs.input_gradient_s, costs.weight_gradient_s
    # Unequal stages: the other ranks are assumed to have the busiest rank's t_f : t_b : t_w.
    hops = costs.others_s / (np.add(forward_s, input_s) + weight_s)
    # A chunk is half a rank's work, and the form is linear in time.
    return pairs_extra_s(forward_s, input_s, weight_s, hops) / 2.0


DUALPIPE_V = v_schedule(
    id="dualpipe-v",
    title="DualPipeV",
    citation="dualpipe",
    extra_s=_extra_s,
    holds="wherever it is allowed, m >= 2p",
    in_flight=lambda stage, stages, chunks, micro_batches: dualpipe_v_in_flight(stage, stages),
    allowed=partial(pairs_refusal, "dualpipe-v"),
    order=order,
)
