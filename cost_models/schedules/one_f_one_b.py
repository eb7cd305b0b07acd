"""1F1B (PipeDream-Flush): a backward as soon as one can run (arXiv 2104.04473, section 2.2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from cost_models.schedules.base import Action, Kind, Order, PipelineSchedule
from cost_models.schedules.gpipe import GPIPE, one_chunk
from cost_models.sources import Array, formula


@formula("1", "megatron-2")
def one_f_one_b_in_flight(
    stage: Array, stages: Array, chunks: Array, micro_batches: Array
) -> Array:
    """Activation units a rank holds at its peak: min(m, p - r).  Exact.

    p-1-r forwards of warm-up and one more before the first backward; from there on each forward
    follows a backward.
    """
    return np.minimum(micro_batches, np.subtract(stages, stage))


def alternate(
    forwards: Sequence[Action], backwards: Sequence[Action], warm_up: int
) -> tuple[Action, ...]:
    """`warm_up` forwards, then one forward and one backward in turn, then the other backwards."""
    steady = len(forwards) - warm_up
    pairs = zip(forwards[warm_up:], backwards[:steady], strict=True)
    return (*forwards[:warm_up], *chain.from_iterable(pairs), *backwards[steady:])


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Rank r: p-1-r forwards (at most m), then forward and backward in turn, then backwards."""
    forwards = [Action(Kind.FORWARD, batch, 0) for batch in range(micro_batches)]
    backwards = [Action(Kind.BACKWARD, batch, 0) for batch in range(micro_batches)]
    return tuple(
        alternate(forwards, backwards, min(micro_batches, stages - 1 - rank))
        for rank in range(stages)
    )


ONE_F_ONE_B = PipelineSchedule(
    id="1f1b",
    title="1F1B (PipeDream-Flush)",
    citation="megatron-2",
    extra_s=GPIPE.extra_s,
    holds="always, m < p included",
    in_flight=one_f_one_b_in_flight,
    allowed=lambda stages, chunks, micro_batches: one_chunk("1f1b", chunks),
    order=order,
)  # fmt: skip
