"""Seconds of data-parallel synchronisation: ZeRO traffic, the optimizer step, offload."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cost_models.arrays import any_of, max_of, maximum, minimum, sum_of, where
from cost_models.blocks.head import Head
from cost_models.blocks.records import Split
from cost_models.data_parallel import DataParallelSeconds, Rates, reduced_bucket_parameters
from cost_models.encoders import before_layers
from cost_models.keyed_plans import CostContext, KeyedPlans
from cost_models.matrix_optimizers import MatrixOptimizer
from cost_models.measured_tables import Linear, Measured
from cost_models.objectives import forward_share
from cost_models.optimizers import OPTIMIZERS
from cost_models.parameters import tensors_of
from cost_models.runtimes.base import Traits
from cost_models.sources import Array, formula
from cost_models.spec import DTYPE_BYTES, TrainingSpec
from cost_models.stage_states import offloaded_shards
from cost_models.trainable import TrainableModel

OPTIMIZER_STATE_PASSES = 2.0
# One multiprocessor of an H200 with bitsandbytes' AdamW of 8 bits.
QUANTISED_PARAMETERS_PER_S = 2.7e8
# torch's AdamW over lists of tensors: decay of the weight (8 bytes), first moment (12), second
# moment twice (20), its root, quotient and sum with epsilon (24), the weight's update (16) are 80
# bytes where weight and moments are 12 (_multi_tensor_adam).
LIST_STATE_PASSES = 80.0 / 12.0
COPIED_BYTES = 5.0  # per parameter and collective: 2 read, 2 written (gather) or 4 (reduce)
OPTIMIZER_BANDWIDTH_FRACTION = 0.85
# CPU Adam of one node, parameters per second (ZeRO-Offload, arXiv 2101.06840, table 4; recalled).
CPU_ADAM_PARAMETERS_PER_S = 4e9


class Sharded:
    """Exposed seconds that ZeRO-2/3 adds to each block in every micro-batch.

    ZeRO-3 gathers before forward and (unless kept) before backward; ZeRO-2 and 3 reduce after
    backward, except under a pipeline, where FSDP waits for the last micro-batch (torch).
    Prefetching hides them under the block's own kernels.
    """

    def __init__(self, s: CostContext, g: KeyedPlans, dp: DataParallelSeconds) -> None:
        plans = g.plans
        memory = s.profile.memory.y[-1] * s.nodes.accelerator.memory_bytes_per_s
        # Kernels slow down by the bytes that are moved meanwhile, not by the time of a slow link.
        link = s.nodes.network[0].bandwidth_bytes_per_s * s.profile.domain_fraction
        self.contention = s.machine.fitted.contention / link
        self.reduce_bytes = float(DTYPE_BYTES[s.training.gradient_reduce_dtype])
        self.weight_bytes = float(s.training.gathered_weight_bytes)
        self.copied_s = g.runtime.copies_sharded_parameters * COPIED_BYTES / memory
        self.dp, self.spread = dp, g.state.spread
        self.measured = s.profile.measured
        self.wrapper: _Wrapper | None = None
        if self.measured is not None:
            self.wrapper = _Wrapper(self.measured, g, s.nodes.accelerators_per_node)
        self.used = bool(any_of(plans.zero_stage >= 2)) or self.wrapper is not None
        self.gathers = (plans.zero_stage == 3) & (plans.reshard_after_forward > 0)
        self.reduces = (plans.zero_stage >= 2) & (plans.pp == 1)
        self.hides_gather = (plans.overlap_param_gather > 0).astype(np.float64)
        self.forwards = 1.0 + forward_share(s.model, s.training)
        self.hides_reduce = (plans.overlap_grad_reduce > 0).astype(np.float64)
        self.held, self.trained = g.layer_parameters, g.trained_layer_parameters
        self.word_tables = [g.state.spread(p.embedding) for p in (g.held, g.trained)]

    def layer_s(self, kind: int, block: dict[str, Array], recomputed_s: Array) -> Array:
        """Seconds of one layer whose backward pass begins with recomputed_s of forward kernels."""
        if not self.used:
            return 0.0
        return self._exposed_s(
            self.dp.layer_gather_s[kind],
            self.dp.layer_reduce_s[kind],
            (sum_of(self.held[kind]), sum_of(self.trained[kind])),
            block,
            recomputed_s,
        )

    def end_s(self, block: dict[str, Array]) -> Array:
        """Seconds of the embedding or the head."""
        if not self.used:
            return 0.0
        return self._exposed_s(
            self.dp.end_gather_s, self.dp.end_reduce_s, tuple(self.word_tables), block, 0.0
        )

    def _exposed_s(
        self,
        gather: NDArray[np.float64],
        reduce: NDArray[np.float64],
        parameters: tuple[Array, Array],
        block: dict[str, Array],
        recomputed_s: Array,
    ) -> Array:
        """parameters: gathered, reduced."""
        gathered, reduced = parameters
        gather_s = where(self.gathers, self.spread(gather), 0.0)
        reduce_s = where(self.reduces, self.spread(reduce), 0.0)
        first_s = self.forwards * gather_s
        forward = maximum(first_s - self.hides_gather * block["forward_s"], 0.0)
        under = block["backward_s"] + block["recompute_s"] + recomputed_s
        shown = gather_s * (1.0 - self.hides_gather) + reduce_s * (1.0 - self.hides_reduce)
        hidden = gather_s * self.hides_gather + reduce_s * self.hides_reduce
        exposed = forward + shown + maximum(hidden - under, 0.0)
        total = first_s + gather_s + reduce_s
        hidden_share = maximum(1.0 - exposed / maximum(total, 1e-30), 0.0)
        gathers = (1.0 + self.forwards) * self.gathers * gathered
        passing = gathers * self.weight_bytes
        passing = passing + self.reduce_bytes * self.reduces * reduced
        lost = self.contention * passing * hidden_share * (total > 0)
        if self.measured is not None and self.measured.contention is not None:
            lost = self.measured.contention * (total - exposed)
        # Out of the gathered buffer and into that of the reduction, which is fp32 (torch FSDP).
        moved = gathers + self.reduces * reduced
        copies = self.copied_s * moved
        if self.wrapper is not None:
            copies = self.wrapper.seconds(reduced, copies)
        seconds: Array = exposed + lost + copies
        return seconds


class _Wrapper:
    """The work of torch's data-parallel wrapper around a block, as measured on one rank.

    replicate and fully_shard unshard before each forward, or once per step where gathered weights
    are kept; they reduce once per step, ZeRO-2 and 3 in every micro-batch; under a pipeline both
    happen once per step (torch.distributed.pipelining stage.py).
    """

    def __init__(self, measured: Measured, g: KeyedPlans, neighbours: int) -> None:
        plans = g.plans
        self.lines, self.sharded = measured.wrapper, plans.zero_stage > 0
        self.slower = measured.slowdown("memory", neighbours)
        self.uses_wrapper = np.asarray(g.runtime.measured_wrapper) * bool(measured.wrapper) > 0
        each = 1.0 / g.micro_batches
        unpiped = plans.pp == 1
        self.often: dict[str, Array] = {
            "forward": where(unpiped & (plans.reshard_after_forward > 0), 1.0, each),
            "backward": 1.0,
            "reduce": where(unpiped & self.sharded, 1.0, each),
        }

    def seconds(self, parameters: Array, otherwise: Array) -> Array:
        """Seconds of one block and micro-batch; otherwise: where nothing was measured."""
        total: Array = 0.0
        for part, often in self.often.items():
            unsharded, shards = (
                self.lines.get((wrapper, part), Linear(0.0, 0.0))
                for wrapper in ("replicate", "fully_shard")
            )
            fixed = where(self.sharded, shards.fixed_s, unsharded.fixed_s)
            each = where(self.sharded, shards.per_unit_s, unsharded.per_unit_s)
            total = total + often * (fixed + each * parameters) * self.slower
        return where(self.uses_wrapper, total, otherwise)


@dataclass(frozen=True)
class StepSeconds:
    """What happens once per step: exposed communication, the optimizer's update, its offload."""

    data_parallel: Array
    tensor_parallel: Array
    optimizer: Array
    offload: Array


def step_seconds(
    s: CostContext, g: KeyedPlans, dp: DataParallelSeconds, forward: Array, backward: Array
) -> StepSeconds:
    """The work that is done once per step.

    Gradients reduce under the last micro-batch's backward, weights gather under the first
    forward; of each at least the last or first bucket shows.  A later stage ends its
    backward earlier and starts its forward later by its place in the pipeline.
    """
    plans, training = g.plans, s.training
    at_state, at_stage = g.state.spread, g.stages.spread
    sharded = plans.zero_stage >= 1
    shards = [
        where(sharded, at_state(ranks), 1.0) for ranks in (g.held.shards, g.held.expert_shards)
    ]
    bandwidth = s.nodes.accelerator.memory_bytes_per_s * OPTIMIZER_BANDWIDTH_FRACTION
    step_bytes = optimizer_step_bytes(training, g.runtime)
    quantised_s = quantised_step_s(training, s.profile.gemm["bf16"].multiprocessors)
    bucket = reduced_bucket_parameters(g.runtime, training, plans)
    measured = s.profile.measured
    collectives = StepCollectives(s, g, dp)
    matrices = MatrixOptimizer(s, g) if OPTIMIZERS[training.optimizer].by_matrix else None
    exposed: Array = 0.0
    tensor = optimizer = offload = exposed
    for slot, (plain, expert) in enumerate(g.trained_stage_parameters):
        stage = at_stage(g.table.stage[slot])
        reduce_s, gather_s = collectives.of((plain, expert), g.stage_parameters[slot])
        least = minimum(bucket / maximum(plain + expert, 1.0), 1.0)
        hidden = plans.overlap_grad_reduce * backward * (1.0 + stage / plans.vpp)
        shown = maximum(reduce_s - hidden, reduce_s * least)
        hidden = plans.overlap_param_gather * forward * (1.0 + stage / plans.vpp)
        shown = shown + maximum(gather_s - hidden, gather_s * least)
        hidden_share = 1.0 - shown / maximum(reduce_s + gather_s, 1e-30)
        passing = (plain + expert) * (
            (reduce_s > 0) * float(DTYPE_BYTES[training.gradient_reduce_dtype])
            + (gather_s > 0) * training.gathered_weight_bytes
        )
        link = s.nodes.network[0].bandwidth_bytes_per_s * s.profile.domain_fraction
        lost = s.machine.fitted.contention * passing / link
        if measured is not None and measured.contention is not None:
            lost = measured.contention * (reduce_s + gather_s)
        shown = shown + lost * maximum(hidden_share, 0.0)
        owned = plain / shards[0] + expert / shards[1]
        seconds = maximum(owned * step_bytes / bandwidth, owned * quantised_s)
        if measured is not None and measured.optimizer is not None:
            tensors = _tensors(s, g, slot)
            seconds = tensors * measured.optimizer[0] + owned * measured.optimizer[1]
            seconds = seconds * measured.slowdown("memory", s.nodes.accelerators_per_node)
        if matrices is not None:
            more = matrices.step(slot, step_bytes, bandwidth)
            seconds, shown = seconds + more.update_s, shown + more.shard_gather_s
            tensor = maximum(tensor, more.tensor_gather_s)
        exposed = maximum(exposed, shown)
        optimizer = maximum(optimizer, seconds)
        if any_of(plans.offload_optimizer):
            stored = sum_of(w / n for w, n in zip(g.stage_parameters[slot], shards, strict=True))
            busy_s = g.micro_batches * (forward + backward)
            offload = maximum(offload, _offload_s(s, g, owned, stored, busy_s))
    optimizer = optimizer * (1.0 - plans.offload_optimizer)
    return StepSeconds(exposed + at_state(dp.tied_reduce_s), tensor, optimizer, offload)


def _tensors(s: CostContext, g: KeyedPlans, slot: int) -> Array:
    """Trained parameter tensors of a stage: its layers', and those of the ends it holds."""
    spread = g.stages.spread
    model, trainable = s.model, TrainableModel(s.model, s.training)
    each = [
        tensors_of(w for w in trainable.weights(kind, Split()) if w.trained) for kind in s.kinds
    ]
    ends = [
        sum(tensors_of(end.weights(model, Split())) * s.training.trains(end.part) for end in side)
        for side in (before_layers(model), (Head(),))
    ]
    total: Array = spread(g.table.first[slot]) * ends[0] + spread(g.table.last[slot]) * ends[1]
    for layers, tensors in zip(g.table.layers, each, strict=True):
        total = total + spread(layers[slot]) * tensors
    return total


@formula("byte", "megatron-core", "torch")
def optimizer_step_bytes(training: TrainingSpec, runtime: Traits) -> Array:
    """Bytes per parameter that one optimizer step reads and writes.

    States read and written and the fp32 gradient read; before it the gradient's norm (read) and
    its clipping (read, write); after it the half-precision weight (master read, weight written)
    and the gradient buffer cleared.  Where gradients are half precision they are first copied to
    fp32 and unscaled (Megatron's mixed-precision optimizer).  torch's sharded states are their
    own master: no copy, and gradients are freed instead of cleared.
    """
    gradient = float(DTYPE_BYTES[training.gradient_dtype])
    lists = runtime.steps_by_list * (training.optimizer == "adam")
    passes = OPTIMIZER_STATE_PASSES + (LIST_STATE_PASSES - OPTIMIZER_STATE_PASSES) * lists
    states = passes * training.optimizer_bytes_per_parameter
    copied = 0.0 if gradient == 4.0 else gradient + 4.0 + 8.0
    after = (4.0 + training.weight_bytes + gradient) * (1.0 - runtime.weights_are_masters)
    return states + 4.0 + 12.0 + copied + after


@formula("s", "gpu-day")
def quantised_step_s(training: TrainingSpec, multiprocessors: int) -> float:
    """Seconds per parameter of a step whose states are quantized again, which it searches for."""
    eight_bits = OPTIMIZERS[training.optimizer].moment_bytes is not None
    return eight_bits / (QUANTISED_PARAMETERS_PER_S * multiprocessors)


class StepCollectives:
    """Reduction and gathering of a stage's parameters once per step, by ZeRO stage."""

    def __init__(self, s: CostContext, g: KeyedPlans, dp: DataParallelSeconds) -> None:
        plans, spread = g.plans, g.state.spread
        zero = plans.zero_stage
        reduce_bytes = float(DTYPE_BYTES[s.training.gradient_reduce_dtype])
        # DeepSpeed's bf16 optimizer reduces all gradients to all ranks, then steps its shard.
        bf16 = s.training.precision == "bf16"
        reduces_whole = np.asarray(g.runtime.reduces_whole_bf16_gradients) * bf16 > 0
        reduces = (zero == 0) | ((zero == 1) & reduces_whole)
        scatters = (zero == 1) | ((zero >= 2) & (plans.pp > 1))
        keeps = (zero == 3) & (plans.reshard_after_forward == 0)
        gathers = (zero == 1) | (zero == 2) | keeps
        self._keeps = keeps

        def rates(group: Rates) -> tuple[Array, Array]:
            """Seconds per parameter: reduced, gathered."""
            reduced = where(
                reduces,
                spread(group.all_reduce_s_per_byte),
                where(scatters, spread(group.reduce_scatter_s_per_byte), 0.0),
            )
            gathered = where(gathers, spread(group.all_gather_s_per_byte), 0.0)
            return reduced * reduce_bytes, gathered * s.training.gathered_weight_bytes

        self.plain = rates(dp.plain)
        self.expert = rates(dp.expert) if s.model.moe is not None else (0.0, 0.0)

    def of(self, trained: tuple[Array, Array], held: tuple[Array, Array]) -> tuple[Array, Array]:
        """(reduce, gather) seconds of (plain, expert) parameters.

        An optimizer that is sharded gathers what it has stepped; weights that are, all of them.
        """
        plain, expert = trained
        if trained is not held:
            held = where(self._keeps, held[0], plain), where(self._keeps, held[1], expert)
        return (
            plain * self.plain[0] + expert * self.expert[0],
            held[0] * self.plain[1] + held[1] * self.expert[1],
        )


def _offload_s(s: CostContext, g: KeyedPlans, owned: Array, held: Array, busy_s: Array) -> Array:
    """Gradients down, CPU Adam, weights up (ZeRO-Offload), one after the other.

    Where FSDP's shards are in host memory, weights come for the forward and the backward pass of
    each micro-batch and gradients go, beside the kernels: what takes longer is seen.
    owned: parameters that a rank steps; held: those of its shards; busy_s: of all micro-batches.
    """
    link = s.nodes.host_link_bytes_per_s
    assert link is not None
    per_accelerator = CPU_ADAM_PARAMETERS_PER_S / s.nodes.accelerators_per_node
    down = owned * DTYPE_BYTES[s.training.gradient_dtype] / link
    up = s.training.weight_bytes / link
    shards = offloaded_shards(g)
    passing = maximum(g.micro_batches * (down + 2.0 * held * up) - busy_s, 0.0)
    moved = where(shards > 0, passing, down + owned * up)
    return g.plans.offload_optimizer * (moved + owned / per_accelerator)


@formula("s", "bitsandbytes")
def paging_s(paged_bytes: Array, free_bytes: Array, link_bytes_per_s: float) -> Array:
    """Paged optimizer states that the rest of a step leaves no room for go out and back by PCIe."""
    return 2.0 * np.clip(paged_bytes - free_bytes, 0.0, paged_bytes) / link_bytes_per_s


def activation_offload_s(s: CostContext, g: KeyedPlans, forward: Array, backward: Array) -> Array:
    """Saved tensors to the host in forward and back in backward, beyond what compute hides."""
    plans = g.plans
    if not any_of(plans.offload_activations):
        return 0.0
    link = s.nodes.host_link_bytes_per_s
    assert link is not None
    at_layer, at_stage = g.layers.spread, g.stages.spread
    table, one_input = g.table, at_layer(g.bytes.layer_input)
    of_layer = [at_layer(layer.saved) for layer in g.bytes.layers]
    saved = max_of(
        sum_of(
            at_stage(layers[slot] - redone[slot]) * moved + at_stage(inputs[slot]) * one_input
            for layers, redone, inputs, moved in zip(
                table.layers, table.recomputed, table.inputs, of_layer, strict=True
            )
        )
        * g.offloaded_share(slot)
        for slot in range(len(table.stage))
    )
    transfer = saved / link
    shown = maximum(transfer - forward, 0.0) + maximum(transfer - backward, 0.0)
    exposed: Array = g.micro_batches * shown
    return exposed
