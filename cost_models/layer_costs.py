"""Seconds of one layer, of the embedding and of the head, per micro-batch and rank.

They depend on few plan fields, so they are computed once per distinct key and gathered by the
composer (estimate.py).  Forward and backward are kernels only; collectives stand beside them
with the part that nothing hides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cost_models import communication as traffic
from cost_models.activation_memory import ACTIVATION_BYTES
from cost_models.fitted import Fitted
from cost_models.kernels import attention_s, gemm_flop, gemm_s, memory_pass_s
from cost_models.layer_kernels import embedding_kernels, head_kernels, layer_kernels
from cost_models.layers import (
    Dims,
    FlashAttention,
    Gemm,
    Kernel,
    Pass,
    dims,
    routed_tokens,
)
from cost_models.network import Fabric, collective_s, send_s
from cost_models.parameters import padded_vocab_size
from cost_models.placement import Axis, Placement, members, placement
from cost_models.plans import Plans, code
from cost_models.profiles import EfficiencyProfile
from cost_models.sources import Array, formula
from cost_models.spec import AcceleratorSpec, LayerKind, ModelSpec, TrainingSpec

FloatArray = NDArray[np.float64]
FLASH_BACKWARD_FLOP = 2.5  # five GEMMs against two (flash-attention-2)
# Host operations until the device is busy again after it has waited for the host.
SYNC_LAUNCHES = 5.0
# Rate of the fp32 units over the tensor cores: 19.5 / 312 on the A100, 67 / 989 on the H100.
VECTOR_FRACTION = 1 / 16
# Rate of weight-gradient GEMMs over forward ones of equal FLOP (SimuMax @4dcaae51 kernel tables:
# A100 0.681 / 0.717, B200 0.481 / 0.494).
WEIGHT_GRADIENT_FRACTION = 0.96
# FlashAttention-2 over the Triton FlashAttention before it: 1.3 to 1.5 times as fast forward, about
# twice backward (flash-attention-2, section 4.1).
FLASH1_SLOWDOWN = {"forward": 1.4, "backward": 2.0}
# Rate of fp8 GEMMs over those with one scale per tensor.  Rowwise: 1.11 times bf16 where tensorwise
# is 1.73 times (torchao float8 README and issue pytorch/torchtitan#1207); blockwise: 0.452 / 0.503
# of peak on the H100 (aiconfigurator); block scales of Blackwell are applied by its matrix units.
FP8_RECIPE_FRACTION = {
    "tensorwise": 1.0, "delayed": 1.0, "rowwise": 0.64, "blockwise": 0.9, "mxfp8": 1.0,
}  # fmt: skip
# Bytes of one operand: NVFP4 has a one-byte scale for each 16 values (Transformer Engine).
NARROW_BYTES = {"fp8": 1.0, "fp4": 0.5625}


@dataclass(frozen=True)
class BlockSeconds:
    """One layer (or the embedding, or the head) forward and backward: arrays over keys.

    weight_gradient_s is the part of backward_s that a schedule may put off; forward_comm_s the
    part of tp_s, cp_s and ep_s together that belongs to the forward pass.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    weight_gradient_s: FloatArray
    forward_comm_s: FloatArray
    recompute_s: FloatArray
    full_recompute_s: FloatArray
    tp_s: FloatArray
    cp_s: FloatArray
    ep_s: FloatArray


@dataclass(frozen=True)
class KernelTime:
    """One line of the kernel table: seconds and FLOP of one pass over one layer.

    backward_s holds both gradients; weight_gradient_s the weights' share of it.  active: 1 where
    the kernel runs at all.
    """

    name: str
    forward_s: Array
    backward_s: Array
    weight_gradient_s: Array
    forward_flop: Array
    module: str
    active: Array
    redone: Array


@dataclass(frozen=True)
class TensorParallel:
    """Exposed tensor-parallel seconds of one layer; recompute_s: those selective recompute adds."""

    forward_s: Array
    backward_s: Array
    recompute_s: Array


@dataclass(frozen=True)
class Machine:
    """What the seconds of a kernel depend on."""

    accelerator: AcceleratorSpec
    profile: EfficiencyProfile
    fabric: Fabric
    precision: str
    gradient_bytes: float
    fp8_recipe: str
    fitted: Fitted

    @property
    def matrix_flop_per_s(self) -> float:
        """Peak of half-precision matrix work (fp8 training keeps some of it)."""
        half = "fp16" if self.precision == "fp16" else "bf16"
        peak = self.accelerator.peak_flop_per_s(half) or self.accelerator.peak_fp16_flop_per_s
        assert peak is not None
        return peak


@formula("s", "roofline", "aiconfigurator")
def kernel_time(kernel: Kernel, machine: Machine, d: Dims) -> KernelTime:
    """Forward and backward seconds of one kernel (arrays over keys)."""
    bandwidth = machine.accelerator.memory_bytes_per_s
    profile = machine.profile

    def memory_s(moved_bytes: Array) -> Array:
        return memory_pass_s(moved_bytes, bandwidth, profile.memory, profile.memory_floor_s)

    if isinstance(kernel, Pass):
        forward, backward = memory_s(kernel.forward_bytes), memory_s(kernel.backward_bytes)
        return _time(kernel, forward, backward, 0.0, 0.0)
    if isinstance(kernel, FlashAttention):
        forward, backward = _attention_time(kernel, machine)
        return _time(kernel, forward, backward, 0.0, kernel.forward_flop)
    return _gemm_time(kernel, machine, d, memory_s)


def _attention_time(kernel: FlashAttention, machine: Machine) -> tuple[Array, Array]:
    profile = machine.profile

    def seconds(version: str, name: str, share: float) -> Array:
        return attention_s(
            share * kernel.forward_flop,
            kernel.span,
            kernel.head_dim,
            machine.matrix_flop_per_s,
            profile.attention[(version, name, True)],
            profile.memory_floor_s,
        )

    def both(name: str, share: float) -> Array:
        newest = seconds("flash", name, share)
        if not np.any(kernel.version2) and not np.any(kernel.version1):
            return newest
        own = ("flash2", name, True) in profile.attention
        second = seconds("flash2", name, share) if own else newest
        first = second * FLASH1_SLOWDOWN[name]
        return np.where(kernel.version1 > 0, first, np.where(kernel.version2 > 0, second, newest))

    return both("forward", 1.0), both("backward", FLASH_BACKWARD_FLOP)


def _gemm_time(
    kernel: Gemm, machine: Machine, d: Dims, memory_s: Callable[[Array], Array]
) -> KernelTime:
    m, n, k, groups = kernel.m, kernel.n, kernel.k, kernel.groups
    narrow = machine.precision in NARROW_BYTES and kernel.fp8
    half = "fp16" if machine.precision == "fp16" else "bf16"
    precision = machine.precision if narrow else half
    peak = machine.matrix_flop_per_s
    if narrow:
        own = machine.accelerator.peak_flop_per_s(precision)
        assert own is not None
        peak = own * (FP8_RECIPE_FRACTION[machine.fp8_recipe] if precision == "fp8" else 1.0)
    peak *= machine.fitted.sustained_fraction(machine.profile.family)
    efficiency = machine.profile.gemm[precision]
    element = NARROW_BYTES[precision] if narrow else 2.0

    one = (1.0, 1.0, WEIGHT_GRADIENT_FRACTION)
    fractions = machine.profile.grouped_gemm if kernel.grouped else one
    if not kernel.tensor_cores:
        fractions = (VECTOR_FRACTION,) * 3

    def seconds(which: int, a: Array, b: Array, c: Array, output_bytes: Array = 2.0) -> Array:
        return gemm_s(
            a, b, c, peak * fractions[which], machine.accelerator.memory_bytes_per_s, efficiency, element,
            output_bytes, groups,
        )  # fmt: skip

    forward = seconds(0, m, n, k)
    # Transformer Engine adds the weight gradient to the fp32 accumulation buffer in place (read and
    # write); other runtimes write it in half precision and add it in a pass of its own.
    fused = kernel.weights * (1.0 - d.early) * (1.0 - d.gathered_input)
    last = seconds(2, k, n, m, 2.0 + (2.0 * machine.gradient_bytes - 2.0) * fused)
    if kernel.weights:
        last = last + memory_s(d.accumulate_bytes * k * n * groups)
    backward = seconds(1, m, k, n) + last
    if narrow:
        # Transformer Engine reads 2 and writes the value and its transpose, one byte each.  torchao
        # reads once more for the largest value, writes the transpose in a pass of its own, and
        # casts the saved input again for the weight gradient.
        shard = d.sharded_tokens / d.tokens
        inputs = m * k * groups * (shard if kernel.gathered_input else 1.0)
        gradients = m * n * groups * (shard if kernel.scattered_output else 1.0)
        torch = d.gathered_input
        forward = forward + memory_s((4.0 + torch) * inputs)
        backward = backward + memory_s((4.0 + 4.0 * torch) * gradients + 3.0 * torch * inputs)
    of_weights = last if kernel.weights else 0.0
    return _time(kernel, forward, backward, of_weights, gemm_flop(m, n, k) * groups)


def _time(
    kernel: Kernel, forward: Array, backward: Array, weight_gradient: Array, flop: Array
) -> KernelTime:
    on = kernel.active
    return KernelTime(
        kernel.name, forward * on, backward * on, weight_gradient * on, flop * on, kernel.module, on,
        kernel.redone,
    )  # fmt: skip


def kernel_times(kernels: Iterable[Kernel], machine: Machine, d: Dims) -> tuple[KernelTime, ...]:
    """Times of the kernels that run for at least one key."""
    return tuple(kernel_time(k, machine, d) for k in kernels if np.any(k.active))


@formula("s", "derived")
def launch_bound_s(kernels_s: Array, launches: Array, launch_s: float) -> Array:
    """Seconds of a pass: its kernels, or the host launching them where they are shorter."""
    return np.maximum(kernels_s, launches * launch_s)


@dataclass(frozen=True)
class MicroBatchSeconds:
    """The kinds of layers and the two ends, by key."""

    layers: dict[LayerKind, BlockSeconds]
    embedding: BlockSeconds
    head: BlockSeconds


def micro_batch_seconds(
    model: ModelSpec, training: TrainingSpec, machine: Machine, plans: Plans
) -> MicroBatchSeconds:
    """Seconds per key; `plans` holds one row per key."""
    d = dims(model, training, plans)
    network = _Collectives(model, plans, d, placement(plans), machine)
    size = (len(plans),)
    layers = {
        kind: _layer(model, kind, d, network, machine, size)
        for kind in sorted(set(model.layer_kinds))
    }
    vocab = padded_vocab_size(float(model.vocab_size), d.tp)
    return MicroBatchSeconds(
        layers=layers,
        embedding=_end(embedding_kernels(model, d), network.embedding(), machine, d, size),
        head=_end(head_kernels(model, d, vocab), network.head(), machine, d, size),
    )


def _full(values: Array, size: tuple[int, ...]) -> FloatArray:
    if isinstance(values, np.ndarray) and values.shape == size:
        return values
    return np.full(size, values, dtype=np.float64)


def _layer(
    model: ModelSpec,
    kind: LayerKind,
    d: Dims,
    network: _Collectives,
    machine: Machine,
    size: tuple[int, ...],
) -> BlockSeconds:
    times = kernel_times(layer_kernels(model, kind, d), machine, d)
    forward, backward = _passes(times, machine, d)
    operators = d.recomputed("op")
    again = sum(
        t.forward_s * np.maximum(d.recomputed(t.module), operators * t.redone) for t in times
    )
    core = [t for t in times if t.module == "core_attn"]
    tp = network.tensor_parallel(kind, times)
    cp_forward, cp_backward = network.context_parallel(
        sum(t.forward_s for t in core), sum(t.backward_s for t in core)
    )
    ep_forward, ep_backward = network.expert_parallel(kind, forward + backward)
    again = again + tp.recompute_s + ep_forward * d.recomputed("moe")
    return BlockSeconds(
        forward_s=_full(forward, size),
        backward_s=_full(backward, size),
        weight_gradient_s=_full(np.minimum(_weights(times), backward), size),
        forward_comm_s=_full(tp.forward_s + cp_forward + ep_forward, size),
        recompute_s=_full(again, size),
        full_recompute_s=_full(forward + tp.forward_s + cp_forward + ep_forward, size),
        tp_s=_full(tp.forward_s + tp.backward_s, size),
        cp_s=_full(cp_forward + cp_backward, size),
        ep_s=_full(ep_forward + ep_backward, size),
    )


def _end(
    kernels: tuple[Kernel, ...],
    collectives_s: Array,
    machine: Machine,
    d: Dims,
    size: tuple[int, ...],
) -> BlockSeconds:
    times = kernel_times(kernels, machine, d)
    forward, backward = _passes(times, machine, d)
    zero = np.zeros(size)
    return BlockSeconds(
        forward_s=_full(forward, size),
        backward_s=_full(backward, size),
        weight_gradient_s=_full(np.minimum(_weights(times), backward), size),
        forward_comm_s=_full(collectives_s / 2.0, size),
        recompute_s=zero,
        full_recompute_s=zero,
        tp_s=_full(collectives_s, size),
        cp_s=zero,
        ep_s=zero,
    )


def _weights(times: tuple[KernelTime, ...]) -> Array:
    """Seconds of the weight gradients of a block."""
    return sum(t.weight_gradient_s for t in times)


def _passes(times: tuple[KernelTime, ...], machine: Machine, d: Dims) -> tuple[Array, Array]:
    """Forward and backward seconds of a block; backward launches about twice the kernels."""
    launch = machine.fitted.host_launch_s
    launches = sum(np.ceil(t.active) for t in times) * (1.0 - 0.5 * d.compiled)
    # Routing hands the host the counts it sizes the next buffers with: the device waits for it.
    waits = SYNC_LAUNCHES * launch if any(t.name == "router" for t in times) else 0.0
    return (
        launch_bound_s(sum(t.forward_s for t in times), launches, launch) + waits,
        launch_bound_s(sum(t.backward_s for t in times), 2.0 * launches, launch),
    )


class _Collectives:
    """Exposed seconds of the collectives inside a layer, forward and backward."""

    def __init__(
        self, model: ModelSpec, plans: Plans, d: Dims, places: Placement, machine: Machine
    ) -> None:
        self._model, self._plans, self._d = model, plans, d
        self._places, self._fabric = places, machine.fabric
        self._fitted = machine.fitted
        self._bandwidth = machine.accelerator.memory_bytes_per_s
        self._memory = machine.profile.memory
        whole = machine.fp8_recipe in ("tensorwise", "delayed")
        self._fp8 = machine.precision == "fp8" and whole
        self._sequence_parallel = plans.sequence_parallel.astype(np.float64)

    def _op(self, op: str, payload_bytes: Array, axis: Axis) -> Array:
        return collective_s(self._fabric, op, payload_bytes, axis)

    def _block(self, width: float) -> tuple[Array, Array]:
        """(all-gather, reduce-scatter) over tp of activations so wide; 0 where not sharded."""
        if not np.any(self._sequence_parallel > 0):
            return 0.0, 0.0
        d, tp = self._d, self._places.tp
        payload = traffic.tensor_parallel_payload_bytes(d.tokens, width, ACTIVATION_BYTES)
        # DTensor shards the second dimension, batch first, so each collective copies its tensor once
        # (torch functional collectives).  What is gathered for an fp8 GEMM is fp8 already, where one
        # scale holds for all of it (Transformer Engine, torchao).
        copy = memory_pass_s(
            2.0 * payload * d.gathered_input * (tp.size > 1), self._bandwidth, self._memory, 0.0
        )
        gather = self._op("all_gather", payload * (0.5 if self._fp8 else 1.0), tp) + copy
        return gather, self._op("reduce_scatter", payload, tp) + copy

    @cached_property
    def _hidden(self) -> tuple[Array, Array]:
        """The collectives of a full activation, as wide as the hidden state."""
        return self._block(float(self._model.hidden_size))

    @cached_property
    def _reduced(self) -> Array:
        """All-reduce over tp of a full activation; 0 where all plans shard the sequence."""
        if np.all(self._sequence_parallel > 0):
            return 0.0
        payload = traffic.tensor_parallel_payload_bytes(
            self._d.tokens, float(self._model.hidden_size), ACTIVATION_BYTES
        )
        return self._op("all_reduce", payload, self._places.tp)

    def tensor_parallel(self, kind: LayerKind, times: tuple[KernelTime, ...]) -> TensorParallel:
        """Attention and MLP each gather and scatter (or all-reduce) once forward, once backward.

        A mixture-of-experts block gathers over etp around its experts instead; MLA gathers its
        latents, not the hidden state.  Backward (megatron-core): the all-reduce or scatter of a
        block's input gradient runs under the weight gradient of its column-parallel GEMM, the
        second gather of a sharded input under the input gradient, which takes about as long; the
        gather of the output gradient hides under nothing.  Megatron-LM of 2021, DeepSpeed and
        DTensor run their collectives one after the other with the kernels.  Per-operator recompute
        of torch gathers the inputs again (its list of kept results has reduce-scatters only).
        """
        d, plans = self._d, self._plans
        exposed = self._fitted.tp_overlap_exposed
        shown = np.where(plans.overlap_tp > 0, exposed, 1.0)
        gather, scatter = self._hidden
        mla = self._model.mla
        entering = self._hidden
        if mla is not None and mla.q_lora_rank is not None:
            latent = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim
            entering = self._block(float(latent))

        def block(enter: tuple[Array, Array], columns: tuple[str, ...]) -> tuple[Array, Array]:
            under = sum(t.weight_gradient_s for t in times if t.name in columns) * (1.0 - d.serial)
            forward = np.where(
                self._sequence_parallel > 0, (enter[0] + scatter) * shown, self._reduced
            )
            again = np.maximum(enter[0] - under, 0.0) * (1.0 - d.gathered_input)
            sharded = gather * shown + np.maximum(enter[1] * shown - under, 0.0) + again
            whole = np.maximum(self._reduced - under, 0.0)
            hidden = self._fitted.contention * np.minimum(under, enter[1] * shown)
            sharded = sharded + hidden
            whole = whole + self._fitted.contention * np.minimum(under, self._reduced)
            return forward, np.where(self._sequence_parallel > 0, sharded, whole)

        attention = block(entering, ("qkv", "mla q up", "mla kv up"))
        mlp: tuple[Array, Array] = (0.0, 0.0)
        moe = self._model.moe
        routed = kind == "moe" and moe is not None
        has_dense = not routed or (moe is not None and moe.shared_expert_ffn_hidden_size > 0)
        if has_dense and not self._model.parallel_residual:
            mlp = block(self._hidden, ("fc1", "shared fc1"))
        experts: Array = 0.0
        if routed:
            payload = routed_tokens(self._model, d) * self._model.hidden_size * ACTIVATION_BYTES
            experts = self._op("all_gather", payload, self._places.etp) + self._op(
                "reduce_scatter", payload, self._places.etp
            )
        again = mlp[0] * d.recomputed("shared_experts" if routed else "mlp")
        gathers = entering[0] + (0.0 if self._model.parallel_residual else gather) * has_dense
        again = again + gathers * shown * self._sequence_parallel * d.recomputed("op")
        return TensorParallel(
            forward_s=attention[0] + mlp[0] + experts,
            backward_s=attention[1] + mlp[1] + experts,
            recompute_s=again + experts * d.recomputed("moe"),
        )

    def context_parallel(
        self, attention_forward_s: Array, attention_backward_s: Array
    ) -> tuple[Array, Array]:
        """Keys and values exchanged around attention; a ring hides under its own chunks."""
        d, plans = self._d, self._plans
        if np.all(plans.cp == 1):
            return 0.0, 0.0
        mla = self._model.mla
        head_dim = float(self._model.head_dim)
        kv_heads = d.kv_heads
        if mla is not None:
            head_dim = (mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim) / 2.0
            kv_heads = d.heads
        chunk = traffic.context_parallel_chunk_bytes(d.tokens, kv_heads, head_dim, ACTIVATION_BYTES)
        hops = d.cp - 1.0
        hop = send_s(self._fabric, chunk, self._places.cp)
        ring = (
            np.maximum(hops * hop - attention_forward_s * hops / d.cp, 0.0),
            np.maximum(2.0 * hops * hop - attention_backward_s * hops / d.cp, 0.0),
        )
        gathered = chunk * d.cp
        gather = self._op("all_gather", gathered, self._places.cp)
        scatter = self._op("reduce_scatter", gathered, self._places.cp)
        sent = traffic.ulysses_payload_bytes(
            d.tokens, d.heads, kv_heads, head_dim, ACTIVATION_BYTES
        )
        exchange = self._op("all_to_all", sent, self._places.cp)
        kinds = [plans.cp_kind == code("cp_kind", kind) for kind in ("p2p", "all_gather", "a2a")]
        forward = np.select(kinds, [ring[0], gather, exchange])
        backward = np.select(kinds, [ring[1], gather + scatter, exchange])
        return forward, backward

    def expert_parallel(self, kind: LayerKind, kernels_s: Array) -> tuple[Array, Array]:
        """Dispatch and combine, each once forward and once backward.

        They hide under the kernels of another micro-batch where the plan overlaps them (Megatron's
        1F1B overlap, DualPipe), else under nothing.
        """
        moe = self._model.moe
        if kind != "moe" or moe is None or np.all(self._plans.ep == 1):
            return 0.0, 0.0
        d, plans, axis = self._d, self._plans, self._places.ep
        hidden = float(self._model.hidden_size)
        load = routed_tokens(self._model, d) / (d.sharded_tokens * moe.top_k * d.etp)
        sent = traffic.expert_dispatch_bytes(
            d.sharded_tokens * load, float(moe.top_k), hidden, ACTIVATION_BYTES
        )
        exchange = 2.0 * self._op("all_to_all", sent, axis)
        every = d.sharded_tokens * hidden * ACTIVATION_BYTES * d.ep
        gather = self._op("all_gather", every, axis) + self._op("reduce_scatter", every, axis)
        inner = members(axis, self._fabric.tiers[0].domain_accelerators)
        domains = np.maximum(axis.size / inner, 1.0)
        copies = traffic.distinct_domains(float(moe.top_k), domains)
        if moe.top_k_groups is not None:  # group-limited routing: groups stand on domains
            copies = np.minimum(copies, moe.top_k_groups)

        def sparse(copies: Array) -> Array:
            once = traffic.expert_dispatch_bytes(
                d.sharded_tokens * load, np.minimum(copies, moe.top_k), hidden, ACTIVATION_BYTES
            )
            fraction = self._fabric.profile.network_fraction
            return collective_s(self._fabric, "all_to_all", once, axis, fraction)

        # One copy per node over the NICs, one per rank inside.
        ranks = traffic.distinct_domains(float(moe.top_k), d.ep)
        deduplicated = 2.0 * np.where(domains > 1, sparse(copies), sparse(ranks))
        names = ("alltoall", "allgather", "deepep")
        kinds = [plans.moe_dispatcher == code("moe_dispatcher", name) for name in names]
        forward = np.select(kinds, [exchange, gather, np.minimum(exchange, deduplicated)])
        hidden = np.minimum(forward, kernels_s / 2.0) * plans.overlap_ep
        shown = forward - hidden * (1.0 - self._fitted.contention)
        return shown, shown

    def embedding(self) -> Array:
        """The vocabulary-parallel look-up sums (or scatters) once; backward gathers."""
        return np.where(self._sequence_parallel > 0, sum(self._hidden), self._reduced)

    def head(self) -> Array:
        """Gather of the input and scatter of its gradient, and three fp32 values per token."""
        values = self._op("all_reduce", 4.0 * self._d.tokens, self._places.tp)
        return self.embedding() + 3.0 * values
