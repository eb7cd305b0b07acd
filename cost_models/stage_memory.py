"""Memory per stage and part, from key-level amounts: arithmetic on arrays over plans.

The peak of a stage is the largest of several moments: the loss, with the logits; the backward pass
of one layer; that of the embedding, with a gradient of the whole table; the optimizer step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from cost_models import overheads
from cost_models.arrays import Rows, any_of, maximum, minimum, rows_of, sum_of, where
from cost_models.cost_parts import MEMORY_PARTS, STATE_PARTS, STEP_PARTS
from cost_models.keyed_plans import CostContext, FloatArray, KeyedPlans, by_schedule
from cost_models.keys import KeyView
from cost_models.matrix_optimizers import MatrixOptimizer
from cost_models.optimizers import OPTIMIZERS
from cost_models.plans import code, is_one_of
from cost_models.schedules import SCHEDULES
from cost_models.sources import Array
from cost_models.stage_states import (
    bucket_bytes,
    flat_step_bytes,
    forward_cast_bytes,
    gathered_bytes,
    list_step_bytes,
    placeholder_bytes,
    stage_states,
)

# Layers whose saved tensors are always on the device: one in use, one in transfer.
OFFLOAD_RESIDENT_LAYERS = 2.0
_ALL = slice(None)
# Plans without a slot are left out of it where fewer than this share of them have it.
_WORTH_TAKING = 0.6


@dataclass(frozen=True)
class _StageSet:
    """A row of the arrays of stages: stages of some plans that are composed alike, and what their
    schedules keep there, as activation units and copies of the weights.
    """

    row: int
    slot: int
    plans: Rows
    stage: Array
    in_flight: Array
    weight_copies: Array

    @classmethod
    def of(cls, g: KeyedPlans, row: int, slot: int, plans: Rows, stage: Array) -> _StageSet:
        view = g.plans
        if not isinstance(plans, slice):
            view = KeyView(g.plans, ("schedule", "pp", "vpp"), plans)
        count = rows_of(g.micro_batches, plans)
        in_flight = by_schedule(view, lambda s: s.in_flight(stage, view.pp, view.vpp, count))
        copies = by_schedule(view, lambda s: s.weight_copies(stage, view.pp))
        return cls(row, slot, plans, stage, in_flight, copies)


class StageMemory:
    """Memory of stages that can be the worst, or of all: arrays of shape (rows, plans).

    total_bytes: what the driver has lent, which must fit; peak_bytes: that of the fullest stage.
    spare_bytes: what of a total is held only where there is room; needed_bytes: the most that a
    stage needs without it.  Where a plan has fewer stages than there are rows, the others hold
    nothing.
    """

    def __init__(self, s: CostContext, g: KeyedPlans, all_stages: bool) -> None:
        # What does not depend on what is in flight, once for stages that are composed alike.
        self._slots = list(_slots(s, g, all_stages))
        self._stage_sets = tuple(_stages(g) if all_stages else map(_Slot.first_stages, self._slots))
        self._shape = len(g.table.slot_of) if all_stages else len(self._slots), len(g.plans)
        self.peak_bytes = np.zeros(self._shape[1])
        self.needed_bytes = np.zeros(self._shape[1])
        # Whoever asks for all stages reads their parts; those of a search would fill the memory.
        self._first_parts: list[tuple[dict[str, Array], Array]] = []
        for stages, parts, spare in self._composed():
            if all_stages:
                self._first_parts.append((parts, spare))
            total = sum_of(parts.values())
            for peaks, value in ((self.peak_bytes, total), (self.needed_bytes, total - spare)):
                peaks[stages.plans] = maximum(peaks[stages.plans], value)

    def _composed(self) -> Iterator[tuple[_StageSet, dict[str, Array], Array]]:
        """The parts of each place, and what of them is returned where room is short."""
        for i, stages in enumerate(self._stage_sets):
            cached = self._first_parts[i : i + 1]
            yield stages, *(cached[0] if cached else self._slots[stages.slot].parts(stages))

    @cached_property
    def parts(self) -> dict[str, FloatArray]:
        """MEMORY_PARTS by name, which add up to the total."""
        parts_bytes = {name: np.zeros(self._shape) for name in MEMORY_PARTS}
        for stages, parts, _ in self._composed():
            for name, values in parts.items():
                parts_bytes[name][stages.row, stages.plans] = values
        return parts_bytes

    @cached_property
    def total_bytes(self) -> FloatArray:
        """Of each stage."""
        return np.asarray(sum_of(self.parts.values()))

    @cached_property
    def spare_bytes(self) -> FloatArray:
        """Of each stage."""
        return self._filled((stages, spare) for stages, _, spare in self._composed())

    @cached_property
    def stage(self) -> FloatArray:
        """Which stage each row is."""
        return self._filled((s, s.stage) for s in self._stage_sets)

    @cached_property
    def in_flight(self) -> FloatArray:
        """Activation units that each stage keeps."""
        return self._filled((s, s.in_flight) for s in self._stage_sets)

    @cached_property
    def allocated_bytes(self) -> FloatArray:
        """What torch's allocator hands out."""
        total: FloatArray = np.sum([self.parts[n] for n in (*STATE_PARTS, *STEP_PARTS)], axis=0)
        return total

    @property
    def reserved_bytes(self) -> FloatArray:
        """What torch's allocator holds."""
        return self.allocated_bytes + self.parts["fragmentation"]

    def peak_of(self, quantity: str) -> FloatArray:
        """The peak of the fullest stage: `allocated`, `reserved` or `driver`."""
        if quantity == "driver":
            return self.peak_bytes
        totals = self.allocated_bytes if quantity == "allocated" else self.reserved_bytes
        return np.asarray(totals.max(axis=0))

    def _filled(self, values: Iterable[tuple[_StageSet, Array]]) -> FloatArray:
        rows = np.zeros(self._shape)
        for stages, value in values:
            rows[stages.row, stages.plans] = value
        return rows


def least_needed_bytes(s: CostContext, g: KeyedPlans) -> Array:
    """Bytes that the fullest stage needs at least, whatever stage holds which layers: a bound.

    g: of mean stages, which hold no more than the fullest.  One micro-batch is in flight; where
    layers differ, the fullest stage may have those alone that take the least beside what is saved.
    What an optimizer keeps by matrix is left out.
    """
    amounts = _StepAmounts(s, g)
    slot = _Slot(s, g, 0, _ALL, amounts, 0.0)
    slot.leave_open(kinds=len(s.kinds) > 1)
    parts, spare = slot.parts(_StageSet(0, 0, _ALL, 0.0, 1.0, 1.0))
    if OPTIMIZERS[s.training.optimizer].by_matrix:
        parts["optimizer"] = 0.0
    return sum_of(parts.values()) - spare


def _slots(s: CostContext, g: KeyedPlans, all_stages: bool) -> Iterator[_Slot]:
    """The compositions of stages; without all_stages each for those plans alone that have it.

    Later slots belong to fewer plans (those with more stages that differ), and plans are left out
    where that spares more than it costs.
    """
    by_matrix = OPTIMIZERS[s.training.optimizer].by_matrix
    matrices = MatrixOptimizer(s, g) if by_matrix else None
    counts = g.stages.spread(g.table.counts)
    rows: Rows = _ALL
    keyed, amounts = g, _StepAmounts(s, g)
    for slot in range(len(g.table.stage)):
        if not all_stages and np.ndim(counts):
            has = np.flatnonzero(counts > slot)
            if len(has) < _WORTH_TAKING * len(keyed.plans):
                rows, keyed = has, g.take(has)
                amounts = _StepAmounts(s, keyed)
        states = 0.0 if matrices is None else rows_of(matrices.state_bytes(slot), rows)
        yield _Slot(s, keyed, slot, rows, amounts, states)


def _stages(g: KeyedPlans) -> Iterator[_StageSet]:
    """Every stage, with the slot of its composition."""
    plans: Rows = _ALL
    layout = g.stages.inverse
    if layout is None:  # of all plans the same
        alike = enumerate(g.table.slot_of[:, 0].tolist())
        yield from (_StageSet.of(g, stage, slot, plans, float(stage)) for stage, slot in alike)
        return
    for stage, slots in enumerate(g.table.slot_of):
        stage_slots = slots[layout] if isinstance(plans, slice) else slots[layout[plans]]
        has_slot = stage_slots >= 0
        if not has_slot.all():
            plans = np.flatnonzero(has_slot) if isinstance(plans, slice) else plans[has_slot]
            stage_slots = stage_slots[has_slot]
        for slot in range(stage_slots.min(), stage_slots.max() + 1):
            in_slot = stage_slots == slot
            if in_slot.all():
                rows = plans
            elif in_slot.any():
                rows = np.flatnonzero(in_slot) if isinstance(plans, slice) else plans[in_slot]
            else:
                continue
            yield _StageSet.of(g, stage, slot, rows, float(stage))


class _StepAmounts:
    """What comes and goes in a step, laid out per plan once for all slots."""

    def __init__(self, s: CostContext, g: KeyedPlans) -> None:
        plans, at_layer, r = g.plans, g.layers.spread, g.runtime
        self.saved = [at_layer(layer.saved) for layer in g.bytes.layers]
        self.layer_input = at_layer(g.bytes.layer_input)
        self.embedding = at_layer(g.bytes.embedding_saved)
        self.head_saved = at_layer(g.bytes.head_saved)
        self.head_working = at_layer(g.bytes.head_working)
        full = plans.recompute == code("recompute", "full")
        uniform = plans.recompute_method == code("recompute_method", "uniform")
        # Layers of one checkpoint: all of them exist again while it runs backward.
        span = where(full & uniform, maximum(plans.recompute_num_layers, 1), 1)
        self.recomputed = [saved * span for saved in self.saved]
        self.inside = [at_layer(layer.working + layer.dropped) for layer in g.bytes.layers]
        # The backward of a loss follows it at once, unless the schedule runs all forwards first.
        keeps_all = tuple(name for name, it in SCHEDULES.items() if it.keeps_all)
        keeps = is_one_of(plans.schedule, "schedule", *keeps_all)
        self.losses = where(keeps > 0, g.micro_batches, 1.0)
        self.workspace = overheads.workspace_bytes(r.gemm_workspaces)
        self.table_gradient = g.state.spread(g.trained.embedding) * s.training.weight_bytes
        self.offloads = plans.offload_activations > 0
        # A pipeline holds a message each way, torch's (PipelineStage) one each way for every
        # micro-batch of a step; some keep what they sent until its gradient comes back.
        message = where(plans.pp > 1, at_layer(g.bytes.message), 0.0)
        self.messages = 2.0 * message * (1.0 + r.buffers_every_message * (g.micro_batches - 1.0))
        self.sent_bytes = message * r.keeps_sent_outputs if any_of(r.keeps_sent_outputs) else None
        # Those of replicas stay in buckets; sharded ones are reduced by layer, the head's first.
        unshared = (g.micro_batches == 1) & (plans.dp * plans.cp == 1) & (plans.pp == 1)
        self.gradients_absent = r.frees_gradients * unshared
        self.driver = overheads.driver_bytes(plans)
        self.share = overheads.fragmentation_share(r.expandable_segments)
        self.few_gaps = r.gaps_of_logits
        self.reserved_given = s.cluster.reserved_bytes_per_accelerator
        # One byte less than there is: sums of parts round.
        self.room = s.nodes.accelerator.memory_bytes - self.driver - 1.0
        self.unexpandable = 1.0 - r.expandable_segments


class _Slot:
    """Stages of one composition: what they hold whatever is in flight, and what depends on it.

    rows: the plans that g has; matrix_states: bytes that the optimizer keeps by matrix.
    """

    def __init__(
        self, s: CostContext, g: KeyedPlans, slot: int, rows: Rows, step: _StepAmounts,
        matrix_states: Array,
    ) -> None:  # fmt: skip
        table, at_stage = g.table, g.stages.spread
        self._g, self._slot, self._rows, self._of = g, slot, rows, step
        self._weights, self._gradients, self._optimizer = stage_states(s, g, slot, matrix_states)
        self._communication = step.messages + gathered_bytes(s, g, slot)
        self._buckets = bucket_bytes(s, g, slot)
        self._forward_casts = forward_cast_bytes(s, g, slot)
        self._step = flat_step_bytes(s, g, slot) + list_step_bytes(s, g, slot)
        self._first, self._last = at_stage(table.first[slot]), at_stage(table.last[slot])
        self._is_first, self._is_last = bool(any_of(self._first)), bool(any_of(self._last))
        self._table = (self._first > 0) * step.table_gradient
        self._saved: Array = 0.0
        self._inside: Array = 0.0
        largest: Array = 0.0
        layer_count: Array = 0.0
        recomputed: Array = 0.0
        for k, each in enumerate(step.saved):
            layers = at_stage(table.layers[k][slot])
            redone = at_stage(table.recomputed[k][slot])
            inputs = at_stage(table.inputs[k][slot])
            layer_count, recomputed = layer_count + layers, recomputed + redone
            self._saved = self._saved + (layers - redone) * each + inputs * step.layer_input
            inside = where(redone > 0, step.recomputed[k], 0.0) + step.inside[k]
            self._inside = maximum(self._inside, where(layers > 0, inside, 0.0))
            largest = maximum(largest, where(layers > redone, each, step.layer_input))
        self._recomputed = recomputed / maximum(layer_count, 1.0)
        self._offloaded: Array | None = None
        if any_of(step.offloads):
            self._offloaded = g.offloaded_share(slot)
            self._most_resident = OFFLOAD_RESIDENT_LAYERS * largest

    def leave_open(self, kinds: bool) -> None:
        """Leave out how many layers are recomputed, and with kinds which kinds a stage has."""
        uniform = self._g.plans.recompute_method == code("recompute_method", "uniform")
        self._recomputed = where(uniform, self._recomputed, 0.0)
        if kinds:
            self._inside = reduce(np.minimum, self._of.inside)
            self._gradients = self._gradients - placeholder_bytes(self._g, self._slot)
            self._step = 0.0

    def first_stages(self) -> _StageSet:
        """The first stage of each plan that is composed so."""
        stage = self._g.stages.spread(self._g.table.stage[self._slot])
        return replace(_StageSet.of(self._g, self._slot, self._slot, _ALL, stage), plans=self._rows)

    def parts(self, stages: _StageSet) -> tuple[dict[str, Array], Array]:
        """MEMORY_PARTS of some plans' stages, and what of them is returned where room is short."""
        of, in_flight = self._of, stages.in_flight
        rows = _ALL if stages.plans is self._rows else stages.plans

        def at(value: Array) -> Array:
            return rows_of(value, rows)

        states = {
            "weights": at(self._weights) * stages.weight_copies,
            "gradients": at(self._gradients),
            "optimizer": at(self._optimizer),
        }
        resident = self._resident(stages, rows)
        widest = at(self._inside)
        table: Array = 0.0
        if self._is_first:
            table = at(self._table)
            # Of its layers nothing is left when the gradient of the word table appears.
            widest = maximum(widest, table - minimum(at(self._saved), resident))
        logits, working = self._at_loss(stages, rows, widest)
        working = working + at(of.workspace)
        communication = at(self._communication)
        if of.sent_bytes is not None:
            communication = communication + in_flight * at(of.sent_bytes)
        buckets = at(self._buckets)
        if any_of(self._forward_casts):
            # They are gone before what a backward pass works with is there.
            buckets = maximum(buckets, at(self._forward_casts) - working)
        step, absent = at(self._step), at(of.gradients_absent)
        if any_of(absent):
            gradients, present = states["gradients"], 1.0 - absent
            coming = gradients + maximum(buckets, step)
            coming = coming - (resident + logits + working + communication)
            states["gradients"] = gradients * present + absent * maximum(coming, 0.0)
            buckets, step = buckets * present, step * present
        communication = communication + buckets
        transient = resident + logits + working + communication
        over = maximum(step - transient, 0.0) if any_of(step) else 0.0
        stuck: Array = 0.0
        spare: Array = 0.0
        driver: Array = at(of.driver)
        if of.reserved_given is not None:
            driver = of.reserved_given
        else:
            room = at(of.room) - (sum_of(states.values()) + transient + over)
            # Moments short of the fullest: what they need and cannot have where that was.
            others = step - over + table * at(of.unexpandable)
            gaps = overheads.gap_bytes(transient, at(of.share), at(of.few_gaps), logits)
            stuck = overheads.stuck_bytes(gaps, transient, at(self._recomputed))
            spare = overheads.returnable_bytes(stuck, others + gaps - stuck, room)
        return {
            **states,
            "activations": resident,
            "logits": logits,
            "working": working + over,
            "communication": communication,
            "fragmentation": stuck + spare,
            "driver": driver,
        }, spare

    def _resident(self, stages: _StageSet, rows: Rows) -> Array:
        """Saved tensors on the device: what is in flight, less what is offloaded.

        Transformer Engine offloads the first layers, and reloads one where a layer after them is
        done: no more is there than what all other layers save (cpu_offload.py,
        DefaultOffloadSynchronizer).
        """
        resident: Array = stages.in_flight * rows_of(self._saved, rows)
        if self._offloaded is None:
            return resident
        others = resident * (1.0 - rows_of(self._offloaded, rows))
        return maximum(others, minimum(resident, rows_of(self._most_resident, rows)))

    def _at_loss(self, stages: _StageSet, rows: Rows, widest: Array) -> tuple[Array, Array]:
        """Logits and working memory at the fuller moment: the loss, or a layer's backward.

        widest: the working memory of layers.
        """
        of, in_flight = self._of, stages.in_flight
        logits: Array = 0.0
        if self._is_first:
            logits = in_flight * rows_of(self._first * of.embedding, rows)
        if not self._is_last:
            return logits, widest
        # All losses but the one whose backward has begun wait for theirs.
        last, losses, head = (
            rows_of(value, rows) for value in (self._last, of.losses, of.head_saved)
        )
        waiting = logits + (losses - 1.0) * last * head
        head_working = where(last > 0, rows_of(of.head_working, rows), 0.0)
        all_losses = logits + losses * last * head
        at_loss = all_losses + head_working > waiting + widest
        return where(at_loss, all_losses, waiting), where(at_loss, head_working, widest)
