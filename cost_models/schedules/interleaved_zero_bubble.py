"""Interleaved zero bubble: ZB-H1's order over v looped chunks (torch's InterleavedZeroBubble).

Qi et al., arXiv 2401.10241, split the backward and delay weight gradients into idle time; torch
does so over the rounds of interleaved 1F1B, with half its warm-up.
"""

from __future__ import annotations

from itertools import chain

import numpy as np

from cost_models.schedules.base import Action, Costs, Kind, Order, PipelineSchedule
from cost_models.schedules.interleaved import round_size, rounds_refusal, visits
from cost_models.schedules.zb_h1 import limited_extra_s
from cost_models.sources import Array, formula


@formula("1", "derived", "torch")
def delayed_weights_in_flight(
    stage: Array, stages: Array, chunks: Array, micro_batches: Array
) -> Array:
    """Activation units a rank holds at its peak: ((v-1) g + p) / v, at most m.  Exact.

    The warm-up runs (v-1) g + p-1-r chunk forwards; one more comes before the first gradient
    and r more before the first weight gradient.  g: micro-batches of a round, p where m is a
    multiple of p; then p units on every rank.
    """
    chunks_in_flight = np.subtract(chunks, 1.0) * round_size(stages, micro_batches) + stages
    return np.minimum(micro_batches, chunks_in_flight / chunks) + np.multiply(stage, 0.0)


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Rank r: (v-1) g + p-1-r chunk forwards, then steps of forward (while there are any), input
    gradient and, from the r-th step on, weight gradient; then the other weight gradients.
    """
    ways = visits(stages, chunks, micro_batches)
    forwards = [Action(Kind.FORWARD, batch, chunk) for batch, chunk in ways]
    inputs = [Action(Kind.INPUT_GRADIENT, batch, chunks - 1 - chunk) for batch, chunk in ways]
    weights = [Action(Kind.WEIGHT_GRADIENT, batch, chunks - 1 - chunk) for batch, chunk in ways]
    count = len(ways)
    last = (chunks - 1) * int(round_size(stages, micro_batches))

    def of_rank(rank: int) -> tuple[Action, ...]:
        warm_up = min(count, last + stages - 1 - rank)
        delay = min(count, rank)
        steps = [[action] for action in inputs]
        for step, forward in zip(steps, forwards[warm_up:], strict=False):
            step.insert(0, forward)
        for step, weight in zip(steps[delay:], weights, strict=False):
            step.append(weight)
        return (*forwards[:warm_up], *chain.from_iterable(steps), *weights[count - delay :])

    return tuple(of_rank(rank) for rank in range(stages))


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    """ZB-H1's wait with chunk times: (p-1) D / v with D = max(t_f, t_b, t_f + t_b - t_w).

    In chunk times f, b, w: rank r starts r f late and waits (p-1-r) b between its last warm-up
    forward and its first gradient.  After that it does not wait, since its k-th gradient comes b
    (k <= r) or b + w (k > r) after that of rank r+1, until its forwards run out.  That is one step
    earlier than on rank r+1, so w must then cover f: rank r waits max(0, f - w) for each of the
    p-1-r ranks behind it.  The sum, r f + (p-1-r) (b + max(0, f - w)), is linear in r, so it is
    largest on the first or the last rank.  With m >= p, inputs from the last rank reach the first
    in time.
    """
    extra_s = limited_extra_s(*costs, stages, stages) / chunks
    return np.where(np.greater_equal(micro_batches, stages), extra_s, np.nan)


INTERLEAVED_ZERO_BUBBLE = PipelineSchedule(
    id="interleaved-zero-bubble",
    title="Interleaved zero bubble",
    citation="zero-bubble",
    extra_s=_extra_s,
    holds="m >= p; elsewhere not a number: simulate",
    in_flight=delayed_weights_in_flight,
    allowed=lambda stages, chunks, micro_batches: rounds_refusal(stages, micro_batches),
    order=order,
    chunk_counts=(),
    splits_backward=True,
)
