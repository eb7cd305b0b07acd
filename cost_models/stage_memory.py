"""Memory per stage and part, from key-level amounts: arithmetic on arrays over plans.

A stage is as full as at the fullest of its moments: the loss, with the logits; the backward pass
of one layer; that of the embedding, with a gradient of the whole table; the optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models import overheads, state_memory
from cost_models.arrays import max_of, sum_of
from cost_models.gathered import FloatArray, Gathered, Setting, by_schedule
from cost_models.plans import code, is_one_of
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import PipelineSchedule
from cost_models.sources import Array
from cost_models.spec import DTYPE_BYTES

STATE_PARTS = ("weights", "gradients", "optimizer")
# What comes and goes within a step.
STEP_PARTS = ("activations", "logits", "working", "communication")
MEMORY_PARTS = (*STATE_PARTS, *STEP_PARTS, "fragmentation", "driver")
# Layers whose saved tensors stay on the device while the others are offloaded (double buffer).
OFFLOAD_RESIDENT_LAYERS = 2.0


@dataclass(frozen=True)
class StageMemory:
    """Memory of stages: parts and totals of shape (slots, plans), and which stages they are.

    allocated: what torch's allocator hands out; reserved: what it holds; total: what the driver
    has lent, which must fit.
    """

    parts: dict[str, FloatArray]
    allocated_bytes: FloatArray
    reserved_bytes: FloatArray
    total_bytes: FloatArray
    stage: FloatArray
    in_flight: FloatArray

    def peak_bytes(self, quantity: str) -> FloatArray:
        """Of the fullest stage: `allocated`, `reserved` or `driver`."""
        totals = {
            "allocated": self.allocated_bytes,
            "reserved": self.reserved_bytes,
            "driver": self.total_bytes,
        }
        peak: FloatArray = totals[quantity].max(axis=0)
        return peak


def stage_memory(s: Setting, g: Gathered) -> StageMemory:
    """Memory of every stage that can be the worst (or of all, if gathered so)."""
    at_stage = g.stages.spread
    stages = [at_stage(row) for row in g.table.stage]
    in_flight = [_in_flight(g, stage) for stage in stages]
    rows: dict[str, list[Array]] = {name: [] for name in (*MEMORY_PARTS, "allocated")}
    activations = _Activations(s, g)
    driver = overheads.driver_bytes(g.plans)
    for slot, units in enumerate(in_flight):
        parts = {**_states(s, g, slot), **activations.of(slot, units)}
        parts["communication"] = (
            message_bytes(g, units) + gathered_bytes(s, g, slot) + bucket_bytes(s, g, slot)
        )
        step = _step_bytes(s, g, slot)
        transient = sum_of(parts[name] for name in STEP_PARTS)
        first = at_stage(g.table.first[slot]) > 0
        table = first * activations.table_gradient * (1.0 - g.runtime.expandable_segments)
        over = np.maximum(step - transient, 0.0)
        parts["working"] = parts["working"] + over
        parts["allocated"] = sum_of(parts[name] for name in STATE_PARTS) + transient + over
        parts.update(_overheads(s, g, parts, driver, transient, step - over + table))
        for name, value in parts.items():
            rows[name].append(value)
    n = len(g.plans)
    parts_of = {name: _stack(values, n) for name, values in rows.items()}
    allocated = parts_of.pop("allocated")
    reserved = allocated + parts_of["fragmentation"]
    total = reserved + parts_of["driver"]
    return StageMemory(
        parts_of, allocated, reserved, total, _stack(stages, n), _stack(in_flight, n)
    )


def _overheads(
    s: Setting,
    g: Gathered,
    parts: dict[str, Array],
    driver: Array,
    transient: Array,
    other_phase: Array,
) -> dict[str, Array]:
    """What the allocator and the driver add, or what the cluster reserves for it.

    transient: what forward and backward passes take and give back, and leave gaps between.
    other_phase: what moments short of the fullest need and cannot have where that was: whole
    segments, which the allocator returns before it fails.
    """
    given = s.cluster.reserved_bytes_per_accelerator
    if given is not None:
        return {"fragmentation": 0.0, "driver": given}
    # One byte less than there is: sums of parts round.
    room = s.nodes.accelerator.memory_bytes - driver - parts["allocated"] - 1.0
    share = overheads.fragmentation_share(g.runtime.expandable_segments)
    return {
        "fragmentation": overheads.fragmentation_bytes(transient, share, other_phase, room),
        "driver": driver,
    }


def _states(s: Setting, g: Gathered, slot: int) -> dict[str, Array]:
    """Weights, gradients and optimizer states of one stage slot.

    Under a pipeline FSDP keeps gradients whole until the last micro-batch (torch), so ZeRO-2/3
    holds them there as ZeRO-1 does.
    """
    training, plans = s.training, g.plans
    zero = plans.zero_stage
    gradient_zero = np.where(plans.pp > 1, np.minimum(zero, 1), zero)
    element = state_memory.element_bytes(training, g.runtime)
    copies, weight_copies = _copies(g, slot)
    weights: Array = 0.0
    gradients: Array = 0.0
    optimizer: Array = 0.0
    shards = (g.state.spread(g.held.shards), g.state.spread(g.held.expert_shards))
    for held, ranks in zip(g.stage_parameters[slot], shards, strict=True):
        weights = weights + state_memory.weight_bytes(held, element.weights, zero, ranks)
        gradients = gradients + state_memory.gradient_bytes(
            held, element.gradients, gradient_zero, ranks
        )
        optimizer = optimizer + state_memory.optimizer_bytes(held, element.optimizer, zero, ranks)
    gradients = gradients * copies + _placeholder_bytes(s, g, slot)
    return {
        "weights": weights * weight_copies,
        "gradients": gradients + _whole_table_bytes(g, slot, element.gradients),
        "optimizer": optimizer * copies * (1.0 - plans.offload_optimizer),
    }


def _step_bytes(s: Setting, g: Gathered, slot: int) -> Array:
    """What flat buckets (DeepSpeed) and their optimizer step need beside the states of a slot."""
    flat = g.runtime.flat_buckets
    if not np.any(flat):
        return 0.0
    half = flat * (DTYPE_BYTES[s.training.gradient_dtype] < 4)
    shards = (g.state.spread(g.held.shards), g.state.spread(g.held.expert_shards))
    step = sum_of(
        state_memory.step_bytes(held, half, g.plans.zero_stage, ranks)
        for held, ranks in zip(g.stage_parameters[slot], shards, strict=True)
    )
    ends = (g.stages.spread(row[slot]) > 0 for row in (g.table.first, g.table.last))
    table = np.maximum(*ends) * g.state.spread(g.held.word_table)
    whole: Array = sum_of(g.stage_parameters[slot])
    buckets = overheads.deepspeed_bucket_bytes(
        whole, table, DTYPE_BYTES[s.training.gradient_reduce_dtype], s.training.weight_bytes, half
    )
    return step + flat * (g.plans.dp * g.plans.cp > 1) * buckets


def _placeholder_bytes(s: Setting, g: Gathered, slot: int) -> Array:
    """Half-precision stand-ins of the gradients of a stage's matrices, one per shape (TE)."""
    placeholders = g.runtime.placeholder_gradients
    if not np.any(placeholders):
        return 0.0
    at_stage, at_state = g.stages.spread, g.state.spread
    there = [at_stage(layers[slot]) for layers in g.table.layers]
    total: Array = (at_stage(g.table.last[slot]) > 0) * at_state(g.held.word_table)
    for block, parameters in g.held.placeholders.items():
        of_kinds = (n for n, kind in zip(there, s.kinds, strict=True) if block in kind.blocks)
        total = total + (sum_of(of_kinds) > 0) * at_state(parameters)
    return total * overheads.WEIGHT_BYTES * placeholders


def message_bytes(g: Gathered, in_flight: Array) -> Array:
    """Bytes of a stage's pipeline messages.

    A pipeline holds a message each way, torch's (PipelineStage) one each way for every micro-batch
    of a step; DeepSpeed's and torch's also what they sent until its gradient comes back.
    """
    message = g.layers.spread(g.bytes.message)
    waiting = 1.0 + g.runtime.buffers_every_message * (g.micro_batches - 1.0)
    messages = 2.0 * waiting * message
    outputs = g.runtime.keeps_sent_outputs * in_flight * message
    total: Array = np.where(g.plans.pp > 1, messages + outputs, 0.0)
    return total


def gathered_bytes(s: Setting, g: Gathered, slot: int) -> Array:
    """Bytes of weights that one stage slot has gathered.

    FSDP keeps two gathered layers (the one in use and the prefetched one), and all along the root's
    weights (word table and head); or all weights of the stage where it does not reshard.  Without
    ZeRO torch (replicate) keeps them once more, in the dtype it computes in.
    """
    plans, half, runtime = g.plans, s.training.weight_bytes, g.runtime
    stage: Array = sum_of(g.stage_parameters[slot])
    copied: Array = runtime.weights_are_masters * (plans.zero_stage == 0) * stage * half
    if not np.any(plans.zero_stage == 3):
        return copied
    first = g.stages.spread(g.table.first[slot]) > 0
    last = g.stages.spread(g.table.last[slot]) > 0
    layer = _gathered_layer(g)
    ahead = np.minimum(layer, runtime.most_live_parameters)
    ends = first * g.state.spread(g.held.embedding) + last * g.state.spread(g.held.head)
    root = runtime.gathers_root_weights * ends
    one = _at_once(g, layer)
    whole = np.where(plans.reshard_after_forward > 0, one + ahead + root, stage)
    return copied + np.where(plans.zero_stage == 3, whole * half, 0.0)


def bucket_bytes(s: Setting, g: Gathered, slot: int) -> Array:
    """Bytes of gradients on their way to where they are kept.

    ZeRO: a layer's in both dtypes, and the head's.  torch: a layer's in half precision, before they
    are added to those of other micro-batches; under a pipeline, and without ZeRO, none are reduced
    before the last, when activations are gone.
    """
    masters = g.runtime.weights_are_masters
    if not (np.any(g.plans.zero_stage >= 2) or np.any(masters)):
        return 0.0
    half = masters * s.training.weight_bytes
    sharded = (g.plans.zero_stage >= 2) * 1.0
    reduces = sharded * (1.0 - g.runtime.reduces_after_pipeline * (g.plans.pp > 1))
    reduced = DTYPE_BYTES[s.training.gradient_reduce_dtype] * reduces
    last = g.stages.spread(g.table.last[slot]) > 0
    head = last * g.state.spread(g.held.word_table) * half
    buckets: Array = _at_once(g, _gathered_layer(g)) * (reduced + half) + head
    return buckets


def _gathered_layer(g: Gathered) -> Array:
    """Parameters that are gathered together: of a layer, or of a word table that is larger."""
    layer = max_of(plain + expert for plain, expert in g.layer_parameters)
    with_table = np.maximum(layer, g.state.spread(g.held.embedding))
    apart = np.asarray(g.runtime.gathers_root_weights) > 0
    together: Array = np.where(apart, layer, with_table)
    return together


def _at_once(g: Gathered, layer: Array) -> Array:
    """Parameters in use of a gathered layer, or of its widest matrix (DeepSpeed)."""
    widest = np.minimum(layer, g.state.spread(g.held.widest))
    used: Array = np.where(np.asarray(g.runtime.gathers_by_matrix) > 0, widest, layer)
    return used


def _whole_table_bytes(g: Gathered, slot: int, stored_bytes: Array) -> Array:
    """What DTensor holds of the word table's gradient beyond the rank's own rows.

    Its backward of a table split by rows (vocabulary parallel) makes the gradient of all rows; the
    rank's own are taken from it when gradients are reduced, not while they accumulate: in a
    pipeline, and without ZeRO where there are several micro-batches.
    """
    plans = g.plans
    accumulates = (plans.pp > 1) | ((plans.zero_stage == 0) & (g.micro_batches > 1))
    first = g.stages.spread(g.table.first[slot]) > 0
    others = (plans.tp - 1.0) * g.state.spread(g.held.word_table)
    held: Array = g.runtime.whole_table_gradient * accumulates * first * others * stored_bytes
    return held


def _copies(g: Gathered, slot: int) -> tuple[Array, Array]:
    """(copies of all states, copies of the weights) a rank holds under its schedule.

    Both directions of DualPipe keep a whole stage each; PipeDream stashes weights only.
    """
    stage = g.stages.spread(g.table.stage[slot])

    def copies(schedule: PipelineSchedule) -> Array:
        return schedule.weight_copies(stage, g.plans.pp)

    def states(schedule: PipelineSchedule) -> Array:
        return 2.0 if schedule.placement == "two-way" else 1.0

    return by_schedule(g.plans, states), by_schedule(g.plans, copies)


class _Activations:
    """Saved tensors, head and transient bytes: gathered once, then read for each stage slot."""

    def __init__(self, s: Setting, g: Gathered) -> None:
        plans, at_layer = g.plans, g.layers.spread
        self.s, self.g = s, g
        self.saved = [at_layer(layer.saved) for layer in g.bytes.layers]
        self.layer_input = at_layer(g.bytes.layer_input)
        self.embedding = at_layer(g.bytes.embedding_saved)
        self.head_saved = at_layer(g.bytes.head_saved)
        self.head_working = at_layer(g.bytes.head_working)
        full = plans.recompute == code("recompute", "full")
        uniform = plans.recompute_method == code("recompute_method", "uniform")
        # Layers of one checkpoint: all of them exist again while it runs backward.
        span = np.where(full & uniform, np.maximum(plans.recompute_num_layers, 1), 1)
        self.again = [saved * span for saved in self.saved]
        self.inside = [at_layer(layer.working + layer.dropped) for layer in g.bytes.layers]
        # The backward of a loss follows it at once, unless the schedule runs all forwards first.
        keeps_all = tuple(name for name, it in SCHEDULES.items() if it.keeps_all)
        keeps = is_one_of(plans.schedule, "schedule", *keeps_all)
        self.losses = np.where(keeps > 0, g.micro_batches, 1.0)
        self.workspace = overheads.workspace_bytes(g.runtime.gemm_workspaces)
        self.table_gradient = g.state.spread(g.held.embedding) * s.training.weight_bytes

    def of(self, slot: int, in_flight: Array) -> dict[str, Array]:
        """Parts of one stage slot that keeps `in_flight` micro-batches."""
        table, at_stage, plans = self.g.table, self.g.stages.spread, self.g.plans
        first, last = at_stage(table.first[slot]), at_stage(table.last[slot])
        saved: Array = 0.0
        widest: Array = 0.0
        for k, each in enumerate(self.saved):
            layers = at_stage(table.layers[k][slot])
            redone = at_stage(table.recomputed[k][slot])
            inputs = at_stage(table.inputs[k][slot])
            saved = saved + (layers - redone) * each + inputs * self.layer_input
            inside = np.where(redone > 0, self.again[k], 0.0) + self.inside[k]
            widest = np.maximum(widest, np.where(layers > 0, inside, 0.0))
        resident = in_flight * saved
        if np.any(plans.offload_activations):
            few = OFFLOAD_RESIDENT_LAYERS * max_of(self.saved)
            resident = np.where(plans.offload_activations > 0, np.minimum(resident, few), resident)
        # Of the layers of a stage nothing is left when the gradient of the word table appears.
        embedding = (first > 0) * self.table_gradient - np.minimum(saved, resident)
        widest = np.maximum(widest, embedding)
        # All losses but the one whose backward has begun.
        kept = in_flight * first * self.embedding
        waiting = kept + (self.losses - 1.0) * last * self.head_saved
        logits = kept + self.losses * last * self.head_saved
        at_loss = logits + (last > 0) * self.head_working > waiting + widest
        head_working = np.where(last > 0, self.head_working, 0.0)
        return {
            "activations": resident,
            "logits": np.where(at_loss, logits, waiting),
            "working": np.where(at_loss, head_working, widest) + self.workspace,
        }


def _in_flight(g: Gathered, stage: Array) -> Array:
    """Activation units of a stage, by the closed form of each plan's schedule."""
    plans = g.plans
    return by_schedule(plans, lambda s: s.in_flight(stage, plans.pp, plans.vpp, g.micro_batches))


def _stack(values: list[Array], n: int) -> FloatArray:
    """One row per stage, laid out over the plans."""
    rows = np.empty((len(values), n))
    for row, value in zip(rows, values, strict=True):
        row[:] = value
    return rows
