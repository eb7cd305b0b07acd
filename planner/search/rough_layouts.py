"""Layouts that balance the FLOP of layers: where a search starts, before it knows their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cost_models.flops import layer_matrix_parameters, matmul_flop, mixing_flop
from cost_models.layers import layers_of
from cost_models.schedules.base import Placement
from cost_models.spec import ModelSpec, TrainingSpec
from cost_models.stage_layers import virtual_stage_layers, virtual_stages
from planner.search.layer_partition import LayerLoads, Stages, pace_s, partition_layers

# A partition is tried beside the usual splits if it has at most this share of the work between
# micro-batches (Stages.pace_s) that the best of those has.
WORTH_A_TRY = 0.98
Ends = tuple[int, int]


class RoughLayout(NamedTuple):
    """Layers of each virtual stage, for a placement and a number of chunks per rank.

    share: its work between micro-batches over that of the best usual split; 0 if there is none.
    """

    placement: Placement
    chunks: int
    layers: tuple[int, ...]
    share: float


@lru_cache(maxsize=64)
def _flop(model: ModelSpec, seq_length: int) -> tuple[tuple[float, ...], float]:
    """Forward FLOP of one sequence: of each layer, and of head and multi-token prediction."""
    layers, tokens = layers_of(model), float(seq_length)
    kinds = [
        float(matmul_flop(tokens, layer_matrix_parameters(model, kind)))
        + mixing_flop(model, kind, tokens, tokens, causal=True)
        for kind in layers.kinds
    ]
    head = float(matmul_flop(tokens, model.hidden_size * model.vocab_size))
    predicted = sum(head + kinds[kind] for kind in layers.predicted)
    return tuple(kinds[kind] for kind in layers.order), head + predicted


def rough_layouts(
    model: ModelSpec,
    training: TrainingSpec,
    pp: int,
    shapes: Iterable[tuple[Placement, int]],
    end_layers: tuple[Ends, ...],
) -> Iterator[RoughLayout]:
    """Layouts that are more even than the usual splits.

    shapes: placements and chunks per rank; end_layers: of (first, last) stages, tried anyway.
    """
    flop, head = _flop(model, training.seq_length)
    for placement, chunks in shapes:
        layout = _balanced(flop, head, placement, pp, chunks, end_layers)
        if layout is not None and layout.share < WORTH_A_TRY:
            yield layout


@lru_cache(maxsize=1 << 10)
def _balanced(
    flop: tuple[float, ...],
    head: float,
    placement: Placement,
    pp: int,
    chunks: int,
    end_layers: tuple[Ends, ...],
) -> RoughLayout | None:
    nothing = np.zeros(len(flop))
    layers = LayerLoads(np.array(flop), nothing, nothing, nothing, nothing, 0)
    stages = _stages(placement, pp, chunks, head)
    sizes = partition_layers(layers, stages)
    if sizes is None:
        return None
    least = np.inf
    # Where no usual split has this number of chunks, compare with those of one chunk.
    for shape in ((placement, chunks), ("loop", 1)):
        if least == np.inf:
            least = _least_usual(layers, head, *shape, pp, end_layers)
    return RoughLayout(placement, chunks, sizes, pace_s(layers, stages, sizes) / least)


def _least_usual(
    layers: LayerLoads,
    head: float,
    placement: Placement,
    chunks: int,
    pp: int,
    end_layers: tuple[Ends, ...],
) -> float:
    """FLOP between micro-batches in the best of the usual splits; infinite without one."""
    count, stages = len(layers.seconds), _stages(placement, pp, chunks, head)
    splits = [
        virtual_stage_layers(count, placement, pp, chunks, *ends)
        for ends in end_layers
        if placement == "loop" or ends == (0, 0)
    ]
    complete = [split for split in splits if sum(split) == count and min(split) > 0]
    return min((pace_s(layers, stages, split) for split in complete), default=np.inf)


def _stages(placement: Placement, pp: int, chunks: int, head: float) -> Stages:
    """Virtual stages that have room for all."""
    _, owner, _ = virtual_stages(placement, pp, (0,) * (pp * chunks))
    fixed = np.zeros(pp * chunks)
    fixed[-1] = head
    return Stages(owner, fixed, np.zeros(pp), np.full(pp, np.inf))
