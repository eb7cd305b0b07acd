"""PipeDream: 1F1B without a flush, one update per micro-batch (SOSP'19, arXiv 1806.03377)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules import one_f_one_b
from cost_models.schedules.base import Costs, PipelineSchedule
from cost_models.schedules.gpipe import one_chunk
from cost_models.sources import Array, formula


@formula("s", "derived", "pipedream")
def steady_state_extra_s(others_s: Array) -> Array:
    """Seconds the busiest rank waits per step once the pipeline is filled: 0.

    Batches follow one another in 1F1B without a flush, so every further micro-batch adds only the
    slowest rank's time.  The fill and the drain, (p-1) T at equal stages, come once per run.
    """
    return np.multiply(others_s, 0.0)


@formula("1", "pipedream")
def stashed_copies(stage: Array, stages: Array) -> Array:
    """Copies of rank r's weights: p - r, one version per micro-batch in flight (section 3.3)."""
    return np.subtract(stages, stage)


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    return steady_state_extra_s(costs.others_s)


PIPEDREAM = PipelineSchedule(
    id="pipedream",
    title="PipeDream",
    citation="pipedream",
    extra_s=_extra_s,
    holds="per step of a long run; an order of m micro-batches has the one fill and drain too",
    in_flight=one_f_one_b.one_f_one_b_in_flight,
    weight_copies=stashed_copies,
    allowed=lambda stages, chunks, micro_batches: one_chunk("pipedream", chunks),
    order=one_f_one_b.order,
    staleness=(
        "Each rank updates its weights after every micro-batch and keeps the version a "
        "micro-batch came with for its backward: on rank r of p its gradient is p-1-r updates "
        "old, and the ranks of one micro-batch use versions of different age."
    ),
)
