"""The memory of a stage that does not depend on micro-batches in flight.

Weights, gradients and optimizer states as ZeRO shards them; weights that are gathered for use;
gradients in buckets; temporary memory of the optimizer step.
"""

from __future__ import annotations

import numpy as np

from cost_models import overheads, state_memory
from cost_models.arrays import any_of, max_of, maximum, minimum, sum_of, where
from cost_models.data_parallel import HeldParameters
from cost_models.keyed_plans import CostContext, KeyedPlans, LayerParameters, by_schedule
from cost_models.optimizers import OPTIMIZERS
from cost_models.plans import code
from cost_models.sources import Array
from cost_models.spec import DTYPE_BYTES


def stage_states(
    s: CostContext, g: KeyedPlans, slot: int, matrix_states: Array
) -> tuple[Array, Array, Array]:
    """Weights (one copy), gradients and optimizer states of one stage slot."""
    weights, gradients, optimizer = state_parts(
        s, g, g.trained_stage_parameters[slot], g.frozen_stage_bytes[slot]
    )
    if np.ndim(matrix_states) or matrix_states:
        resident = 1.0 - g.plans.offload_optimizer
        optimizer = optimizer + matrix_states * copies_of(g) * resident
    optimizer = optimizer + _wide_table_states(s, g, slot)
    gradients = gradients + placeholder_bytes(g, slot) + _flat_frozen_bytes(s, g, slot)
    stored_bytes = state_memory.element_bytes(s.training, g.runtime).gradients
    return weights, gradients + _whole_table_bytes(g, slot, stored_bytes), optimizer


def _wide_table_states(s: CostContext, g: KeyedPlans, slot: int) -> Array:
    """What transformers' Trainer adds for word tables with bitsandbytes: their states are fp32."""
    optimizer = OPTIMIZERS[s.training.optimizer]
    narrow = optimizer.moment_bytes
    if narrow is None or optimizer.paged or not any_of(g.runtime.wide_table_states):
        return 0.0
    wider = (4.0 - narrow) * optimizer.moments
    first = g.stages.spread(g.table.first[slot]) > 0
    shards = where(g.plans.zero_stage > 0, g.state.spread(g.held.shards), 1.0)
    tables = first * g.state.spread(g.trained.word_table) / shards
    added: Array = wider * tables * g.runtime.wide_table_states * (1.0 - g.plans.offload_optimizer)
    return added


def copies_of(g: KeyedPlans) -> Array:
    """Both directions of DualPipe keep a whole stage each; PipeDream stashes weights only."""
    return by_schedule(g.plans, lambda schedule: 1.0 + (schedule.placement == "two-way"))


def state_parts(
    s: CostContext, g: KeyedPlans, trained: tuple[Array, Array], frozen: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Weights (one copy), gradients and optimizer states of (plain, expert) parameters that are
    trained, and of the bytes of those that are not.

    Where the optimizer steps in the backward pass, there is the gradient of one matrix.  Under
    a pipeline FSDP keeps gradients whole until the last micro-batch (torch), so ZeRO-2/3
    holds them there as ZeRO-1 does; and so does a loop that asks for no_sync.
    """
    training, plans = s.training, g.plans
    in_backward, zero = training.optimizer_in_backward, plans.zero_stage
    waits = maximum(plans.pp > 1, _whole_gradients(g))
    gradient_zero = where(waits > 0, minimum(zero, 1), zero)
    element = state_memory.element_bytes(training, g.runtime)
    copies = copies_of(g)
    weights: Array = 0.0
    gradients: Array = 0.0
    optimizer: Array = 0.0
    stored = element.weights - (zero == 3) * state_memory.transposed_bytes(training, g.runtime)
    shards = (g.state.spread(g.held.shards), g.state.spread(g.held.expert_shards))
    # The head's gradient is the first, and where it is the word table's too, the last to go.
    largest = maximum(g.state.spread(g.trained.widest), g.state.spread(g.trained.word_table))
    for count, frozen_bytes, ranks in zip(trained, frozen, shards, strict=True):
        weights = weights + state_memory.weight_bytes(count, stored, zero, ranks)
        if g.frozen is not None:
            weights = weights + state_memory.weight_bytes(frozen_bytes, 1.0, zero, ranks)
        waiting = minimum(count, largest) if in_backward else count
        gradients = gradients + state_memory.gradient_bytes(
            waiting, element.gradients, gradient_zero, ranks
        )
        optimizer = optimizer + state_memory.optimizer_bytes(count, element.optimizer, zero, ranks)
    gradients = gradients * copies
    if any_of(shards_on_host := offloaded_shards(g)):
        weights = weights * (1.0 - shards_on_host)
        # Under a pipeline they are whole until the last micro-batch.
        gradients = gradients * (1.0 - shards_on_host * (plans.pp == 1))
    return weights, gradients, optimizer * copies * (1.0 - plans.offload_optimizer)


def _whole_gradients(g: KeyedPlans) -> Array:
    """1 where sharded gradients are whole until the last micro-batch."""
    flat: Array = g.runtime.flat_gradients * (g.plans.zero_stage == 3) * (g.micro_batches > 1)
    return flat


def _flat_frozen_bytes(s: CostContext, g: KeyedPlans, slot: int) -> Array:
    """Gradients of the frozen weights that are one flat tensor with the adapters of their layer.

    torch/distributed/fsdp/_wrap_utils.py, _validate_frozen_params.
    """
    flat = g.runtime.flat_gradients * (g.plans.zero_stage == 3)
    if not s.training.lora_rank or not any_of(flat):
        return 0.0
    layers = (g.stages.spread(each[slot]) for each in g.table.layers)
    every = zip(layers, g.layer_parameters, g.trained_layer_parameters, strict=True)
    frozen = sum_of(count * (sum(held) - sum(trained)) for count, held, trained in every)
    shards = where(_whole_gradients(g) > 0, 1.0, g.state.spread(g.held.shards))
    flat_bytes: Array = flat * frozen * s.training.weight_bytes / shards
    return flat_bytes


def offloaded_shards(g: KeyedPlans) -> Array:
    """1 where the shards of weights and gradients are in host memory."""
    share: Array = g.runtime.offloads_shards * g.plans.offload_optimizer * (g.plans.zero_stage == 3)
    return share


def paged_bytes(s: CostContext, g: KeyedPlans) -> Array:
    """Bytes of optimizer states of the fullest stage that the driver may move to the host."""
    training, zero = s.training, g.plans.zero_stage
    each = training.optimizer_bytes_per_parameter - training.resident_optimizer_bytes
    shards = (g.state.spread(g.held.shards), g.state.spread(g.held.expert_shards))
    return max_of(
        sum_of(
            state_memory.optimizer_bytes(parameters, each, zero, ranks)
            for parameters, ranks in zip(slot, shards, strict=True)
        )
        for slot in g.trained_stage_parameters
    )


def flat_step_bytes(s: CostContext, g: KeyedPlans, slot: int) -> Array:
    """Bytes of flat buckets (DeepSpeed) and their optimizer step, beyond the states of a slot."""
    flat = g.runtime.flat_buckets
    if not any_of(flat):
        return 0.0
    half = flat * (DTYPE_BYTES[s.training.gradient_dtype] < 4)
    shards = (g.state.spread(g.held.shards), g.state.spread(g.held.expert_shards))
    step = sum_of(
        state_memory.step_bytes(parameters, half, g.plans.zero_stage, ranks)
        for parameters, ranks in zip(g.trained_stage_parameters[slot], shards, strict=True)
    )
    ends = (g.stages.spread(row[slot]) > 0 for row in (g.table.first, g.table.last))
    table = maximum(*ends) * g.state.spread(g.trained.word_table)
    owned: Array = sum_of(g.trained_stage_parameters[slot])
    buckets = overheads.deepspeed_bucket_bytes(
        owned, table, DTYPE_BYTES[s.training.gradient_reduce_dtype], s.training.weight_bytes, half
    )
    return step + flat * (g.plans.dp * g.plans.cp > 1) * buckets


def list_step_bytes(s: CostContext, g: KeyedPlans, slot: int) -> Array:
    """Bytes that an optimizer step over lists of tensors adds: one fp32 number per parameter.

    torch/optim/adam.py _multi_tensor_adam: the denominators of all parameters.
    """
    lists = s.training.optimizer == "adam" and not s.training.optimizer_in_backward
    if not lists or not any_of(g.runtime.steps_by_list):
        return 0.0
    shards = (g.state.spread(g.held.shards), g.state.spread(g.held.expert_shards))
    stepped = sum_of(
        parameters / where(g.plans.zero_stage > 0, ranks, 1.0)
        for parameters, ranks in zip(g.trained_stage_parameters[slot], shards, strict=True)
    )
    return 4.0 * stepped * g.runtime.steps_by_list


def placeholder_bytes(g: KeyedPlans, slot: int) -> Array:
    """Half-precision stand-ins of the gradients of a stage's matrices, one per shape (TE).

    FSDP of Megatron-Core runs without the fused accumulation that needs them: its recipes in
    Megatron-Bridge turn it off (perf_recipes, gradient_accumulation_fusion).
    """
    placeholders = g.runtime.placeholder_gradients * (g.plans.zero_stage < 2)
    if not any_of(placeholders):
        return 0.0
    at_stage, at_state = g.stages.spread, g.state.spread
    counts = [at_stage(layers[slot]) for layers in g.table.layers]
    total: Array = (at_stage(g.table.last[slot]) > 0) * at_state(g.trained.word_table)
    for kinds, parameters in g.trained.placeholders.items():
        total = total + (sum_of(counts[k] for k in kinds) > 0) * at_state(parameters)
    return total * overheads.WEIGHT_BYTES * placeholders


def gathered_bytes(s: CostContext, g: KeyedPlans, slot: int) -> Array:
    """Bytes of weights that one stage slot has gathered.

    FSDP keeps two gathered layers (the one in use and the prefetched one), and all along the root's
    weights (word table and head); or all weights of the stage where it does not reshard.  Without
    ZeRO torch (replicate) keeps masters once more, in the dtype it computes in.  Where there are no
    masters that is a copy too many, for what eager norms keep in fp32 where that is not counted
    (planner/learning/accuracy/README.md).
    """
    plans, half, runtime = g.plans, s.training.weight_bytes, g.runtime
    stage: Array = sum_of(g.stage_parameters[slot])
    masters: Array = sum_of(g.trained_stage_parameters[slot])
    copied: Array = runtime.weights_are_masters * (plans.zero_stage == 0) * masters * half
    if s.training.master_weights_dtype == "none":
        copied = copied * (1.0 - runtime.norms_in_fp32)
    if any_of(plans.autocast):
        copied = where(plans.autocast > 0, _cast_by_autocast(s, g, slot, masters) * half, copied)
    if not any_of(plans.zero_stage == 3):
        return copied
    first = g.stages.spread(g.table.first[slot]) > 0
    last = g.stages.spread(g.table.last[slot]) > 0
    layer = _gathered_layer(g, g.held, g.layer_parameters)
    layer_bytes = _gathered_at_once(g, layer)
    ahead = minimum(layer, runtime.most_live_parameters)
    ahead = where(np.asarray(runtime.gathers_next_matrix) > 0, layer_bytes, ahead)
    ends = first * g.state.spread(g.held.embedding) + last * g.state.spread(g.held.head)
    root = runtime.gathers_root_weights * ends
    # Of what is stored in fp8 the layer in use is there transposed too.
    spared = state_memory.transposed_bytes(s.training, runtime)
    flat_bytes = where(
        plans.reshard_after_forward > 0,
        (layer_bytes + root) * half + ahead * (half - spared),
        stage * half,
    )
    return copied + where(plans.zero_stage == 3, flat_bytes, 0.0)


def _cast_by_autocast(s: CostContext, g: KeyedPlans, slot: int, masters: Array) -> Array:
    """Parameters of a stage whose casts autograd keeps for the backward pass.

    Of layers that are computed again it keeps those of one.
    """
    if not s.training.casts_trained_weights:
        return 0.0
    full = g.plans.recompute == code("recompute", "full")
    layer = _gathered_layer(g, g.trained, g.trained_layer_parameters)
    last = g.stages.spread(g.table.last[slot]) > 0
    cast: Array = layer + last * g.state.spread(g.trained.word_table)
    return where(full, minimum(cast, masters), masters)


def forward_cast_bytes(s: CostContext, g: KeyedPlans, slot: int) -> Array:
    """Bytes of the casts that autocast drops when a forward pass ends: no backward pass sees them.

    They meet gradients only where those of an earlier micro-batch are there.
    """
    if not any_of(g.plans.autocast) or not s.training.casts_trained_weights:
        return 0.0
    masters: Array = sum_of(g.trained_stage_parameters[slot])
    dropped = masters - _cast_by_autocast(s, g, slot, masters)
    cast_bytes: Array = dropped * s.training.weight_bytes * (g.plans.autocast > 0)
    return cast_bytes * (g.micro_batches > 1)


def bucket_bytes(s: CostContext, g: KeyedPlans, slot: int) -> Array:
    """Bytes of gradients before they are reduced or accumulated.

    ZeRO: a layer's in both dtypes, and the head's.  torch: a layer's in half precision, before they
    are added to those of other micro-batches; under a pipeline, and without ZeRO, none are reduced
    before the last, when activations are gone.
    """
    masters = g.runtime.weights_are_masters
    if not (any_of(g.plans.zero_stage >= 2) or any_of(masters)):
        return 0.0
    half = masters * s.training.weight_bytes
    sharded = (g.plans.zero_stage >= 2) * 1.0
    reduces = sharded * (1.0 - g.runtime.reduces_after_pipeline * (g.plans.pp > 1))
    reduced = DTYPE_BYTES[s.training.gradient_reduce_dtype] * reduces
    reduced = reduced * (1.0 - g.runtime.reduces_half_gradients)
    last = g.stages.spread(g.table.last[slot]) > 0
    head = last * g.state.spread(g.trained.word_table) * half * g.runtime.gathers_root_weights
    layer = _gathered_layer(g, g.trained, g.trained_layer_parameters)
    buckets: Array = _gathered_at_once(g, layer) * (reduced + half) + head
    return buckets


def _gathered_layer(g: KeyedPlans, parameters: HeldParameters, layers: LayerParameters) -> Array:
    """Parameters that are gathered together: of a layer, or of a word table that is larger."""
    layer = max_of(plain + expert for plain, expert in layers)
    with_table = maximum(layer, g.state.spread(parameters.embedding))
    gathers_root = np.asarray(g.runtime.gathers_root_weights) > 0
    return where(gathers_root, layer, with_table)


def _gathered_at_once(g: KeyedPlans, layer: Array) -> Array:
    """Parameters in use of a gathered layer, or of its widest matrix."""
    experts_together = np.asarray(g.runtime.gathers_experts_together) > 0
    matrix = where(
        experts_together, g.state.spread(g.held.widest_together), g.state.spread(g.held.widest)
    )
    widest = minimum(layer, matrix)
    return where(np.asarray(g.runtime.gathers_by_matrix) > 0, widest, layer)


def _whole_table_bytes(g: KeyedPlans, slot: int, stored_bytes: Array) -> Array:
    """Bytes of the word table's gradient that DTensor holds beyond the rank's own rows.

    Its backward of a table split by rows (vocabulary parallel) makes the gradient of all rows; the
    rank's own are taken from it when gradients are reduced, not while they accumulate: in a
    pipeline, and without ZeRO where there are several micro-batches.
    """
    plans = g.plans
    accumulates = (plans.pp > 1) | ((plans.zero_stage == 0) & (g.micro_batches > 1))
    first = g.stages.spread(g.table.first[slot]) > 0
    others = (plans.tp - 1.0) * g.state.spread(g.trained.word_table)
    table: Array = g.runtime.whole_table_gradient * accumulates * first * others * stored_bytes
    return table
