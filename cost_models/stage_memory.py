"""Memory per stage and part, from key-level amounts: arithmetic on arrays over plans.

A stage is as full as at the fullest of its moments: the loss, with the logits; the backward pass
of one layer; that of the embedding, with a gradient of the whole table; the optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from cost_models import overheads, state_memory
from cost_models.arrays import max_of, sum_of
from cost_models.data_parallel import HeldParameters
from cost_models.gathered import FloatArray, Gathered, LayerParameters, Setting, by_schedule
from cost_models.keys import KeyView
from cost_models.matrix_optimizers import MatrixOptimizer
from cost_models.optimizers import OPTIMIZERS
from cost_models.parts import MEMORY_PARTS
from cost_models.plans import code, is_one_of
from cost_models.schedules import SCHEDULES
from cost_models.sources import Array
from cost_models.spec import DTYPE_BYTES

STATE_PARTS = ("weights", "gradients", "optimizer")
# What comes and goes within a step.
STEP_PARTS = ("activations", "logits", "working", "communication")
# Layers whose saved tensors stay on the device while the others are offloaded (double buffer).
OFFLOAD_RESIDENT_LAYERS = 2.0


Rows = slice | NDArray[np.int64]
_ALL = slice(None)
# Plans without a slot are left out of it where fewer than this share of them have it.
_WORTH_TAKING = 0.6


@dataclass(frozen=True)
class _Place:
    """A row of the arrays of stages: stages of some plans that are composed alike.

    What their schedules keep there: activation units, and copies of the weights.
    """

    row: int
    slot: int
    plans: Rows
    stage: Array
    in_flight: Array
    weight_copies: Array

    @classmethod
    def of(cls, g: Gathered, row: int, slot: int, plans: Rows, stage: Array) -> _Place:
        own = g.plans
        if not isinstance(plans, slice):
            own = KeyView(g.plans, ("schedule", "pp", "vpp"), plans)
        count = _at(g.micro_batches, plans)
        in_flight = by_schedule(own, lambda s: s.in_flight(stage, own.pp, own.vpp, count))
        copies = by_schedule(own, lambda s: s.weight_copies(stage, own.pp))
        return cls(row, slot, plans, stage, in_flight, copies)


class StageMemory:
    """Memory of stages that can be the worst, or of all: arrays of shape (rows, plans).

    total_bytes: what the driver has lent, which must fit; peak_bytes: that of the fullest stage.
    spare_bytes: what of a total is held only where there is room; needed_bytes: the most that a
    stage needs without it.  Where a plan has fewer stages than there are rows, the others hold
    nothing.
    """

    def __init__(self, s: Setting, g: Gathered, all_stages: bool) -> None:
        # What does not depend on what is in flight, once for stages that are composed alike.
        self._slots = list(_slots(s, g, all_stages))
        self._places = tuple(_stages(g) if all_stages else map(_Slot.place, self._slots))
        self._shape = len(g.table.slot_of) if all_stages else len(self._slots), len(g.plans)
        self.peak_bytes = np.zeros(self._shape[1])
        self.needed_bytes = np.zeros(self._shape[1])
        for place in self._places:
            parts, spare = self._parts_at(place)
            total = sum_of(parts.values())
            for most, value in ((self.peak_bytes, total), (self.needed_bytes, total - spare)):
                most[place.plans] = np.maximum(most[place.plans], value)

    def _parts_at(self, place: _Place) -> tuple[dict[str, Array], Array]:
        return self._slots[place.slot].parts(place)

    @cached_property
    def parts(self) -> dict[str, FloatArray]:
        """MEMORY_PARTS by name, which add up to the total."""
        found = {name: np.zeros(self._shape) for name in MEMORY_PARTS}
        for place in self._places:
            for name, values in self._parts_at(place)[0].items():
                found[name][place.row, place.plans] = values
        return found

    @cached_property
    def total_bytes(self) -> FloatArray:
        """Of each stage."""
        total: FloatArray = np.asarray(sum_of(self.parts.values()))
        return total

    @cached_property
    def spare_bytes(self) -> FloatArray:
        """Of each stage."""
        return self._filled(lambda place: self._parts_at(place)[1])

    @cached_property
    def stage(self) -> FloatArray:
        """Which stage each row is."""
        return self._filled(lambda place: place.stage)

    @cached_property
    def in_flight(self) -> FloatArray:
        """Activation units that each stage keeps."""
        return self._filled(lambda place: place.in_flight)

    @property
    def allocated_bytes(self) -> FloatArray:
        """What torch's allocator hands out."""
        total: FloatArray = np.sum([self.parts[n] for n in (*STATE_PARTS, *STEP_PARTS)], axis=0)
        return total

    @property
    def reserved_bytes(self) -> FloatArray:
        """What torch's allocator holds."""
        return self.allocated_bytes + self.parts["fragmentation"]

    def peak_of(self, quantity: str) -> FloatArray:
        """Of the fullest stage: `allocated`, `reserved` or `driver`."""
        if quantity == "driver":
            return self.peak_bytes
        totals = self.allocated_bytes if quantity == "allocated" else self.reserved_bytes
        peak: FloatArray = totals.max(axis=0)
        return peak

    def _filled(self, value: Callable[[_Place], Array]) -> FloatArray:
        rows = np.zeros(self._shape)
        for place in self._places:
            rows[place.row, place.plans] = value(place)
        return rows


def least_needed_bytes(s: Setting, g: Gathered) -> Array:
    """Bytes that the fullest stage needs at least, whatever stage holds which layers: a bound.

    g: of mean stages, which hold no more than the fullest.  One micro-batch is in flight; where
    layers differ, the fullest stage may have those alone that take the least beside what is saved.
    What an optimizer keeps by matrix is left out.
    """
    amounts = _StepAmounts(s, g)
    slot = _Slot(s, g, 0, _ALL, amounts, 0.0)
    if len(s.kinds) > 1:
        slot.leave_out_kinds()
    parts, spare = slot.parts(_Place(0, 0, _ALL, 0.0, 1.0, 1.0))
    if OPTIMIZERS[s.training.optimizer].by_matrix:
        parts["optimizer"] = 0.0
    needed: Array = sum_of(parts.values()) - spare
    return needed


def _slots(s: Setting, g: Gathered, all_stages: bool) -> Iterator[_Slot]:
    """The compositions of stages; without all_stages each for those plans alone that have it.

    Later slots belong to fewer plans (those with more stages that differ), and plans are left out
    where that spares more than it costs.
    """
    apart = OPTIMIZERS[s.training.optimizer].by_matrix
    matrices = MatrixOptimizer(s, g) if apart else None
    counts = g.stages.spread(g.table.counts)
    rows: Rows = _ALL
    own, amounts = g, _StepAmounts(s, g)
    for slot in range(len(g.table.stage)):
        if not all_stages and np.ndim(counts):
            has = np.flatnonzero(counts > slot)
            if len(has) < _WORTH_TAKING * len(own.plans):
                rows, own = has, g.take(has)
                amounts = _StepAmounts(s, own)
        states = 0.0 if matrices is None else _at(matrices.state_bytes(slot), rows)
        yield _Slot(s, own, slot, rows, amounts, states)


def _stages(g: Gathered) -> Iterator[_Place]:
    """Every stage, with the slot of its composition."""
    plans: Rows = _ALL
    inverse = np.zeros((), dtype=np.int64) if g.stages.inverse is None else g.stages.inverse
    layout = np.broadcast_to(inverse, (len(g.plans),))
    for stage, slots in enumerate(g.table.slot_of):
        own = slots[layout] if isinstance(plans, slice) else slots[layout[plans]]
        here = own >= 0
        if not here.all():
            plans = np.flatnonzero(here) if isinstance(plans, slice) else plans[here]
            own = own[here]
        for slot in range(own.min(), own.max() + 1):
            alike = own == slot
            if alike.all():
                rows = plans
            elif alike.any():
                rows = np.flatnonzero(alike) if isinstance(plans, slice) else plans[alike]
            else:
                continue
            yield _Place.of(g, stage, slot, rows, float(stage))


def _at(value: Array, plans: Rows) -> Array:
    """The values of some plans."""
    if isinstance(plans, slice) or not isinstance(value, np.ndarray) or not value.ndim:
        return value
    return np.take(value, plans)


class _StepAmounts:
    """What comes and goes in a step, laid out per plan once for all slots."""

    def __init__(self, s: Setting, g: Gathered) -> None:
        plans, at_layer, r = g.plans, g.layers.spread, g.runtime
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
        self.workspace = overheads.workspace_bytes(r.gemm_workspaces)
        self.table_gradient = g.state.spread(g.trained.embedding) * s.training.weight_bytes
        self.offloads = plans.offload_activations > 0
        # A pipeline holds a message each way, torch's (PipelineStage) one each way for every
        # micro-batch of a step; some keep what they sent until its gradient comes back.
        message = np.where(plans.pp > 1, at_layer(g.bytes.message), 0.0)
        self.messages = 2.0 * message * (1.0 + r.buffers_every_message * (g.micro_batches - 1.0))
        self.sent = message * r.keeps_sent_outputs if np.any(r.keeps_sent_outputs) else None
        self.driver = overheads.driver_bytes(plans)
        self.share = overheads.fragmentation_share(r.expandable_segments)
        self.given = s.cluster.reserved_bytes_per_accelerator
        # One byte less than there is: sums of parts round.
        self.room = s.nodes.accelerator.memory_bytes - self.driver - 1.0
        self.apart = 1.0 - r.expandable_segments


class _Slot:
    """Stages of one composition: what they hold whatever is in flight, and what depends on it.

    rows: the plans that g has; matrix_states: bytes that the optimizer keeps by matrix.
    """

    def __init__(
        self, s: Setting, g: Gathered, slot: int, rows: Rows, step: _StepAmounts,
        matrix_states: Array,
    ) -> None:  # fmt: skip
        table, at_stage = g.table, g.stages.spread
        self._g, self._slot, self._rows, self._of = g, slot, rows, step
        self._weights, self._gradients, self._optimizer = _states(s, g, slot, matrix_states)
        self._communication = step.messages + gathered_bytes(s, g, slot) + bucket_bytes(s, g, slot)
        self._step = _step_bytes(s, g, slot)
        self._first, self._last = at_stage(table.first[slot]), at_stage(table.last[slot])
        self._is_first, self._is_last = bool(np.any(self._first)), bool(np.any(self._last))
        self._table = (self._first > 0) * step.table_gradient
        self._saved: Array = 0.0
        self._inside: Array = 0.0
        kept: Array = 0.0
        for k, each in enumerate(step.saved):
            layers = at_stage(table.layers[k][slot])
            redone = at_stage(table.recomputed[k][slot])
            inputs = at_stage(table.inputs[k][slot])
            self._saved = self._saved + (layers - redone) * each + inputs * step.layer_input
            inside = np.where(redone > 0, step.again[k], 0.0) + step.inside[k]
            self._inside = np.maximum(self._inside, np.where(layers > 0, inside, 0.0))
            kept = np.maximum(kept, np.where(layers > redone, each, step.layer_input))
        self._offloaded: Array | None = None
        if np.any(step.offloads):
            self._offloaded = g.offloaded_share(slot)
            self._most_resident = OFFLOAD_RESIDENT_LAYERS * kept

    def leave_out_kinds(self) -> None:
        """Leave out what depends on which kinds of layers there are, and not on how many."""
        self._inside = reduce(np.minimum, self._of.inside)
        self._gradients = self._gradients - _placeholder_bytes(self._g, self._slot)
        self._step = 0.0

    def place(self) -> _Place:
        """The first stage of each plan that is composed so."""
        stage = self._g.stages.spread(self._g.table.stage[self._slot])
        place = _Place.of(self._g, self._slot, self._slot, _ALL, stage)
        return replace(place, plans=self._rows)

    def parts(self, place: _Place) -> tuple[dict[str, Array], Array]:
        """MEMORY_PARTS of some plans' stages, and what of them is returned where room is short."""
        of, in_flight = self._of, place.in_flight
        some = _ALL if place.plans is self._rows else place.plans

        def at(value: Array) -> Array:
            return _at(value, some)

        states = {
            "weights": at(self._weights) * place.weight_copies,
            "gradients": at(self._gradients),
            "optimizer": at(self._optimizer),
        }
        saved = at(self._saved)
        resident = in_flight * saved
        if self._offloaded is not None:
            offloaded = resident * at(self._offloaded)
            few = np.minimum(offloaded, at(self._most_resident))
            resident = resident - offloaded + few
        widest = at(self._inside)
        table: Array = 0.0
        if self._is_first:
            table = at(self._table)
            # Of its layers nothing is left when the gradient of the word table appears.
            widest = np.maximum(widest, table - np.minimum(saved, resident))
        logits: Array = in_flight * at(self._first * of.embedding) if self._is_first else 0.0
        working = widest
        if self._is_last:
            # All losses but the one whose backward has begun wait for theirs.
            last, losses, head = at(self._last), at(of.losses), at(of.head_saved)
            waiting = logits + (losses - 1.0) * last * head
            head_working = np.where(last > 0, at(of.head_working), 0.0)
            all_losses = logits + losses * last * head
            at_loss = all_losses + head_working > waiting + widest
            logits = np.where(at_loss, all_losses, waiting)
            working = np.where(at_loss, head_working, widest)
        working = working + at(of.workspace)
        communication = at(self._communication)
        if of.sent is not None:
            communication = communication + in_flight * at(of.sent)
        transient = resident + logits + working + communication
        step = at(self._step)
        over = np.maximum(step - transient, 0.0) if np.any(step) else 0.0
        gaps: Array = 0.0
        spare: Array = 0.0
        driver: Array = at(of.driver)
        if of.given is not None:
            driver = of.given
        else:
            room = at(of.room) - (sum_of(states.values()) + transient + over)
            # Moments short of the fullest: what they need and cannot have where that was.
            others = step - over + table * at(of.apart)
            gaps = overheads.gap_bytes(transient, at(of.share))
            spare = overheads.returnable_bytes(gaps, others, room)
        return {
            **states,
            "activations": resident,
            "logits": logits,
            "working": working + over,
            "communication": communication,
            "fragmentation": gaps + spare,
            "driver": driver,
        }, spare


def _states(s: Setting, g: Gathered, slot: int, matrix_states: Array) -> tuple[Array, Array, Array]:
    """Weights (one copy), gradients and optimizer states of one stage slot."""
    weights, gradients, optimizer = state_parts(
        s, g, g.trained_stage_parameters[slot], g.frozen_stage_bytes[slot]
    )
    if np.ndim(matrix_states) or matrix_states:
        kept = 1.0 - g.plans.offload_optimizer
        optimizer = optimizer + matrix_states * _copies(g) * kept
    gradients = gradients + _placeholder_bytes(g, slot)
    stored_bytes = state_memory.element_bytes(s.training, g.runtime).gradients
    return weights, gradients + _whole_table_bytes(g, slot, stored_bytes), optimizer


def _copies(g: Gathered) -> Array:
    """Both directions of DualPipe keep a whole stage each; PipeDream stashes weights only."""
    return by_schedule(g.plans, lambda schedule: 1.0 + (schedule.placement == "two-way"))


def state_parts(
    s: Setting, g: Gathered, trained: tuple[Array, Array], frozen: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Weights (one copy), gradients and optimizer states of (plain, expert) parameters that are
    trained, and of the bytes of those that are not.

    Under a pipeline FSDP keeps gradients whole until the last micro-batch (torch), so ZeRO-2/3
    holds them there as ZeRO-1 does.
    """
    training, plans = s.training, g.plans
    zero = plans.zero_stage
    gradient_zero = np.where(plans.pp > 1, np.minimum(zero, 1), zero)
    element = state_memory.element_bytes(training, g.runtime)
    copies = _copies(g)
    weights: Array = 0.0
    gradients: Array = 0.0
    optimizer: Array = 0.0
    shards = (g.state.spread(g.held.shards), g.state.spread(g.held.expert_shards))
    for held, kept, ranks in zip(trained, frozen, shards, strict=True):
        weights = weights + state_memory.weight_bytes(held, element.weights, zero, ranks)
        if g.frozen is not None:
            weights = weights + state_memory.weight_bytes(kept, 1.0, zero, ranks)
        gradients = gradients + state_memory.gradient_bytes(
            held, element.gradients, gradient_zero, ranks
        )
        optimizer = optimizer + state_memory.optimizer_bytes(held, element.optimizer, zero, ranks)
    return weights, gradients * copies, optimizer * copies * (1.0 - plans.offload_optimizer)


def _step_bytes(s: Setting, g: Gathered, slot: int) -> Array:
    """What flat buckets (DeepSpeed) and their optimizer step need beside the states of a slot."""
    flat = g.runtime.flat_buckets
    if not np.any(flat):
        return 0.0
    half = flat * (DTYPE_BYTES[s.training.gradient_dtype] < 4)
    shards = (g.state.spread(g.held.shards), g.state.spread(g.held.expert_shards))
    step = sum_of(
        state_memory.step_bytes(held, half, g.plans.zero_stage, ranks)
        for held, ranks in zip(g.trained_stage_parameters[slot], shards, strict=True)
    )
    ends = (g.stages.spread(row[slot]) > 0 for row in (g.table.first, g.table.last))
    table = np.maximum(*ends) * g.state.spread(g.trained.word_table)
    whole: Array = sum_of(g.trained_stage_parameters[slot])
    buckets = overheads.deepspeed_bucket_bytes(
        whole, table, DTYPE_BYTES[s.training.gradient_reduce_dtype], s.training.weight_bytes, half
    )
    return step + flat * (g.plans.dp * g.plans.cp > 1) * buckets


def _placeholder_bytes(g: Gathered, slot: int) -> Array:
    """Half-precision stand-ins of the gradients of a stage's matrices, one per shape (TE)."""
    placeholders = g.runtime.placeholder_gradients
    if not np.any(placeholders):
        return 0.0
    at_stage, at_state = g.stages.spread, g.state.spread
    there = [at_stage(layers[slot]) for layers in g.table.layers]
    total: Array = (at_stage(g.table.last[slot]) > 0) * at_state(g.trained.word_table)
    for kinds, parameters in g.trained.placeholders.items():
        total = total + (sum_of(there[k] for k in kinds) > 0) * at_state(parameters)
    return total * overheads.WEIGHT_BYTES * placeholders


def gathered_bytes(s: Setting, g: Gathered, slot: int) -> Array:
    """Bytes of weights that one stage slot has gathered.

    FSDP keeps two gathered layers (the one in use and the prefetched one), and all along the root's
    weights (word table and head); or all weights of the stage where it does not reshard.  Without
    ZeRO torch (replicate) keeps them once more, in the dtype it computes in.
    """
    plans, half, runtime = g.plans, s.training.weight_bytes, g.runtime
    stage: Array = sum_of(g.stage_parameters[slot])
    masters: Array = sum_of(g.trained_stage_parameters[slot])
    copied: Array = runtime.weights_are_masters * (plans.zero_stage == 0) * masters * half
    if not np.any(plans.zero_stage == 3):
        return copied
    first = g.stages.spread(g.table.first[slot]) > 0
    last = g.stages.spread(g.table.last[slot]) > 0
    layer = _gathered_layer(g, g.held, g.layer_parameters)
    one = _at_once(g, layer)
    ahead = np.minimum(layer, runtime.most_live_parameters)
    ahead = np.where(np.asarray(runtime.gathers_next_matrix) > 0, one, ahead)
    ends = first * g.state.spread(g.held.embedding) + last * g.state.spread(g.held.head)
    root = runtime.gathers_root_weights * ends
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
    reduced = reduced * (1.0 - g.runtime.reduces_half_gradients)
    last = g.stages.spread(g.table.last[slot]) > 0
    head = last * g.state.spread(g.trained.word_table) * half * g.runtime.gathers_root_weights
    layer = _gathered_layer(g, g.trained, g.trained_layer_parameters)
    buckets: Array = _at_once(g, layer) * (reduced + half) + head
    return buckets


def _gathered_layer(g: Gathered, held: HeldParameters, layers: LayerParameters) -> Array:
    """Parameters that are gathered together: of a layer, or of a word table that is larger."""
    layer = max_of(plain + expert for plain, expert in layers)
    with_table = np.maximum(layer, g.state.spread(held.embedding))
    apart = np.asarray(g.runtime.gathers_root_weights) > 0
    together: Array = np.where(apart, layer, with_table)
    return together


def _at_once(g: Gathered, layer: Array) -> Array:
    """Parameters in use of a gathered layer, or of its widest matrix."""
    together = np.asarray(g.runtime.gathers_experts_together) > 0
    matrix = np.where(
        together, g.state.spread(g.held.widest_together), g.state.spread(g.held.widest)
    )
    widest = np.minimum(layer, matrix)
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
    others = (plans.tp - 1.0) * g.state.spread(g.trained.word_table)
    held: Array = g.runtime.whole_table_gradient * accumulates * first * others * stored_bytes
    return held
