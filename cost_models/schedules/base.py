"""The interface of pipeline schedules: one file each, and a line in `SCHEDULES`.

Units: a rank's share of one micro-batch (all chunks it visits there) takes F + I + W seconds
(forward, input gradient, weight gradient) and keeps one unit of activations; each of its v equal
chunks takes and keeps 1/v of that.  Closed forms take float64 arrays that broadcast; orders take
integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from cost_models.sources import Array


class Kind(IntEnum):
    """The kind of an action: what a rank computes for one micro-batch in one chunk."""

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
# The actions of each rank, in the order in which it runs them.
Order = tuple[tuple[Action, ...], ...]
# A route: the (rank, chunk) a micro-batch visits forward, first to last virtual stage.
Route = tuple[tuple[int, int], ...]


class Costs(NamedTuple):
    """Seconds of one rank's share of one micro-batch.

    forward_s, input_gradient_s, weight_gradient_s: of the busiest rank; others_s: the sum of
    F + I + W over all other ranks, (p-1)(F + I + W) when ranks are equal.
    """

    forward_s: Array
    input_gradient_s: Array
    weight_gradient_s: Array
    others_s: Array


def loop(stages: int, chunks: int, micro_batch: int) -> Route:
    """Chunk after chunk over all ranks: virtual stage c p + r on rank r (SC'21, 2.2.2)."""
    return tuple((rank, chunk) for chunk in range(chunks) for rank in range(stages))


def wave(stages: int, chunks: int, micro_batch: int) -> Route:
    """Every second chunk runs back, so that each turn stays on one rank; two chunks: a V."""
    return tuple(
        (rank if chunk % 2 == 0 else stages - 1 - rank, chunk)
        for chunk in range(chunks)
        for rank in range(stages)
    )


def loop_messages(stages: Array, chunks: Array) -> Array:
    """Sends per micro-batch along a loop of one or more chunks: p v - 1 hops, forward and backward.

    A single rank sends nothing.
    """
    return 2 * (stages * chunks - 1) * (stages > 1)


def wave_messages(stages: Array, chunks: Array) -> Array:
    """Sends per micro-batch along a wave: p-1 hops per chunk, both ways; turns are local."""
    return 2 * chunks * (stages - 1)


def one_copy(stage: Array, stages: Array) -> Array:
    """Copies of a rank's weights in a schedule that updates them between batches: one."""
    return np.multiply(stage, 0.0) + 1.0


@dataclass(frozen=True)
class PipelineSchedule:
    """A schedule: closed forms for the search, an action order for the simulator.

    extra_s(costs, stages, chunks, micro_batches): makespan less the busiest rank's work, without
        communication; exact for equal stages inside `holds`; NaN outside, where the schedule must
        be simulated.  None: no closed form.
    holds: the region of the closed form, in words.
    in_flight(stage, stages, chunks, micro_batches): peak activation units of a rank.
    freed_at: "input gradient" or "weight gradient": the action that frees that unit.
    weight_copies(stage, stages): copies of the rank's weights.
    messages(stages, chunks): sends per micro-batch over the whole pipeline, both directions.
    shown_messages(stages, chunks): sends of a step that show where others run under chunks; exact
        for equal stages of interleaved 1F1B, looped BFS and DualPipe-V.  None: those of one
        micro-batch, the first on its way and the last on its way back.
    allowed(stages, chunks, micro_batches): "", or why the schedule cannot run.
    route(stages, chunks, micro_batch): the route of a micro-batch.
    order(stages, chunks, micro_batches): the actions of each rank.
    chunk_counts: allowed chunks per rank; empty: any number (the search tries >= 2).
    staleness: the effect of an asynchronous schedule on the weights; empty: synchronous.
    keeps_all: every forward runs before the first backward, so that even the last chunk holds all
        micro-batches (otherwise a backward follows its loss at once).
    placement: how virtual stages map to ranks: "loop" (chunk after chunk over all ranks), "wave"
        (every second chunk runs back), "two-way" (two copies, one in each direction).
    """

    id: str
    title: str
    citation: str
    extra_s: Callable[[Costs, Array, Array, Array], Array] | None
    holds: str
    in_flight: Callable[[Array, Array, Array, Array], Array]
    allowed: Callable[[int, int, int], str]
    order: Callable[[int, int, int], Order]
    weight_copies: Callable[[Array, Array], Array] = one_copy
    messages: Callable[[Array, Array], Array] = loop_messages
    shown_messages: Callable[[Array, Array], Array] | None = None
    route: Callable[[int, int, int], Route] = loop
    chunk_counts: tuple[int, ...] = (1,)
    splits_backward: bool = False
    freed_at: str = "weight gradient"
    staleness: str = ""
    keeps_all: bool = False
    placement: Placement = "loop"

    @property
    def synchronous(self) -> bool:
        return not self.staleness


# A schedule whose every second chunk runs back.
wave_schedule = partial(PipelineSchedule, messages=wave_messages, route=wave, placement="wave")
