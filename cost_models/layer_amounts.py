"""The time and memory that one more layer adds to a stage: the input of layer partitions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import sum_of
from cost_models.keyed_plans import CostContext, FloatArray, gather
from cost_models.plans import Plans
from cost_models.sources import Array
from cost_models.stage_memory import StageMemory
from cost_models.stage_states import state_parts
from cost_models.step_time import BlockTimes, data_parallel, stage_s


@dataclass(frozen=True)
class LayerAmounts:
    """Seconds and bytes by kind of layer, shape (kinds, plans), and of the ends, shape (plans,).

    layer_s: forward and backward of one micro-batch, again_s: what recomputing the layer adds;
    head_s: with the heads of multi-token prediction.  state_bytes: weights, gradients, optimizer;
    saved_bytes: of one micro-batch, input_bytes: instead, where the layer is recomputed.
    in_flight, total_bytes: of each stage as the plans have it now, shape (stages, plans).
    busiest_s, redone: seconds of one micro-batch through the busiest stage, and the share of all
    layers that are recomputed, as the plans have them now.
    """

    layer_s: FloatArray
    again_s: FloatArray
    embedding_s: FloatArray
    head_s: FloatArray
    state_bytes: FloatArray
    saved_bytes: FloatArray
    input_bytes: FloatArray
    in_flight: FloatArray
    total_bytes: FloatArray
    busiest_s: FloatArray
    redone: FloatArray


def layer_amounts(s: CostContext, plans: Plans) -> LayerAmounts:
    """The amounts of legal plans; stages that a plan does not have are zero."""
    g = gather(s, plans)
    times = BlockTimes(s, g, data_parallel(s, g))
    memory = StageMemory(s, g, all_stages=True)
    at_layer, at_stage, size = g.layers.spread, g.stages.spread, (len(plans),)

    def row(value: Array) -> FloatArray:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), size)

    def rows(values: Iterable[Array]) -> FloatArray:
        return np.stack([row(value) for value in values])

    # Offloaded activations do not accumulate in device memory.
    stays = plans.offload_activations == 0
    return LayerAmounts(
        layer_s=rows(times.whole_s),
        again_s=rows(times.again_s),
        embedding_s=row(times.whole_ends_s[0]),
        head_s=row(times.whole_ends_s[1]) * (1 + s.model.mtp_num_layers),
        state_bytes=rows(
            sum_of(state_parts(s, g, held, frozen))
            for held, frozen in zip(g.trained_layer_parameters, g.frozen_layer_bytes, strict=True)
        ),
        saved_bytes=rows(stays * at_layer(layer.saved) for layer in g.bytes.layers),
        input_bytes=row(stays * at_layer(g.bytes.layer_input)),
        in_flight=memory.in_flight,
        total_bytes=memory.total_bytes,
        busiest_s=rows(stage_s(s, g, times, slot) for slot in range(len(g.table.stage))).max(
            axis=0
        ),
        redone=row(at_stage(g.table.recomputed_totals.sum(axis=0) / g.table.totals.sum(axis=0))),
    )
