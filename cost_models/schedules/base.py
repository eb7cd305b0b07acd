"""What a pipeline schedule tells the rest of the product.  One file each, one line to register.

Units: a rank's whole share of one micro-batch (all chunks it visits there) takes F + I + W seconds
(forward, input gradient, weight gradient) and keeps one unit of activations; one of its equal
chunks takes and keeps an equal part of that.  Closed forms take float64 arrays that broadcast;
orders are integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple

from cost_models.sources import Array


class Kind(IntEnum):
    """What a rank does with one micro-batch in one chunk."""

    FORWARD = 0
    BACKWARD = 1  # both gradients, fused
    INPUT_GRADIENT = 2
    WEIGHT_GRADIENT = 3


class Action(NamedTuple):
    """One step of one rank."""

    kind: Kind
    micro_batch: int
    chunk: int


Placement = Literal["loop", "wave", "two-way"]
# Per rank, in the order in which it runs them.
Order = tuple[tuple[Action, ...], ...]
# A route: the (rank, chunk) a micro-batch visits forward, first to last virtual stage.
Route = tuple[tuple[int, int], ...]


class Costs(NamedTuple):
    """Seconds of one rank's share of one micro-batch.

    forward_s, input_gradient_s, weight_gradient_s: of the busiest rank; others_s: F + I + W of
    all the other ranks together, (p-1)(F + I + W) when they are equal.
    """

    forward_s: Array
    input_gradient_s: Array
    weight_gradient_s: Array
    others_s: Array


@dataclass(frozen=True)
class PipelineSchedule:
    """A schedule: closed forms for the search, an action order for the simulator.

    extra_s(costs, stages, chunks, micro_batches): makespan less the busiest rank's work, without
        communication; exact for equal stages inside `holds`, NaN outside it: simulate.  None: no
        closed form at all.
    holds: the region of the closed form, in words.
    in_flight(stage, stages, chunks, micro_batches): peak activation units of a rank.
    freed_at: "input gradient" or "weight gradient": where that unit is given back.
    weight_copies(stage, stages): copies of the rank's weights.
    messages(stages, chunks): sends per micro-batch over the whole pipeline, both directions.
    allowed(stages, chunks, micro_batches): "" or the reason why not.
    route(stages, chunks, micro_batch): where a micro-batch goes.
    order(stages, chunks, micro_batches): what each rank does.
    chunk_counts: the chunks per rank it can have; empty: any number (the search tries >= 2).
    staleness: what an asynchronous schedule does to the weights; empty: synchronous.
    keeps_all: every forward runs before the first backward, so that the last chunk too holds all
        micro-batches (else the backward of a loss follows it at once).
    placement: how virtual stages lie on ranks: "loop" (chunk after chunk over all ranks), "wave"
        (every second chunk runs back), "two-way" (two copies, one in each direction).
    """

    id: str
    title: str
    citation: str
    extra_s: Callable[[Costs, Array, Array, Array], Array] | None
    holds: str
    in_flight: Callable[[Array, Array, Array, Array], Array]
    weight_copies: Callable[[Array, Array], Array]
    messages: Callable[[int, int], int]
    allowed: Callable[[int, int, int], str]
    route: Callable[[int, int, int], Route]
    order: Callable[[int, int, int], Order]
    chunk_counts: tuple[int, ...] = (1,)
    splits_backward: bool = False
    freed_at: str = "weight gradient"
    staleness: str = ""
    keeps_all: bool = False
    placement: Placement = "loop"

    @property
    def synchronous(self) -> bool:
        return not self.staleness
