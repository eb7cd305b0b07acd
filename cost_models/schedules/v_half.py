"""V-Half: a V with half of 1F1B's memory and half of its bubble (arXiv 2405.15362, section 4)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules.base import Order
from cost_models.schedules.building_block import Block, block_order
from cost_models.schedules.zb_v import two_chunks, v_schedule
from cost_models.sources import Array, formula

# Blocks for few ranks, where slower hops still fit into the limit: the shortest makespans among
# all blocks of up to 3 slots per hop and 4 per wait.
FEW_RANKS = {
    2: Block((2, 3, 3, 3), (1, 0, 0)),
    4: Block((2, 2, 2, 2), (2, 0, 2)),
}
# With two micro-batches on two ranks, the block need not repeat: this one has the shortest makespan
# at t_f : t_b : t_w = 10 : 12 : 8 of those that hold one and a half units on the first rank.  It
# takes 14 chunk times at equal times; the block above takes 13 but holds two units there.
TWO_BY_TWO = Block((1, 1, 1, 1), (4, 0, 4))


@formula("1", "v-schedules")
def v_half_in_flight(stage: Array, stages: Array, micro_batches: Array) -> Array:
    """Upper bound on the activation units of a rank, by construction: min(m, floor((p + 2) / 2)).

    At one slot per hop down and two per hop up, the two chunks of a micro-batch stay on a rank for
    about 6 p slots in all, and a micro-batch enters every 6 slots: p chunks of half a unit, plus
    those at the turns.
    """
    limit = np.floor_divide(np.add(stages, 2.0), 2.0)
    return np.minimum(micro_batches, limit) + np.multiply(stage, 0.0)


def block(stages: int) -> Block:
    """Hops of one slot down and two up, for forwards and gradients, with waits at the turns.

    On rank r the forwards start at r and C - 2r, the gradients at D + r and E - 2r.  These differ
    modulo 6 on every rank if C, E, D - C and E - D are not multiples of 3, and D and E - C not
    multiples of 6.  Without waits C = 3p - 2, D = 3p - 1 and E = 6p - 3: odd p need one more slot
    in E.  Even p need more waits; seven slots in all, as many as the limit allows at the turns,
    take the least time.
    """
    return FEW_RANKS.get(stages) or Block((1, 2, 1, 2), (0, 0, 1) if stages % 2 else (3, 0, 4))


def order(stages: int, chunks: int, micro_batches: int) -> Order:
    """The repeated block.  At equal times and m >= p the makespan is 6m + 3p - 5 chunk times for
    even p > 4, 6m + 3p - 4 for odd p > 1.
    """
    chosen = TWO_BY_TWO if stages == micro_batches == 2 else block(stages)
    return block_order(stages, micro_batches, chosen, 2 * ((stages + 2) // 2))


V_HALF = v_schedule(
    id="v-half",
    title="V-Half",
    citation="v-schedules",
    extra_s=None,
    holds="no closed form but at t_f = t_b = t_w (see `order`); simulate",
    in_flight=lambda stage, stages, chunks, micro_batches: v_half_in_flight(
        stage, stages, micro_batches
    ),
    allowed=lambda stages, chunks, micro_batches: two_chunks("v-half", chunks),
    order=order,
)
