"""Interleaved 1F1B: v chunks per rank, depth first (arXiv 2104.04473, section 2.2.2).

Micro-batches go in rounds: a rank takes the micro-batches of one round through its first chunk,
then through its second, and so on, before the next round.  Megatron's rounds are of p
micro-batches, so m must be a multiple of p; torch takes max(1, m // p) rounds of equal size,
whatever that size is, which is the same where m is a multiple of p.
"""

from __future__ import annotations

import numpy as np

from cost_models.schedules.base import Action, Costs, Kind, Order, PipelineSchedule
from cost_models.schedules.one_f_one_b import alternate
from cost_models.sources import Array, formula


@formula("s", "derived", "megatron-2")
def looped_extra_s(work_s: Array, others_s: Array, chunks: Array, micro_batches: Array) -> Array:
    """Seconds the busiest rank waits when micro-batches loop over the ranks v times.

    work_s: of the busiest rank per micro-batch.  With m >= p every rank is busy once the first
    micro-batch has reached it, so it waits for one chunk of every other rank, (p-1) T / v at equal
    stages.  With fewer, ranks also wait for the first micro-batch to come back: the makespan is the
    route of one micro-batch and m - 1 further chunks, p T + (m-1) T / v, of which m T is work.
    """
    later_s = np.subtract(micro_batches, 1.0) * (1.0 - np.divide(1.0, chunks)) * work_s
    return np.maximum(others_s / chunks, others_s - later_s)


@formula("1", "torch")
def round_size(stages: Array, micro_batches: Array) -> Array:
    """Micro-batches a rank takes through one chunk before the next chunk: m / max(1, m // p)."""
    return micro_batches / np.maximum(1.0, np.floor_divide(micro_batches, stages))


@formula("1", "megatron-2", "korthikanti-2022")
def interleaved_in_flight(
    stage: Array, stages: Array, chunks: Array, micro_batches: Array
) -> Array:
    """Activation units a rank holds at its peak: ((v-1) g + 2 (p-1-r) + 1) / v, at most m.  Exact.

    g: micro-batches of a round, p where m is a multiple of p.  The warm-up runs
    (v-1) g + 2 (p-1-r) chunk forwards before the first backward and one more in the steady
    state; rank 0 with g = p: p (1 + (p-1)/(p v)), Korthikanti section 4.2.3.
    """
    warm_up = np.subtract(chunks, 1.0) * round_size(stages, micro_batches) + 2.0 * (
        np.subtract(stages, stage) - 1.0
    )
    return np.minimum(micro_batches, (warm_up + 1.0) / chunks)


def rounds_refusal(stages: int, micro_batches: int) -> str:
    """Why m micro-batches do not split into equal rounds over p ranks; "" if they do."""
    rounds = max(1, micro_batches // stages)
    if micro_batches % rounds == 0:
        return ""
    return (
        f"{micro_batches} micro-batches on {stages} stages do not split into {rounds} equal "
        f"rounds; a multiple of {stages} does"
    )


def visits(stages: int, chunks: int, micro_batches: int) -> list[tuple[int, int]]:
    """The (micro-batch, chunk) of every forward of a rank, in order; the same on all ranks.

    Backwards take the micro-batches in this order too, and the chunks from the last to the first.
    """
    size = int(round_size(stages, micro_batches))
    return [
        (batch, chunk)
        for start in range(0, micro_batches, size)
        for chunk in range(chunks)
        for batch in range(start, start + size)
    ]


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """Rank r: (v-1) g + 2 (p-1-r) chunk forwards, then one forward, one backward in turn."""
    ways = visits(stages, chunks, micro_batches)
    forwards = [Action(Kind.FORWARD, batch, chunk) for batch, chunk in ways]
    backwards = [Action(Kind.BACKWARD, batch, chunks - 1 - chunk) for batch, chunk in ways]
    last = (chunks - 1) * int(round_size(stages, micro_batches))
    return tuple(
        alternate(forwards, backwards, min(len(ways), last + 2 * (stages - 1 - rank)))
        for rank in range(stages)
    )


def _extra_s(costs: Costs, stages: Array, chunks: Array, micro_batches: Array) -> Array:
    work_s = costs.forward_s + costs.input_gradient_s + costs.weight_gradient_s
    return looped_extra_s(work_s, costs.others_s, chunks, micro_batches)


INTERLEAVED = PipelineSchedule(
    id="interleaved-1f1b",
    title="Interleaved 1F1B (VPP)",
    citation="megatron-2",
    extra_s=_extra_s,
    holds="always",
    in_flight=interleaved_in_flight,
    allowed=lambda stages, chunks, micro_batches: rounds_refusal(stages, micro_batches),
    order=order,
    chunk_counts=(),
)
