"""V-Min: the V schedule with the least memory, a third of 1F1B's (arXiv 2405.15362, section 4)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules.base import Order
from cost_models.schedules.building_block import Block, block_order
from cost_models.schedules.zb_v import two_chunks, v_schedule
from cost_models.sources import Array, formula


@formula("1", "v-schedules")
def v_min_in_flight(stage: Array, stages: Array, micro_batches: Array) -> Array:
    """Upper bound on the activation units of a rank, by construction: min(m, floor((p + 4) / 3)).

    At one slot per hop, the two chunks of a micro-batch stay on a rank for about 4 p slots in all,
    and a micro-batch enters every 6 slots: 4 p / 6 chunks of half a unit, rounded up with the slots
    at the turns.
    """
    limit = np.floor_divide(np.add(stages, 4.0), 3.0)
    return np.minimum(micro_batches, limit) + np.multiply(stage, 0.0)


def block(stages: int) -> Block:
    """One slot per hop; waits only where micro-batches would collide, that is if 3 divides p.

    On rank r the forwards start at r and C - r, the gradients at D + r and E - r.  These differ
    modulo 6 on every rank if C and E are odd, D is even, and modulo 6 D is not 0 and E is not C.
    Without waits C = 2p - 1, D = 2p and E = 4p - 1, which fails the last two if 3 divides p.
    """
    return Block((1, 1, 1, 1), (0, 0, 0) if stages % 3 else (2, 0, 2))


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """The repeated block; at equal times the makespan is 6m + 4p - 5 chunk times for any m."""
    return block_order(stages, micro_batches, block(stages), 2 * ((stages + 4) // 3))


V_MIN = v_schedule(
    id="v-min",
    title="V-Min",
    citation="v-schedules",
    extra_s=None,
    holds="no closed form: gaps reappear with every micro-batch unless t_f = t_b = t_w; simulate",
    in_flight=lambda stage, stages, chunks, micro_batches: v_min_in_flight(
        stage, stages, micro_batches
    ),
    allowed=lambda stages, chunks, micro_batches: two_chunks("v-min", chunks),
    order=order,
)
