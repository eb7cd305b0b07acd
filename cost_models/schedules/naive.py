"""Naive model parallelism: one micro-batch at a time through all stages, nothing overlaps.

The baseline of the GPipe paper (arXiv 1811.06965, section 1).  A batch that is not split at all
is the case m = 1.
"""

from __future__ import annotations

import numpy as np

from cost_models.schedules.base import Action, Costs, Kind, Order, PipelineSchedule
from cost_models.schedules.gpipe import one_chunk
from cost_models.sources import Array, formula


@formula("s", "derived", "gpipe")
def one_at_a_time_extra_s(others_s: Array, micro_batches: Array) -> Array:
    """Seconds the busiest rank waits: for all other ranks, once per micro-batch.

    The first rank starts a micro-batch after its backward of the one before, which is that one's
    last step: exactly one rank works at any time and the makespan is m times the sum over ranks.
    Equal stages: (p-1) m T, that is (p-1)/p of the total.  Holds for unequal stages too.
    """
    return micro_batches * others_s


@formula("1", "derived", "gpipe")
def one_in_flight(stage: Array) -> Array:
    """Activation units a rank holds at its peak: one micro-batch.  Exact."""
    return np.multiply(stage, 0.0) + 1.0


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Every rank: forward and backward of each micro-batch in turn."""
    actions = tuple(
        Action(kind, batch, 0)
        for batch in range(micro_batches)
        for kind in (Kind.FORWARD, Kind.BACKWARD)
    )
    return (actions,) * stages


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    return one_at_a_time_extra_s(costs.others_s, micro_batches)


NAIVE = PipelineSchedule(
    id="naive",
    title="Naive model parallelism",
    citation="gpipe",
    extra_s=_extra_s,
    holds="always",
    in_flight=lambda stage, stages, chunks, micro_batches: one_in_flight(stage),
    allowed=lambda stages, chunks, micro_batches: one_chunk("naive", chunks),
    order=order,
)
