"""ZB-H1: 1F1B with weight gradients delayed into the drain (arXiv 2401.10241, section 2.1)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules.base import Action, Costs, Kind, Order, PipelineSchedule
from cost_models.schedules.gpipe import one_chunk
from cost_models.sources import Array, formula


@formula("s", "derived", "zero-bubble")
def limited_extra_s(
    forward_s: Array,
    input_gradient_s: Array,
    weight_gradient_s: Array,
    others_s: Array,
    stages: Array,
    limit: Array,
) -> Array:
    """Seconds the busiest rank waits when every rank holds at most L = `limit` micro-batches:
    max((p-1) t_f, (p-1) t_b - (L-p) t_f, (p-1)(t_f + t_b) - (L-1) t_w), for m >= p.

    `limited_order` meets the largest of three lower bounds.  First, the last rank starts (p-1) t_f
    late and never waits again.  Second, rank 0 waits (p-1) t_b for its first gradient, less the L-p
    forwards that it runs meanwhile.  Third, when the last gradient leaves the last rank, L weight
    gradients remain there; when it arrives on rank 0, (p-1) t_b later, one remains there.

    ZB-H1 (L = p): (p-1) max(t_f, t_b, t_f + t_b - t_w); the paper's table has only the third, the
    largest while t_w <= t_f and t_w <= t_b.  ZB-H2 (L = 2p-1): (p-1) max(t_f, t_b - t_f,
    t_f + t_b - 2 t_w); the paper counts the longest span (end less own start), without the first.
    Unequal stages: the other ranks are assumed to have the busiest rank's t_f : t_b : t_w.
    """
    others = others_s / (np.add(forward_s, input_gradient_s) + weight_gradient_s)
    warm_up_s = others * input_gradient_s - np.subtract(limit, stages) * forward_s
    drain_s = (
        others * np.add(forward_s, input_gradient_s) - np.subtract(limit, 1.0) * weight_gradient_s
    )
    return np.maximum(others * forward_s, np.maximum(warm_up_s, drain_s))


@formula("1", "zero-bubble")
def zb_h1_in_flight(stage: Array, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    """Activation units a rank holds at its peak, kept until the weight gradient: min(m, p).  Exact.

    Rank r has p - r micro-batches between forward and input gradient, and r that wait for their
    weight gradient.
    """
    return np.minimum(micro_batches, stages) + np.multiply(stage, 0.0)


def limited_order(stages: int, micro_batches: int, step: int) -> Order:
    """Rank r: step (p-1-r) + 1 forwards; then input gradient, a weight gradient, forward in turn.

    Weight gradients are delayed by as many micro-batches as bring every rank to the limit of rank
    0, step (p-1) + 1; the remaining ones end the order.

    step: micro-batches by which the warm-up grows per rank; 1: ZB-H1, 2: ZB-H2.
    """
    forwards, inputs, weights = (
        [Action(kind, batch, 0) for batch in range(micro_batches)]
        for kind in (Kind.FORWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
    )
    limit = min(micro_batches, step * (stages - 1) + 1)

    def rank_order(rank: int) -> tuple[Action, ...]:
        warm_up = min(micro_batches, step * (stages - 1 - rank) + 1)
        late = limit - warm_up
        actions = forwards[:warm_up]
        for batch in range(micro_batches):
            actions.append(inputs[batch])
            if batch >= late:
                actions.append(weights[batch - late])
            if batch + warm_up < micro_batches:
                actions.append(forwards[batch + warm_up])
        return (*actions, *weights[micro_batches - late :])

    return tuple(rank_order(rank) for rank in range(stages))


def filled_refusal(name: str, stages: int, chunks: int, micro_batches: int) -> str:
    """Why a schedule of whole stages that fills its pipeline cannot run; "" if it can."""
    if micro_batches < stages:
        return f"{name} fills {stages} stages: at least {stages} micro-batches, got {micro_batches}"
    return one_chunk(name, chunks)


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    return limited_extra_s(*costs, stages, stages)


ZB_H1 = PipelineSchedule(
    id="zb-h1",
    title="ZB-H1",
    citation="zero-bubble",
    extra_s=_extra_s,
    holds="m >= p",
    in_flight=zb_h1_in_flight,
    allowed=lambda stages, chunks, micro_batches: filled_refusal(
        "zb-h1", stages, chunks, micro_batches
    ),
    order=lambda stages, chunks, micro_batches: limited_order(stages, micro_batches, 1),
    splits_backward=True,
)
