"""V-Min: a V with the least memory, about a third of 1F1B's (arXiv 2405.15362, section 4)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules import routes
from cost_models.schedules.base import Order, PipelineSchedule
from cost_models.schedules.building_block import Block, block_order
from cost_models.schedules.gpipe import one_copy
from cost_models.schedules.zb_v import two_chunks, v_messages
from cost_models.sources import Array, formula


@formula("1", "v-schedules")
def v_min_in_flight(stage: Array, stages: Array, micro_batches: Array) -> Array:
    """Activation units a rank holds at most: floor((p + 4) / 3), and m.  A bound, by construction.

    One slot per hop keeps the two chunks of a micro-batch 4 p slots or so on every rank, and one
    enters every 6 slots: 4 p / 6 chunks of half a unit, rounded up with the slots at the turns.
    """
    limit = np.floor_divide(np.add(stages, 4.0), 3.0)
    return np.minimum(micro_batches, limit) + np.multiply(stage, 0.0)


def block(stages: int) -> Block:
    """One slot per hop, without waits unless micro-batches would collide, as they do at 3 | p.

    On rank r the forwards start at r and C - r, the gradients at D + r and E - r.  Modulo 6 they
    differ on every rank if C and E are odd, D even, D not 0 and E not C: with no waits
    C = 2p - 1, D = 2p and E = 4p - 1, where the last two say that 3 does not divide p.
    """
    return Block((1, 1, 1, 1), (0, 0, 0) if stages % 3 else (2, 0, 2))


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """The block repeated; at equal times the makespan is 6m + 4p - 5 chunk times for any m."""
    return block_order(stages, micro_batches, block(stages), 2 * ((stages + 4) // 3))


V_MIN = PipelineSchedule(
    id="v-min",
    title="V-Min",
    citation="v-schedules",
    extra_s=None,
    holds="no closed form: gaps reappear with every micro-batch unless t_f = t_b = t_w; simulate",
    in_flight=lambda stage, stages, chunks, micro_batches: v_min_in_flight(
        stage, stages, micro_batches
    ),
    weight_copies=one_copy,
    messages=v_messages,
    allowed=lambda stages, chunks, micro_batches: two_chunks("v-min", chunks),
    route=routes.wave,
    order=order,
    chunk_counts=(2,),
    splits_backward=True,
    placement="wave",
)
