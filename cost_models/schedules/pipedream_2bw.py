"""PipeDream-2BW: no flush, gradients summed over a batch, two weight buffers (arXiv 2006.09503)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules import one_f_one_b
from cost_models.schedules.base import PipelineSchedule
from cost_models.schedules.pipedream import PIPEDREAM
from cost_models.schedules.zb_h1 import filled_refusal
from cost_models.sources import Array, formula


@formula("1", "pipedream-2bw")
def double_buffered_copies(stage: Array) -> Array:
    """Copies of a rank's weights: 2, the current version and the one of the batch before.

    Two suffice with m >= p micro-batches per batch: those in flight then span at most two batches.
    """
    return np.multiply(stage, 0.0) + 2.0


PIPEDREAM_2BW = PipelineSchedule(
    id="pipedream-2bw",
    title="PipeDream-2BW",
    citation="pipedream-2bw",
    extra_s=PIPEDREAM.extra_s,
    holds="per step of a long run; an order of m micro-batches has the one fill and drain too",
    in_flight=one_f_one_b.one_f_one_b_in_flight,
    weight_copies=lambda stage, stages: double_buffered_copies(stage),
    allowed=lambda stages, chunks, micro_batches: filled_refusal(
        "pipedream-2bw", stages, chunks, micro_batches
    ),
    order=one_f_one_b.order,
    staleness=(
        "All ranks use weights one update old, whatever the number of stages: "
        "W(t+1) = W(t) - lr gradient(W(t-1))."
    ),
)
