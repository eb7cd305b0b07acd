"""Routed experts, with an optional shared expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from cost_models.arrays import any_of
from cost_models.blocks.base import FeedForward
from cost_models.blocks.mlp import SharedExpert
from cost_models.blocks.norm import FP32_BYTES
from cost_models.blocks.records import (
    Collective,
    Dispatch,
    Gemm,
    HostOperations,
    HostWait,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    Weight,
    Working,
)
from cost_models.communication import distinct_domains
from cost_models.sources import Array, formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import MoESpec, StackSpec

# Bandwidth of a row gather relative to a plain pass (SimuMax @4dcaae51, B200: 0.50 of 0.67).
PERMUTE_FRACTION = 0.75
# Kernels that the host launches until the device is busy again after a host synchronisation.
SYNC_LAUNCHES = 5.0
# Operations of the host that are no kernel of the records, in module calls: routing and its loss
# are some 20 calls of torch, counting, sorting and permuting some 25 (a fifth of a module's host
# time each), and either grouped product loops over its experts (Megatron-LM moe_utils.py,
# router.py, token_dispatcher.py; Transformer Engine grouped_linear.py).
HOST_OPERATIONS = 20.0
MODULE = "moe"


@formula("1", "megatron-core")
def busiest_load(moe: MoESpec) -> float:
    """Load of the busiest rank's experts over the mean, capped by the capacity factor."""
    return min(moe.imbalance_factor, moe.capacity_factor or np.inf)


class Experts(FeedForward):
    """Router, dispatch, grouped GEMMs and combine, with the widths in the model's `moe`."""

    sources: ClassVar[tuple[str, ...]] = ("megatron-core", "torch")
    gathers: ClassVar[bool] = False
    kind: Literal["experts"] = "experts"

    @property
    def label(self) -> str:
        return "moe"

    def missing(self, model: StackSpec) -> str:
        return "" if model.moe is not None else "experts needs moe"

    @staticmethod
    def _spec(model: StackSpec) -> MoESpec:
        assert model.moe is not None
        return model.moe

    @staticmethod
    def _shared(moe: MoESpec) -> SharedExpert | None:
        width = moe.shared_expert_ffn_hidden_size
        return SharedExpert(width=width, bias=moe.expert_bias) if width else None

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """Router and gate are replicated on every rank; num_experts / ep experts are local."""
        moe, hidden = self._spec(model), model.hidden_size
        experts, routed = moe.num_experts, moe.num_experts + moe.zero_experts
        yield Weight("router", float(routed * hidden), matrix=True, placeholder=False)
        if moe.router_bias:
            yield Weight("router bias", float(routed))
        outer = moe.latent_size or hidden
        if moe.latent_size is not None:
            yield Weight("expert latents", 2.0 * outer * hidden, matrix=True, tensors=2)
            if moe.latent_bias:
                yield Weight("expert latents bias", float(outer + hidden), tensors=2)
        shared = self._shared(moe)
        if shared is not None:
            yield from shared.weights(model, split)
            if moe.shared_expert_gate:
                yield Weight("shared gate", float(hidden), matrix=True, placeholder=False)
        local = np.divide(experts, split.ep)
        inputs = 1 + model.gated_mlp
        width = np.divide(moe.expert_ffn_hidden_size, split.etp)
        for name, each, tensors, matrix in (
            ("expert fc1", inputs * width * outer, inputs, True),
            ("expert fc2", width * outer, 1, True),
            ("expert fc1 bias", inputs * width * moe.expert_bias, inputs, False),
            ("expert fc2 bias", float(outer * moe.expert_bias), 1, False),
        ):
            if matrix or moe.expert_bias:
                yield Weight(
                    name, local * each, matrix, expert=True, used=moe.top_k / routed,
                    copies=local, tensors=tensors,
                )  # fmt: skip

    def _biases(
        self, model: StackSpec, d: Dims, activated: Array, returned: Array
    ) -> Iterator[MemoryBoundKernel]:
        """Passes over the experts' activations and outputs, where biases are not fused.

        The bias of fc2 is scaled by the token's routing weight in fp32, added, concatenated over
        the experts and cast back; gated experts with biases (gpt-oss) clamp both halves before the
        fused activation (Megatron-LM experts.py, fused_bias_geglu.py).
        """
        active = d.runtime.adds_expert_bias_apart
        if not self._spec(model).expert_bias or not any_of(active):
            return
        yield MemoryBoundKernel("expert bias", 28.0 * returned, 40.0 * returned, MODULE, active)
        if model.gated_mlp:
            forward, backward = 16.0 * activated, 20.0 * activated
            yield MemoryBoundKernel("expert clamp", forward, backward, "moe_act", active)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Each rank sends top_k copies of its (sequence-sharded) tokens; each of an expert's etp
        ranks works on the copies of all of them.
        """
        moe = self._spec(model)
        sent = _Copies.of(model, moe, d)
        yield from self._kernels(model, d, sent)
        yield from self._saved_routing(moe, d, sent)
        yield from self._saved_by_experts(model, d, sent)
        shared = self._shared(moe)
        if shared is not None:
            split = d.runtime.keeps_gathered_input * (d.sharded_tokens < d.tokens)
            gathered = d.tokens * float(model.hidden_size)
            yield SavedTensor(
                "shared input", gathered, d.activation_bytes, shared.dropped_by, split
            )
            yield from shared.records(model, d)
        # The gradient of the widest tensor and of the experts' input.
        widest = sent.copies * (sent.inputs * sent.width + sent.outer)
        more = (sent.inputs + 1.0) * sent.size * d.activation_bytes
        yield Working(widest * d.activation_bytes, more)

    def _kernels(self, model: StackSpec, d: Dims, sent: _Copies) -> Iterator[Record]:
        """Routing, permutations, grouped GEMMs and all-to-alls, in order of execution."""
        moe, hidden = self._spec(model), float(model.hidden_size)
        copies, outer, width, size = sent.copies, sent.outer, sent.width, sent.size
        yield Gemm("router", d.sharded_tokens, sent.routed, hidden, MODULE, fp8=False)
        # The host reads the token counts of the experts to size the next buffers.
        yield HostWait(SYNC_LAUNCHES)
        yield HostOperations(HOST_OPERATIONS)
        scores = d.sharded_tokens * sent.routed
        # fp32 logits: softmax or sigmoid, top-k, and the balancing loss read them about four times.
        yield MemoryBoundKernel("top-k", 16.0 * scores, 12.0 * scores, MODULE)
        if moe.latent_size is not None:
            yield Gemm("expert latent in", d.sharded_tokens, outer, hidden, MODULE)
            yield Gemm("expert latent out", d.sharded_tokens, hidden, outer, MODULE)
            # The row gather saves no input; only the combined expert outputs are kept.
            latents = d.sharded_tokens * outer
            yield SavedTensor("expert latents", latents, d.activation_bytes, (MODULE,))
        moved = _permuted_bytes(d, sent)
        yield MemoryBoundKernel("permute", moved, moved, MODULE)
        experts = moe.num_experts / d.ep
        rows = copies / experts
        # Experts with a capacity are equal and need no ragged product.
        shared = d.runtime.ragged_tile_rows * (moe.capacity_factor is None) * (experts > 1.0)
        yield Gemm(
            "expert fc1", rows, sent.inputs * width, outer, MODULE, groups=experts, grouped=True,
            shared_rows=shared,
        )  # fmt: skip
        forward, backward = (2.0 * sent.inputs + 2.0) * size, (4.0 * sent.inputs + 2.0) * size
        apart = 1.0 - d.runtime.fuses_expert_activation
        yield MemoryBoundKernel("expert activation", apart * forward, apart * backward, "moe_act")
        yield from self._biases(model, d, size, copies * outer)
        yield Gemm(
            "expert fc2", rows, outer, width, MODULE, groups=experts, grouped=True,
            shared_rows=shared,
        )  # fmt: skip
        yield MemoryBoundKernel("unpermute", moved, moved, MODULE)
        payload = copies * outer * d.activation_bytes
        yield Collective(("all_gather", "reduce_scatter"), payload, "etp", module=MODULE)
        groups = None
        if moe.num_groups is not None and moe.top_k_groups is not None:
            groups = moe.num_groups, moe.top_k_groups
        yield Dispatch(d.sharded_tokens * sent.load, outer, sent.top_k, groups, MODULE)

    @staticmethod
    def _saved_routing(moe: MoESpec, d: Dims, sent: _Copies) -> Iterator[SavedTensor]:
        """Router scores, and the destination and weight of each copy."""
        torch, modules = d.runtime.sorts_routing, (MODULE,)
        scores = d.sharded_tokens * sent.routed
        yield SavedTensor("router scores", (2.0 - torch) * scores, FP32_BYTES, modules)
        # torch saves three int64 indices and the weight in two dtypes per copy, and the sum of
        # weights per token.
        routing = d.sharded_tokens * (sent.top_k * (24.0 + 4.0 + d.activation_bytes) + 4.0)
        if moe.zero_experts:
            # It also saves two int64 indices and a weight per copy for a zero expert, a mask byte
            # for every copy, and per token the sum of the zero experts' weights.
            nowhere = (moe.top_k - sent.top_k) * (16.0 + 4.0) + moe.top_k
            routing = routing + d.sharded_tokens * (nowhere + d.activation_bytes)
        yield SavedTensor("routing", routing, 1.0, modules, torch)

    @staticmethod
    def _saved_by_experts(model: StackSpec, d: Dims, sent: _Copies) -> Iterator[SavedTensor]:
        """Tensors that the grouped GEMMs and the combine save for backward."""
        modules, act = (MODULE,), (MODULE, "moe_act")
        yield SavedTensor("expert input", sent.copies * sent.outer, d.input_bytes, modules)
        yield SavedTensor(
            "expert fc1 output", sent.inputs * sent.size, d.activation_bytes, modules,
            by_operator=1.0 / sent.inputs,
        )  # fmt: skip
        yield SavedTensor("expert activation output", sent.size, d.input_bytes, act, pointwise=True)
        if model.gated_mlp:
            yield SavedTensor(
                "expert gate output", sent.size, d.activation_bytes, act, d.eager, pointwise=True
            )
        # Routing weights applied after the experts need the experts' outputs for their gradient.
        after = 1.0 - d.runtime.weighs_inside_experts
        yield SavedTensor("combine input", sent.own_elements, d.activation_bytes, modules, after)


@dataclass(frozen=True)
class _Copies:
    """Token copies that a rank's experts work on, and the shapes of its expert matrices.

    routed: experts that the router chooses among; top_k: copies of a token that are sent; load: of
    the busiest rank over the mean; outer: input and output width of an expert; width: its inner
    width on this rank; own_elements: those that the rank sends; inputs: products before the
    activation; size: output elements of one of them.
    """

    routed: float
    top_k: float
    load: float
    outer: float
    inputs: float
    width: Array
    copies: Array
    own_elements: Array
    size: Array

    @classmethod
    def of(cls, model: StackSpec, moe: MoESpec, d: Dims) -> _Copies:
        load, routed = busiest_load(moe), float(moe.num_experts + moe.zero_experts)
        # Zero experts return their tokens unchanged, so copies for them are not sent.
        top_k = moe.top_k * moe.num_experts / routed
        outer = float(moe.latent_size or model.hidden_size)
        width = moe.expert_ffn_hidden_size / d.etp
        copies = d.sharded_tokens * top_k * load * d.etp
        inputs = 2.0 if model.gated_mlp else 1.0
        own_elements = d.sharded_tokens * top_k * outer
        return cls(routed, top_k, load, outer, inputs, width, copies, own_elements, copies * width)


def _permuted_bytes(d: Dims, sent: _Copies) -> Array:
    """Bytes that one permutation moves, scaled to the bandwidth of a plain pass.

    Copies are gathered by destination before the all-to-all, sorted by expert after it, and back
    again.  DeepEP sends tokens in their own order and the receiving rank copies them for its
    experts; HybridEP's kernels do so in transit (Megatron-LM token_dispatcher.py, fused_a2a.py).
    """
    received = d.sharded_tokens * sent.load * distinct_domains(sent.top_k, d.ep) * d.etp
    on_the_way = d.hybridep * (d.ep > 1.0)
    once = d.deepep + d.hybridep - on_the_way
    moved = 4.0 * (1.0 - once - on_the_way) * (sent.own_elements + sent.copies * sent.outer)
    moved = moved + 2.0 * once * (received + sent.copies) * sent.outer
    return moved / PERMUTE_FRACTION
