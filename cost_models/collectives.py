"""Exposed seconds of the communication inside a block, forward and backward, per micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models import communication as traffic
from cost_models.arrays import all_of, any_of, maximum, minimum, sum_of, where
from cost_models.blocks.records import (
    Boundary,
    Collective,
    Dispatch,
    Kernel,
    KeyValues,
    Record,
    TensorParallel,
)
from cost_models.dims import DIMS_FIELDS, Dims
from cost_models.kernel_times import WHOLE_TENSOR_RECIPES, KernelTime, Machine
from cost_models.kernels import memory_pass_s
from cost_models.placement import Axis, Placement, members
from cost_models.plans import Plans, code
from cost_models.sources import Array
from cost_models.spec import StackSpec

# The plan fields on which a block's kernels and communication depend.
COMMUNICATION_FIELDS = (*DIMS_FIELDS, "overlap_tp", "overlap_ep")


@dataclass(frozen=True)
class Exposed:
    """Exposed seconds; recompute_s: those that selective recompute adds."""

    forward_s: Array = 0.0
    backward_s: Array = 0.0
    recompute_s: Array = 0.0

    def __add__(self, other: Exposed) -> Exposed:
        return Exposed(
            self.forward_s + other.forward_s,
            self.backward_s + other.backward_s,
            self.recompute_s + other.recompute_s,
        )

    @property
    def both_s(self) -> Array:
        return self.forward_s + self.backward_s


class Collectives:
    """Prices the communication of a block, given the times of its kernels."""

    def __init__(self, model: StackSpec, plans: Plans, d: Dims, machine: Machine) -> None:
        self._plans, self._d = plans, d
        self._placement, self._fabric = Placement(plans), machine.fabric
        self._fitted = machine.fitted
        self._bandwidth = machine.accelerator.memory_bytes_per_s
        self._memory = machine.profile.memory
        whole_tensor = machine.fp8_recipe in WHOLE_TENSOR_RECIPES
        self._fp8 = machine.precision == "fp8" and whole_tensor
        self._sequence_parallel = plans.sequence_parallel > 0
        self._hidden_size = float(model.hidden_size)
        # Before Blackwell one queue of the GPU makes tensor-parallel collectives start before the
        # kernels that hide them, but the exchange of tokens wants several: Megatron-LM advises
        # against both, "which depends on which parallelization you want to prioritize".
        queues = machine.accelerator.before_blackwell * plans.overlap_ep * (plans.ep > 1)
        self._in_order = 1.0 - queues
        self._sharded: dict[float, tuple[Array, Array]] = {}

    def of(
        self, records: Iterable[Record], times: Mapping[Kernel, KernelTime]
    ) -> tuple[Exposed, Exposed, tuple[Dispatch, ...]]:
        """(tensor-parallel, context-parallel) seconds, and the communication of experts."""
        tp, cp = Exposed(), Exposed()
        sent: list[Dispatch] = []
        for record in records:
            match record:
                case TensorParallel():
                    tp = tp + self._tensor_parallel(record, times)
                case Boundary():
                    tp = tp + self._boundary()
                case Collective(axis="cp"):
                    cp = cp + self._collective(record)
                case Collective():
                    tp = tp + self._collective(record)
                case KeyValues():
                    cp = cp + self._key_values(record, times)
                case Dispatch():
                    sent.append(record)
        return tp, cp, tuple(sent)

    def _op(self, op: str, payload_bytes: Array, axis: Axis) -> Array:
        return self._fabric.transfer(op, payload_bytes, axis)

    def _scattered(self, width: float) -> tuple[Array, Array]:
        """(all-gather, reduce-scatter) over tp of activations so wide; 0 where not sharded."""
        if not any_of(self._sequence_parallel):
            return 0.0, 0.0
        if width not in self._sharded:
            d, tp = self._d, self._placement.tp
            payload = traffic.tensor_parallel_payload_bytes(d.tokens, width, d.activation_bytes)
            # What is gathered for an fp8 GEMM is fp8 already, where one scale holds for all of it
            # (Transformer Engine, torchao).
            copied = 2.0 * payload * d.runtime.copies_around_collectives * (tp.size > 1)
            copy = memory_pass_s(copied, self._bandwidth, self._memory, 0.0)
            gather = self._op("all_gather", payload * (0.5 if self._fp8 else 1.0), tp) + copy
            self._sharded[width] = gather, self._op("reduce_scatter", payload, tp) + copy
        return self._sharded[width]

    @cached_property
    def _all_reduced(self) -> Array:
        """All-reduce over tp of a full activation; 0 where all plans shard the sequence."""
        if all_of(self._sequence_parallel):
            return 0.0
        d = self._d
        payload = traffic.tensor_parallel_payload_bytes(
            d.tokens, self._hidden_size, d.activation_bytes
        )
        return self._op("all_reduce", payload, self._placement.tp)

    def _tensor_parallel(self, pair: TensorParallel, times: Mapping[Kernel, KernelTime]) -> Exposed:
        """Gather and scatter (or all-reduce) once forward, once backward.

        Backward (megatron-core): the all-reduce or scatter of the input gradient runs under the
        weight gradient of the column-parallel GEMM, the second gather of a sharded input under the
        input gradient, which takes about as long; the gather of the output gradient hides under
        nothing.  Some runtimes run their collectives one after the other with the kernels.
        Per-operator recompute of torch gathers the inputs again (its list of kept results has
        reduce-scatters only), as does recompute that keeps products only.  With overlap_tp a
        collective is cut into chunks under the GEMM beside it: all but a share of it hides, and no
        more than that GEMM takes.
        """
        d = self._d
        into = [times[kernel] for kernel in pair.columns]
        out = [times[kernel] for kernel in pair.rows]
        weights_s = sum_of(t.weight_gradient_s for t in into)
        asynchronous = self._plans.overlap_tp * d.runtime.overlaps_own_shard
        under = weights_s * (1.0 - d.runtime.serial_collectives * (1.0 - asynchronous))
        under = under * self._in_order
        gather, scatter = self._scattered(self._hidden_size)
        enter, leave = self._scattered(pair.width)
        enters = self._chunked(enter, sum_of(t.forward_s for t in into))
        forward = enters + self._chunked(scatter, sum_of(t.forward_s for t in out), gathers=False)
        inputs_s = sum_of(t.backward_s - t.weight_gradient_s for t in out)
        regather = self._overlapped(enter, under) * (1.0 - d.runtime.keeps_gathered_input)
        regather = regather * any(kernel.trained for kernel in pair.columns)
        before_s = sum_of(t.backward_s for t in into) - weights_s
        leaves = self._chunked(leave, before_s, gathers=False)
        backward = self._chunked(gather, inputs_s) + self._overlapped(leaves, under) + regather
        summed, shards = self._all_reduced, self._sequence_parallel
        forward = where(shards, forward, summed)
        gathered = where(shards, enters, 0.0)
        return Exposed(
            forward,
            where(shards, backward, self._overlapped(summed, under)),
            maximum(
                forward * d.recomputed(pair.module),
                gathered * maximum(d.by_operator, d.products_only),
            ),
        )

    def _boundary(self) -> Exposed:
        """Half of it counts for each pass."""
        gather, scatter = self._scattered(self._hidden_size)
        half = where(self._sequence_parallel, gather + scatter, self._all_reduced) / 2.0
        return Exposed(half, half)

    def _collective(self, record: Collective) -> Exposed:
        axis = getattr(self._placement, record.axis)
        seconds = sum_of(self._op(op, record.payload_bytes, axis) for op in record.operations)
        seconds = seconds * record.active
        each = seconds * (record.times if record.mirrored else record.times / 2.0)
        return Exposed(each, each, each * self._d.recomputed(record.module))

    def _chunked(self, comm_s: Array, gemm_s: Array, gathers: bool = True) -> Array:
        """The exposed time of a collective in chunks under a GEMM, if the plan overlaps them."""
        share, own_shard = 1.0 - self._fitted.tp_overlap_exposed, self._d.runtime.overlaps_own_shard
        chunks_s = minimum(comm_s * share, gemm_s)
        shard_s = minimum(comm_s, gemm_s / self._placement.tp.size) if gathers else 0.0
        hidden = (chunks_s + own_shard * (shard_s - chunks_s)) * (self._plans.overlap_tp > 0)
        hidden = hidden * self._in_order
        return comm_s - hidden * (1.0 - self._fitted.contention)

    def _overlapped(self, comm_s: Array, kernel_s: Array) -> Array:
        """The exposed time of a collective next to a kernel, and the slowdown of that kernel."""
        hidden = minimum(comm_s, kernel_s)
        return comm_s - hidden * (1.0 - self._fitted.contention)

    def _key_values(self, record: KeyValues, times: Mapping[Kernel, KernelTime]) -> Exposed:
        """Communication of keys and values around attention; a ring hides under its own chunks."""
        d, plans, cp = self._d, self._plans, self._placement.cp
        if all_of(plans.cp == 1):
            return Exposed()
        kernels = [times[kernel] for kernel in record.around]
        attention_s = sum_of(t.forward_s for t in kernels), sum_of(t.backward_s for t in kernels)
        chunk = traffic.context_parallel_chunk_bytes(
            d.tokens, record.kv_heads, record.head_dim, d.activation_bytes
        )
        hops = d.cp - 1.0
        hop = self._op("send", chunk, cp)
        merged = self._merging_s(record)
        ring = (
            maximum(hops * hop - attention_s[0] * hops / d.cp, 0.0) + merged[0],
            maximum(2.0 * hops * hop - attention_s[1] * hops / d.cp, 0.0) + merged[1],
        )
        gather = self._op("all_gather", chunk * d.cp, cp)
        scatter = self._op("reduce_scatter", chunk * d.cp, cp)
        around = self._gathered_under_chunks(record, chunk, attention_s)
        sent = traffic.ulysses_payload_bytes(
            d.tokens, record.heads, record.kv_heads, record.head_dim, d.activation_bytes
        )
        exchange = self._op("all_to_all", sent, cp)
        kinds = [plans.cp_kind == code("cp_kind", kind) for kind in ("p2p", "all_gather", "a2a")]
        chunked = np.asarray(d.runtime.gathers_context_under_chunks) > 0
        forward = where(chunked, around[0] + merged[0], gather)
        backward = where(chunked, around[1] + merged[1], gather + scatter)
        return Exposed(
            np.select(kinds, [ring[0], forward, exchange]),
            np.select(kinds, [ring[1], backward, exchange]),
        )

    def _gathered_under_chunks(
        self, record: KeyValues, chunk_bytes: Array, attention_s: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        """Exposed seconds, forward and backward, where torch gathers all keys and values at once.

        The gather runs under the first of cp chunks of attention; then attention goes chunk by
        chunk all the same.  Backward gathers again, and the gradients of keys and values go
        around in fp32, each hop under the next chunk (torch _context_parallel/_attention.py).
        Until 2026 torchtitan repeated keys and values for every head of the queries before
        (its commit ff0829c1).
        """
        d, cp = self._d, self._placement.cp
        repeated = chunk_bytes * record.heads / record.kv_heads
        gather = self._op("all_gather", repeated * d.cp, cp)
        hop = self._op("send", 2.0 * repeated, cp)
        forward_s, backward_s = attention_s
        gradients = self._overlapped(hop, backward_s / d.cp) * (d.cp - 1.0) + hop
        return (
            self._overlapped(gather, forward_s / d.cp),
            self._overlapped(gather, backward_s / d.cp) + gradients,
        )

    def _merging_s(self, record: KeyValues) -> tuple[Array, Array]:
        """Seconds of summing the contributions of the chunks of a ring, forward and backward.

        Per step Transformer Engine rescales the output in fp32 and adds gradients in half
        precision; torch merges in fp32, operator by operator (its ring attention).
        """
        d = self._d
        torch = d.runtime.merges_context_in_fp32
        query = d.tokens * record.heads * record.head_dim
        keys = 2.0 * d.tokens * record.kv_heads * record.head_dim
        forward = (10.0 + 28.0 * torch) * query
        backward = (6.0 + 12.0 * torch) * (query + keys + torch * (2.0 * query - keys))

        def seconds(moved: Array) -> Array:
            return (d.cp - 1.0) * memory_pass_s(moved, self._bandwidth, self._memory, 0.0)

        return seconds(forward), seconds(backward)

    def expert_parallel(self, sent: Iterable[Dispatch], kernels_s: Array) -> tuple[Exposed, Array]:
        """Dispatch and combine, each once forward and once backward, and the part that is hidden.

        They are hidden under the kernels of another micro-batch if the plan overlaps them
        (Megatron's 1F1B overlap, DualPipe), else not at all.
        """
        total = Exposed()
        hides: Array = 0.0
        if all_of(self._plans.ep == 1):
            return total, hides
        for record in sent:
            both = self._dispatch_s(record)
            hidden = minimum(both, kernels_s / 2.0) * self._plans.overlap_ep
            shown = both - hidden * (1.0 - self._fitted.contention)
            total = total + Exposed(shown, shown, shown * self._d.recomputed(record.module))
            hides = hides + 2.0 * (both - shown)
        return total, hides

    def _dispatch_s(self, record: Dispatch) -> Array:
        """Seconds of dispatch and combine in one pass, by the plan's dispatcher."""
        d, plans, axis, fabric = self._d, self._plans, self._placement.ep, self._fabric
        top_k = float(record.top_k)

        def sent(copies: Array) -> Array:
            return traffic.expert_dispatch_bytes(
                record.tokens, copies, record.width, d.activation_bytes
            )

        exchange = 2.0 * self._op("all_to_all", sent(top_k), axis)
        every = d.sharded_tokens * record.width * d.activation_bytes * d.ep
        gather = self._op("all_gather", every, axis) + self._op("reduce_scatter", every, axis)
        inner = members(axis, fabric.tiers[0].domain_accelerators)
        domains = maximum(axis.size / inner, 1.0)

        def reached(places: Array) -> Array:
            if record.groups is not None:
                places = traffic.domains_of_groups(places, *record.groups)
            return traffic.distinct_domains(top_k, places)

        def sparse(copies: Array) -> Array:
            fraction = fabric.profile.network_fraction
            once = sent(minimum(copies, top_k))
            return fabric.transfer("all_to_all", once, axis, fraction)

        # One copy per node over the NICs, one per rank inside.
        deduplicated = 2.0 * where(domains > 1, sparse(reached(domains)), sparse(reached(d.ep)))
        kinds = [
            plans.moe_dispatcher == code("moe_dispatcher", n) for n in ("alltoall", "allgather")
        ]
        return np.select(kinds, [exchange, gather], minimum(exchange, deduplicated))
