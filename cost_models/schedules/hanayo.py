"""Hanayo: micro-batches run through w waves of two chunks each (SC'23, arXiv 2308.15762).

A micro-batch runs down the ranks in one chunk and back up in the next, v = 2w chunks in all, so
that every turn stays on one rank.  The paper shows m = p; here that order repeats in rounds of p
micro-batches.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from cost_models.schedules.base import Action, Costs, Kind, Order, wave_schedule
from cost_models.sources import Array, formula

CHUNK_COUNTS = (2, 4, 8)


@formula("s", "derived", "hanayo")
def hanayo_extra_s(forward_s: Array, backward_s: Array, others_s: Array, chunks: Array) -> Array:
    """Seconds the busiest rank waits: 2 (p-1) max(t_f, t_b) / v, t_b the whole backward.

    Rank p-1 starts p-1 chunk forwards late and ends p-1 chunk backwards early.  In between, at
    m = p, its first backward arrives p-1 chunk backwards after the loss on rank 0, and meanwhile it
    has only p-1 chunk forwards to run: it waits (p-1)(t_b - t_f) / v.  With t_f > t_b the same
    holds in reverse.  No order of p micro-batches avoids these three waits; neither this order nor
    more rounds add others.

    So at t_b = 2 t_f and m = p the bubble is (2p-2) / (3pw + 2p-2) of the step.  The form quoted
    for the paper, (2p-2) / (3pw + p-1), counts only half of the bubble in the step.
    Unequal stages: the other ranks are assumed to have the busiest rank's t_f : t_b : t_w.
    """
    share = others_s / np.add(forward_s, backward_s)
    return 2.0 * share * np.maximum(forward_s, backward_s) / chunks


@formula("1", "derived", "hanayo")
def hanayo_in_flight(stage: Array, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    """Activation units a rank holds at its peak: p; p - (p-1-r)/v at m = p.  Exact.

    A chunk at position pos of the route is held for 2 (v p - pos) - 1 slots of `order`, all chunks
    of a rank for 4 p w^2 = p v^2 in all, and a micro-batch enters every v slots: p v chunks at any
    time.  At m = p there is no second round, of which p-1-r forwards would precede the first
    backward.
    """
    missing = np.subtract(stages, 1.0) - stage
    return stages - np.where(np.greater(micro_batches, stages), 0.0, missing / chunks)


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """The actions of each rank sorted by slot; a slot holds one forward and one backward.

    Micro-batch k of a round enters at slot 2k and moves one rank per slot.  On a rank the two
    chunks of a wave then fill 2p slots in turn, the next wave the next 2p, and the next round
    follows after v p.  Backwards retrace the route, the first one in the slot of micro-batch 0's
    last forward.
    """
    length = stages * chunks

    def of_rank(rank: int) -> tuple[Action, ...]:
        position = [
            chunk * stages + (stages - 1 - rank if chunk % 2 else rank) for chunk in range(chunks)
        ]
        slots = []
        for batch, chunk in product(range(micro_batches), range(chunks)):
            entry = batch // stages * length + 2 * (batch % stages)
            forward = entry + position[chunk]
            backward = entry + 2 * (length - 1) - position[chunk]
            slots.append((forward, Kind.FORWARD, chunk, batch))
            slots.append((backward, Kind.BACKWARD, chunk, batch))
        return tuple(Action(kind, batch, chunk) for _, kind, chunk, batch in sorted(slots))

    return tuple(of_rank(rank) for rank in range(stages))


def refusal(stages: int, chunks: int, micro_batches: int) -> str:
    """Why Hanayo cannot run; "" if it can."""
    if chunks not in CHUNK_COUNTS:
        return f"hanayo runs 2, 4 or 8 chunks per rank (1, 2 or 4 waves), got {chunks}"
    if micro_batches % stages:
        return f"hanayo runs rounds of {stages} micro-batches, got {micro_batches}"
    return ""


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    backward_s = np.add(costs.input_gradient_s, costs.weight_gradient_s)
    return hanayo_extra_s(costs.forward_s, backward_s, costs.others_s, chunks)


HANAYO = wave_schedule(
    id="hanayo",
    title="Hanayo",
    citation="hanayo",
    extra_s=_extra_s,
    holds="wherever it is allowed, m a multiple of p",
    in_flight=hanayo_in_flight,
    allowed=refusal,
    order=order,
    chunk_counts=CHUNK_COUNTS,
)
