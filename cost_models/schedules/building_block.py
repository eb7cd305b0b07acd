"""V schedules from a building block (arXiv 2405.15362, sections 3 and 4).

A building block gives the times at which each rank runs the forwards and input gradients of one
micro-batch, in slots of one chunk action.  Every micro-batch repeats it six slots after the one
before, since a micro-batch has six chunk actions on a rank.  So a rank holds activations in
proportion to the time between forward and gradient in the block: slow hops cost memory, fast ones
leave less room between micro-batches.  Weight gradients run wherever a rank would wait, and the
remaining gaps at both ends of the schedule are closed.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import NamedTuple

from cost_models.schedules.base import Action, Kind, Order

INTERVAL = 6


class Block(NamedTuple):
    """Slots per hop from rank to rank, and slots to wait at the turns.

    hops: of the forward down and up, and of the input gradient down and up again.  waits: before
    the forward's turn on the last rank, the loss on rank 0, and the gradient's turn on the last
    rank.
    """

    hops: tuple[int, int, int, int]
    waits: tuple[int, int, int]

    def slots(self, stages: int, rank: int) -> dict[tuple[Kind, int], int]:
        """Slot of each forward and input gradient, by kind and chunk, of micro-batch 0."""
        down, up, back_down, back_up = self.hops
        last = stages - 1
        up_end = (down + up) * last + 1 + self.waits[0]
        loss = up_end + 1 + self.waits[1]
        end = loss + (back_down + back_up) * last + 1 + self.waits[2]
        return {
            (Kind.FORWARD, 0): down * rank,
            (Kind.FORWARD, 1): up_end - up * rank,
            (Kind.INPUT_GRADIENT, 1): loss + back_down * rank,
            (Kind.INPUT_GRADIENT, 0): end - back_up * rank,
        }


def block_order(stages: int, micro_batches: int, block: Block, limit: int) -> Order:
    """Each rank's forwards and input gradients in the block's order, as early as they can run.

    While the input of the next one has not arrived, or it is a forward and `limit` chunks are held,
    a rank runs its oldest due weight gradient.  Every action takes one slot.  A block that repeats
    without collisions and holds at most `limit` chunks never gets stuck.
    """
    plans = [_plan(stages, rank, micro_batches, block) for rank in range(stages)]
    last = 2 * stages - 1
    # By virtual stage and micro-batch: the slot from which it can run.
    forward_from = [[sys.maxsize] * micro_batches for _ in range(2 * stages)]
    gradient_from = [[sys.maxsize] * micro_batches for _ in range(2 * stages)]
    forward_from[0] = [0] * micro_batches
    cursor, in_flight = [0] * stages, [0] * stages
    due: list[deque[Action]] = [deque() for _ in range(stages)]
    done: list[list[Action]] = [[] for _ in range(stages)]

    def planned(rank: int, slot: int) -> Action | None:
        """The next action of the rank's plan, if it can run in this slot."""
        if cursor[rank] == len(plans[rank]):
            return None
        action = plans[rank][cursor[rank]]
        stage = last - rank if action.chunk else rank
        backward = action.kind is Kind.INPUT_GRADIENT
        arrived = (gradient_from if backward else forward_from)[stage][action.micro_batch] <= slot
        return action if arrived and (backward or in_flight[rank] < limit) else None

    def run(rank: int, slot: int) -> bool:
        """Run one action of the rank in this slot; False if none can run."""
        action = planned(rank, slot)
        if action is None:
            if not due[rank]:
                return False
            done[rank].append(due[rank].popleft())
            in_flight[rank] -= 1
            return True
        cursor[rank] += 1
        done[rank].append(action)
        kind, batch, chunk = action
        stage = last - rank if chunk else rank
        if kind is Kind.INPUT_GRADIENT:
            due[rank].append(Action(Kind.WEIGHT_GRADIENT, batch, chunk))
            if stage:
                gradient_from[stage - 1][batch] = slot + 1
        else:
            in_flight[rank] += 1
            if stage < last:
                forward_from[stage + 1][batch] = slot + 1
            else:
                gradient_from[stage][batch] = slot + 1
        return True

    slot = 0
    # `sum`, since `any` would stop at the first rank, and every rank runs in every slot.
    while sum(run(rank, slot) for rank in range(stages)):
        slot += 1
    return tuple(tuple(actions) for actions in done)


def _plan(stages: int, rank: int, micro_batches: int, block: Block) -> list[Action]:
    """Forwards and input gradients of a rank in the order of the repeated block."""
    slots = block.slots(stages, rank).items()
    repeated = sorted(
        (start + INTERVAL * batch, Action(kind, batch, chunk))
        for (kind, chunk), start in slots
        for batch in range(micro_batches)
    )
    return [action for _, action in repeated]
