"""ZB-H2: a warm-up twice as long, so that no rank waits once started (arXiv 2401.10241, 2.2).

Ranks start and end one after another: to gain from that, the optimizer must step per rank, and the
paper checks the global gradient norm afterwards (post-validation).  The times here are makespans,
the cost of a step that waits for all ranks.
"""

from __future__ import annotations

import numpy as np

from cost_models.schedules.base import Costs, PipelineSchedule
from cost_models.schedules.zb_h1 import filled_refusal, limited_extra_s, limited_order
from cost_models.sources import Array, formula


@formula("1", "zero-bubble")
def zb_h2_in_flight(stage: Array, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    """Activation units a rank holds at its peak, kept until the weight gradient: min(m, 2p - 1).

    Exact.  With m >= 2p - 1, rank r has 2(p-r) - 1 micro-batches between forward and input
    gradient, and 2r that wait for their weight gradient.
    """
    return np.minimum(micro_batches, np.multiply(stages, 2.0) - 1.0) + np.multiply(stage, 0.0)


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    limit = zb_h2_in_flight(0.0, stages, chunks, micro_batches)
    return limited_extra_s(*costs, stages, limit)


ZB_H2 = PipelineSchedule(
    id="zb-h2",
    title="ZB-H2",
    citation="zero-bubble",
    extra_s=_extra_s,
    holds="m >= p",
    in_flight=zb_h2_in_flight,
    allowed=lambda stages, chunks, micro_batches: filled_refusal(
        "zb-h2", stages, chunks, micro_batches
    ),
    order=lambda stages, chunks, micro_batches: limited_order(stages, micro_batches, 2),
    splits_backward=True,
)
