"""Exposed seconds of the collectives inside one layer, forward and backward, per micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models import communication as traffic
from cost_models.kernel_times import WHOLE_TENSOR_RECIPES, KernelTime, Machine
from cost_models.kernels import memory_pass_s
from cost_models.layers import Dims, routed_tokens
from cost_models.placement import Axis, Placement, members
from cost_models.plans import Plans, code
from cost_models.sources import Array
from cost_models.spec import LayerKind, ModelSpec


@dataclass(frozen=True)
class TensorParallel:
    """Exposed tensor-parallel seconds of one layer; recompute_s: those selective recompute adds."""

    forward_s: Array
    backward_s: Array
    recompute_s: Array


@dataclass(frozen=True)
class _Sum:
    forward_s: Array
    backward_s: Array
    weight_gradient_s: Array


def _sum(times: tuple[KernelTime, ...], names: tuple[str, ...]) -> _Sum:
    """Seconds of the kernels of these names."""
    chosen = [t for t in times if t.name in names]
    return _Sum(
        sum(t.forward_s for t in chosen),
        sum(t.backward_s for t in chosen),
        sum(t.weight_gradient_s for t in chosen),
    )


class Collectives:
    """Exposed seconds of the collectives inside a layer, forward and backward."""

    def __init__(
        self, model: ModelSpec, plans: Plans, d: Dims, places: Placement, machine: Machine
    ) -> None:
        self._model, self._plans, self._d = model, plans, d
        self._places, self._fabric = places, machine.fabric
        self._fitted = machine.fitted
        self._bandwidth = machine.accelerator.memory_bytes_per_s
        self._memory = machine.profile.memory
        whole = machine.fp8_recipe in WHOLE_TENSOR_RECIPES
        self._fp8 = machine.precision == "fp8" and whole
        self._sequence_parallel = plans.sequence_parallel.astype(np.float64)

    def _op(self, op: str, payload_bytes: Array, axis: Axis) -> Array:
        return self._fabric.transfer(op, payload_bytes, axis)

    def _block(self, width: float) -> tuple[Array, Array]:
        """(all-gather, reduce-scatter) over tp of activations so wide; 0 where not sharded."""
        if not np.any(self._sequence_parallel > 0):
            return 0.0, 0.0
        d, tp = self._d, self._places.tp
        payload = traffic.tensor_parallel_payload_bytes(d.tokens, width, d.activation_bytes)
        # DTensor shards the second dimension, batch first, so each collective copies its tensor
        # once (torch functional collectives).  What is gathered for an fp8 GEMM is fp8 already,
        # where one scale holds for all of it (Transformer Engine, torchao).
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
            self._d.tokens, float(self._model.hidden_size), self._d.activation_bytes
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
        With overlap_tp a collective is cut into chunks under the GEMM beside it: all but a share
        of it hides, and no more than that GEMM takes.
        """
        d = self._d
        gather, scatter = self._hidden
        mla = self._model.mla
        entering = self._hidden
        if mla is not None and mla.q_lora_rank is not None:
            latent = mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim
            entering = self._block(float(latent))

        def block(
            enter: tuple[Array, Array], columns: tuple[str, ...], rows: tuple[str, ...]
        ) -> tuple[Array, Array, Array]:
            """(forward, backward, gathering the input again) around one pair of GEMMs."""
            into = _sum(times, columns)
            out = _sum(times, rows)
            enters = self._chunked(enter[0], into.forward_s)
            forward = enters + self._chunked(scatter, out.forward_s)
            leaving = self._chunked(gather, out.backward_s - out.weight_gradient_s)
            under = into.weight_gradient_s * (1.0 - d.serial)
            again = self._beside(enter[0], under) * (1.0 - d.gathered_input)
            chunked = self._chunked(enter[1], into.backward_s - into.weight_gradient_s)
            sharded = leaving + self._beside(chunked, under) + again
            whole = self._beside(self._reduced, under)
            shards = self._sequence_parallel > 0
            return (
                np.where(shards, forward, self._reduced),
                np.where(shards, sharded, whole),
                np.where(shards, enters, 0.0),
            )

        attention = block(entering, ("qkv", "mla q up", "mla kv up"), ("attention out",))
        mlp: tuple[Array, Array, Array] = (0.0, 0.0, 0.0)
        moe = self._model.moe
        routed = kind == "moe" and moe is not None
        has_dense = not routed or (moe is not None and moe.shared_expert_ffn_hidden_size > 0)
        if has_dense and not self._model.parallel_residual:
            mlp = block(self._hidden, ("fc1", "shared fc1"), ("fc2", "shared fc2"))
        experts: Array = 0.0
        if routed:
            payload = routed_tokens(self._model, d) * self._model.hidden_size * d.activation_bytes
            experts = self._op("all_gather", payload, self._places.etp) + self._op(
                "reduce_scatter", payload, self._places.etp
            )
        again = mlp[0] * d.recomputed("shared_experts" if routed else "mlp")
        again = again + (attention[2] + mlp[2]) * d.recomputed("op")
        return TensorParallel(
            forward_s=attention[0] + mlp[0] + experts,
            backward_s=attention[1] + mlp[1] + experts,
            recompute_s=again + experts * d.recomputed("moe"),
        )

    def _chunked(self, comm_s: Array, gemm_s: Array) -> Array:
        """What shows of a collective cut into chunks under a GEMM, where the plan does that."""
        share = 1.0 - self._fitted.tp_overlap_exposed
        hidden = np.minimum(comm_s * share, gemm_s) * (self._plans.overlap_tp > 0)
        return comm_s - hidden * (1.0 - self._fitted.contention)

    def _beside(self, comm_s: Array, kernel_s: Array) -> Array:
        """What shows of a collective beside a kernel, and what it costs that kernel."""
        hidden = np.minimum(comm_s, kernel_s)
        return comm_s - hidden * (1.0 - self._fitted.contention)

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
        chunk = traffic.context_parallel_chunk_bytes(
            d.tokens, kv_heads, head_dim, d.activation_bytes
        )
        hops = d.cp - 1.0
        hop = self._op("send", chunk, self._places.cp)
        merged = self._merging_s(head_dim, kv_heads)
        ring = (
            np.maximum(hops * hop - attention_forward_s * hops / d.cp, 0.0) + merged[0],
            np.maximum(2.0 * hops * hop - attention_backward_s * hops / d.cp, 0.0) + merged[1],
        )
        gathered = chunk * d.cp
        gather = self._op("all_gather", gathered, self._places.cp)
        scatter = self._op("reduce_scatter", gathered, self._places.cp)
        around = self._torch_ring(chunk, attention_forward_s, attention_backward_s)
        sent = traffic.ulysses_payload_bytes(
            d.tokens, d.heads, kv_heads, head_dim, d.activation_bytes
        )
        exchange = self._op("all_to_all", sent, self._places.cp)
        kinds = [plans.cp_kind == code("cp_kind", kind) for kind in ("p2p", "all_gather", "a2a")]
        torch = d.gathered_input > 0
        forward = np.where(torch, around[0] + merged[0], gather)
        backward = np.where(torch, around[1] + merged[1], gather + scatter)
        return (
            np.select(kinds, [ring[0], forward, exchange]),
            np.select(kinds, [ring[1], backward, exchange]),
        )

    def _torch_ring(
        self, chunk_bytes: Array, forward_s: Array, backward_s: Array
    ) -> tuple[Array, Array]:
        """What shows, forward and backward, where torch gathers all keys and values at once.

        The gather runs under the first of cp chunks of attention; then attention goes chunk by
        chunk all the same.  Backward gathers again, and the gradients of keys and values go
        around in fp32, each hop under the next chunk (torch _context_parallel/_attention.py).
        Until 2026 torchtitan repeated keys and values for every head of the queries before
        (its commit ff0829c1).
        """
        d = self._d
        repeated = chunk_bytes * d.heads / d.kv_heads
        gather = self._op("all_gather", repeated * d.cp, self._places.cp)
        hop = self._op("send", 2.0 * repeated, self._places.cp)
        gradients = self._beside(hop, backward_s / d.cp) * (d.cp - 1.0) + hop
        return (
            self._beside(gather, forward_s / d.cp),
            self._beside(gather, backward_s / d.cp) + gradients,
        )

    def _merging_s(self, head_dim: float, kv_heads: Array) -> tuple[Array, Array]:
        """Seconds of adding up what each chunk of a ring contributes, forward and backward.

        Per step Transformer Engine rescales the output in fp32 and adds gradients in half
        precision; torch merges in fp32, operator by operator (its ring attention).
        """
        d = self._d
        torch = d.gathered_input
        query = d.tokens * d.heads * head_dim
        keys = 2.0 * d.tokens * kv_heads * head_dim
        forward = (10.0 + 28.0 * torch) * query
        backward = (6.0 + 12.0 * torch) * (query + keys + torch * (2.0 * query - keys))
        return tuple(
            (d.cp - 1.0) * memory_pass_s(moved, self._bandwidth, self._memory, 0.0)
            for moved in (forward, backward)
        )  # type: ignore[return-value]

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
            d.sharded_tokens * load, float(moe.top_k), hidden, d.activation_bytes
        )
        exchange = 2.0 * self._op("all_to_all", sent, axis)
        every = d.sharded_tokens * hidden * d.activation_bytes * d.ep
        gather = self._op("all_gather", every, axis) + self._op("reduce_scatter", every, axis)
        inner = members(axis, self._fabric.tiers[0].domain_accelerators)
        domains = np.maximum(axis.size / inner, 1.0)
        copies = traffic.distinct_domains(float(moe.top_k), domains)
        if moe.top_k_groups is not None:  # group-limited routing: groups stand on domains
            copies = np.minimum(copies, moe.top_k_groups)

        def sparse(copies: Array) -> Array:
            once = traffic.expert_dispatch_bytes(
                d.sharded_tokens * load, np.minimum(copies, moe.top_k), hidden, d.activation_bytes
            )
            fraction = self._fabric.profile.network_fraction
            return self._fabric.transfer("all_to_all", once, axis, fraction)

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
