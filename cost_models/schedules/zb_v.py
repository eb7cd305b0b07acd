"""ZB-V: zero bubble over a V of two chunks per rank (arXiv 2401.10241, section 6).

The first chunk runs down the ranks, the second one back up, so that neither the turn nor the loss
needs a message and every rank holds the same number of activations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial, reduce

import numpy as np

from cost_models.schedules.base import Action, Costs, Kind, Order, wave_schedule
from cost_models.sources import Array, formula

# An action without its micro-batch: (kind, chunk).
Step = tuple[Kind, int]


@formula("s", "derived", "zero-bubble")
def zb_v_extra_s(
    forward_s: Array,
    input_gradient_s: Array,
    weight_gradient_s: Array,
    others_s: Array,
) -> Array:
    """Seconds the busiest rank waits in ZB-V, from m = 2p-1 on; independent of m.

    With q = p-1 and chunk times f, b, w (half a rank's): the largest of q b, 2q (b-w),
    max(f, b) + (q-1) w, q (2f-b) - min(w, f-b) and 2q (f-w) - min(w, f-b); at equal times (p-1) f,
    half a rank's forward per hop.  The paper gives the equal case only.  Each term is the length
    of a critical path of simulated schedules; that no path is longer is tested, not proven
    (p = 1..9, five m each and thousands of random times).
    """
    # Unequal stages: the other ranks are assumed to have the busiest rank's t_f : t_b : t_w.
    hops = others_s / (np.add(forward_s, input_gradient_s) + weight_gradient_s)
    ahead_s = np.minimum(weight_gradient_s, np.subtract(forward_s, input_gradient_s))
    paths_s = (
        hops * input_gradient_s,
        2.0 * hops * (input_gradient_s - weight_gradient_s),
        np.maximum(forward_s, input_gradient_s) + (hops - 1.0) * weight_gradient_s,
        hops * (2.0 * forward_s - input_gradient_s) - ahead_s,
        2.0 * hops * (forward_s - weight_gradient_s) - ahead_s,
    )
    longest_s = reduce(np.maximum, paths_s)
    # A chunk is half a rank's work; one rank alone never waits.
    return longest_s / 2.0 * np.sign(hops)


@formula("1", "derived", "zero-bubble")
def zb_v_in_flight(stage: Array, stages: Array, micro_batches: Array) -> Array:
    """Activation units a rank holds at its peak: p, or m if that is less.

    Exact for 2m < 3p-1 and for m >= 2p-1; an upper bound in between.  Before its first gradient,
    rank r runs 2p-1-r forwards of the first chunk and r+1 of the second, half a unit each; after
    it, a weight gradient precedes each forward.
    """
    return np.minimum(micro_batches, stages) + np.multiply(stage, 0.0)


def two_chunks(name: str, chunks: int) -> str:
    """Why a V cannot have this many chunks per rank; "" if it can."""
    return "" if chunks == 2 else f"{name} runs 2 chunks per rank, got {chunks}"


# A schedule over a V, whose backward is split.
v_schedule = partial(wave_schedule, chunk_counts=(2,), splits_backward=True)


def numbered(steps: Iterable[Step]) -> tuple[Action, ...]:
    """The actions of steps over two chunks: each step takes its next micro-batch, from 0 on.

    A fused backward counts as both gradients.
    """
    following = [[0, 0] for _ in Kind]
    following[Kind.BACKWARD] = following[Kind.INPUT_GRADIENT]
    weights = following[Kind.WEIGHT_GRADIENT]
    actions = []
    for kind, chunk in steps:
        actions.append(Action(kind, following[kind][chunk], chunk))
        following[kind][chunk] += 1
        if kind is Kind.BACKWARD:
            weights[chunk] += 1
    return tuple(actions)


# Forward, input gradient and weight gradient of the first and the second chunk.
F0, I0, W0 = (Kind.FORWARD, 0), (Kind.INPUT_GRADIENT, 0), (Kind.WEIGHT_GRADIENT, 0)
F1, I1, W1 = (Kind.FORWARD, 1), (Kind.INPUT_GRADIENT, 1), (Kind.WEIGHT_GRADIENT, 1)


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Rank r: 2(p-r)-1 forwards of the first chunk, r of both chunks in turn, p-r of the second
    chunk, each with its gradients; then forward and both gradients of either chunk in turn; last
    the input gradients, with the first chunk's weight gradients between and the others after them.

    The fill takes 2p-1 micro-batches.  With fewer, ranks run the order for 2p-1 without the missing
    ones, as in torch.  With 2m < 3p-1 there is room to delay weight gradients, which torch does
    not: at equal times the wait is then p-1 chunk times for p <= m instead of up to 2 (p-1).
    """
    full = max(micro_batches, 2 * stages - 1)

    def of_rank(rank: int) -> tuple[Action, ...]:
        after = stages - rank
        # Turns of the steady state while the first chunk still has forwards.
        filled = full - (2 * stages - 1 - rank)
        steps = [
            *[F0] * (2 * after - 1),
            *[F1, F0] * rank,
            *[F1, I1, W1] * after,
            *[F0, I0, W0, F1, I1, W1] * filled,
            *[I0, W0, F1, I1, W1] * (full - stages - filled),
            *[I0, I1] * rank,
            *[I0, W0] * after,
            *[W1] * rank,
            *[W0] * rank,
        ]
        actions = numbered(steps)
        if micro_batches < full:
            actions = tuple(action for action in actions if action.micro_batch < micro_batches)
        if 2 * micro_batches < 3 * stages - 1:
            return delay_weight_gradients(actions, 2 * stages)
        return actions

    return tuple(of_rank(rank) for rank in range(stages))


def delay_weight_gradients(actions: Sequence[Action], limit: int) -> tuple[Action, ...]:
    """The same forwards and input gradients, with weight gradients delayed.

    They run before a forward that would exceed `limit` held chunks, in the drain's gaps between the
    first chunk's input gradients, and otherwise at the end.
    """
    others = [action for action in actions if action.kind is not Kind.WEIGHT_GRADIENT]
    drain = 1 + max(index for index, (kind, _, chunk) in enumerate(others) if (kind, chunk) == I1)
    waiting: deque[Action] = deque()
    row: list[Action] = []
    delayed = 0
    for index, action in enumerate(others):
        if action.kind is Kind.FORWARD:
            if delayed == limit:
                row.append(waiting.popleft())
                delayed -= 1
            delayed += 1
        row.append(action)
        if action.kind is Kind.INPUT_GRADIENT:
            waiting.append(action._replace(kind=Kind.WEIGHT_GRADIENT))
            if index >= drain:
                row.append(waiting.popleft())
    return (*row, *waiting)


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    holds = np.greater_equal(micro_batches, 2.0 * stages - 1.0)
    return np.where(holds, zb_v_extra_s(*costs), np.nan)


ZB_V = v_schedule(
    id="zb-v",
    title="ZB-V",
    citation="zero-bubble",
    extra_s=_extra_s,
    holds="m >= 2p-1; elsewhere not a number: simulate",
    in_flight=lambda stage, stages, chunks, micro_batches: zb_v_in_flight(
        stage, stages, micro_batches
    ),
    allowed=lambda stages, chunks, micro_batches: two_chunks("zb-v", chunks),
    order=order,
)
