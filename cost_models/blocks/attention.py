"""Attention with a key and value for each head, for groups of heads, or for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.blocks.base import Mixer
from cost_models.blocks.indexer import BLOCK_RATE, Indexer, attention_span
from cost_models.blocks.norm import (
    FP32_BYTES,
    MASK_BYTES,
    norm_parameters,
    norm_statistics,
    row_parallel_sum,
)
from cost_models.blocks.records import (
    FlashAttention,
    Gemm,
    Kernel,
    KeyValues,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    TensorParallel,
    Weight,
    Working,
)
from cost_models.fields import Count, Width
from cost_models.sources import Array

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec

ACTIVATION_ALIGNMENT = 8  # half-precision elements in 16 bytes (tensor-cores)


def bias_gradient(width: Array, rows: Array, has: bool, name: str) -> Iterator[Kernel]:
    """The gradient of a bias: one reading of its output's gradient (the sum itself is fused)."""
    if has:
        yield MemoryBoundKernel(name, 0.0, 2.0 * rows * width, recomputed=0.0, kind="bias")


Gate = Literal["none", "head", "element"]
KeyValueSource = Literal["own", "keys", "earlier"]


class Attention(Mixer):
    """Attention by heads; what is not given here is the model's.

    key_values: projected; the keys serve as values (Gemma 4); or an earlier layer's are used again
    (Gemma 3n).  gate: the output is multiplied by one value for each head, or for each element.
    """

    sources: ClassVar[tuple[str, ...]] = ("megatron-core", "korthikanti-2022", "torch")
    norm: ClassVar[str] = "attention"
    kind: Literal["attention"] = "attention"
    window: Count | None = Field(None, description="tokens seen to the left; None: all")
    chunk: Count | None = Field(None, description="tokens that see only each other; None: all")
    num_attention_heads: Count | None = None
    num_query_groups: Count | None = None
    head_dim: Width | None = None
    value_head_dim: Width | None = Field(None, description="None: as head_dim")
    key_values: KeyValueSource = "own"
    gate: Gate = "none"
    rope: bool = Field(True, description="False: no positions in these layers")
    sinks: bool | None = Field(None, description="None: as the model's attention_sinks")
    qk_norm: Literal["none", "head", "full"] | None = Field(None, description="None: the model's")
    indexer: Indexer | None = Field(None, description="picks the keys that each query attends to")

    @property
    def label(self) -> str:
        """What of it differs from the model's plainest attention."""
        words = ["full"]
        if self.window is not None:
            words = [f"window {self.window}"]
        if self.chunk is not None:
            words = [f"chunk {self.chunk}"]
        if self.indexer is not None:
            words = [self.indexer.label]
        if self.num_attention_heads is not None or self.num_query_groups is not None:
            words.append(f"{self.num_attention_heads or ''}/{self.num_query_groups or ''} heads")
        if not self.rope:
            words.append("without positions")
        if self.key_values == "earlier":
            words.append("earlier keys")
        return " ".join(words)

    @property
    def title(self) -> str:
        first, *more = self.label.split(" without ", 1)
        return " without ".join((f"{first} attention", *more))

    def missing(self, model: StackSpec) -> str:
        heads, groups = self.heads(model)
        if heads % groups:
            return f"num_attention_heads {heads} is not a multiple of num_query_groups {groups}"
        if self.window is not None and self.chunk is not None:
            return "give window or chunk, not both"
        return self.indexer.missing(groups) if self.indexer is not None else ""

    def heads(self, model: StackSpec) -> tuple[int, int]:
        """Query heads, and key/value heads."""
        heads = self.num_attention_heads or model.num_attention_heads
        own = self.num_attention_heads is not None
        return heads, self.num_query_groups or (heads if own else model.num_query_groups)

    def _head_dims(self, model: StackSpec) -> tuple[int, int]:
        """Of queries and keys, and of values."""
        head_dim = self.head_dim or model.head_dim
        return head_dim, self.value_head_dim or head_dim

    def _qk_norm(self, model: StackSpec) -> str:
        return model.qk_norm if self.qk_norm is None else self.qk_norm

    def _projected(self) -> tuple[int, int]:
        """How many of keys and values are projected here."""
        return {"own": (1, 1), "keys": (1, 0), "earlier": (0, 0)}[self.key_values]

    def _qkv_width(self, model: StackSpec, heads: Array, kv_heads: Array) -> Array:
        (head_dim, value_dim), (keys, values) = self._head_dims(model), self._projected()
        gates = {"none": 0.0, "head": 1.0, "element": value_dim}[self.gate]
        own = keys * head_dim + values * value_dim
        return heads * (head_dim + gates) + kv_heads * own

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """A QK norm over one head is held whole; one over all heads is split with them.

        With fewer key/value heads than ranks each rank holds a part of one and gathers the
        activations.
        """
        (every, groups), (head_dim, value_dim) = self.heads(model), self._head_dims(model)
        heads, kv_heads = np.divide(every, split.tp), np.divide(groups, split.tp)
        keys, values = self._projected()
        width = self._qkv_width(model, heads, kv_heads)
        products = 1 + keys + values
        parts = (every, *(groups,) * (products - 1))
        yield Weight(
            "qkv", width * model.hidden_size, matrix=True, tensors=products, parts=parts,
        )  # fmt: skip
        if model.qkv_bias:
            yield Weight("qkv bias", width, tensors=products)
        yield Weight("attention out", heads * value_dim * model.hidden_size, matrix=True)
        yield from output_weights(model, heads, self.sinks)
        qk_norm = self._qk_norm(model)
        if qk_norm != "none":
            norm, split_norms = norm_parameters(model, head_dim), heads + keys * kv_heads
            count = 1.0 + keys if qk_norm == "head" else split_norms
            yield Weight("qk norms", count * norm, tensors=(1 + keys) * (1 + model.norm_bias))
        if self.indexer is not None:
            yield from self.indexer.weights(model, model.hidden_size)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        (every, groups), (own, own_value) = self.heads(model), self._head_dims(model)
        hidden, head_dim, value_dim = float(model.hidden_size), float(own), float(own_value)
        heads = every / d.tp
        # A rank holds at least one key/value head; with more ranks than heads they repeat.
        kv_heads = np.maximum(groups / d.tp, 1.0)
        width = self._qkv_width(model, heads, kv_heads)
        keys, _ = self._projected()
        # torch keeps every second product: queries and values, not keys (see `op` recompute).
        again = keys * kv_heads * head_dim / width
        qkv = Gemm("qkv", d.tokens, width, hidden, gathered_input=True, recomputed=again)
        yield qkv
        yield from bias_gradient(width, d.tokens, model.qkv_bias, "qkv bias")
        yield MemoryBoundKernel(
            "qkv split", 0.0, 4.0 * width * d.tokens, active=d.runtime.joins_qkv_gradients
        )
        rows = d.tokens * (heads + keys * kv_heads)
        normed = self._qk_norm(model) != "none"
        yield from position_and_norm(model, d, rows * head_dim, rope=self.rope, norm=normed)
        if groups < every:
            repeats = d.runtime.repeats_key_value_heads
            repeated = 2.0 * d.tokens * heads * head_dim * repeats
            yield MemoryBoundKernel(
                "repeat kv", 2.0 * repeated, 2.0 * repeated, active=repeats, kind="repeat kv"
            )
        if normed:
            yield SavedTensor("qk norm input", rows * head_dim, d.activation_bytes)
            yield norm_statistics(model, d, "qk", rows)
        span = attention_span(self.window, d.seq_length)
        if self.chunk is not None:
            span = min(float(self.chunk), d.seq_length)
        rate = 1.0
        if self.indexer is not None:
            yield from self.indexer.records(model, d, hidden)
            span = self.indexer.span(d.seq_length)
            rate = BLOCK_RATE if self.indexer.block_size else 1.0
        yield from core_attention(
            model, d, heads, kv_heads, (head_dim, value_dim), span, keys=float(keys), rate=rate
        )
        if self.gate != "none":
            context = d.tokens * heads * value_dim
            yield from output_gate(
                d, context, context if self.gate == "element" else d.tokens * heads
            )
        out = Gemm(
            "attention out",
            d.tokens,
            hidden,
            heads * value_dim,
            scattered_output=True,
            recomputed=1.0,
        )
        yield from output(model, d, out)
        yield TensorParallel(hidden, (qkv,), (out,))


def output_weights(model: StackSpec, heads: Array, sinks: bool | None = None) -> Iterator[Weight]:
    """Bias of the output projection, whole on every rank, and sinks, one per head."""
    if model.attention_output_bias:
        yield Weight("attention out bias", model.hidden_size)
    if model.attention_sinks if sinks is None else sinks:
        yield Weight("attention sinks", heads)


def position_and_norm(
    model: StackSpec, d: Dims, rotated: Array, module: str = "", *, rope: bool, norm: bool
) -> Iterator[MemoryBoundKernel]:
    """Rotation and norm of queries and keys, `rotated` elements in all."""
    if rope and model.position == "rope":
        # Eager torch rotates in fp32: to fp32, complex product, back (5 bytes for each fused one).
        moved = 4.0 * rotated * (1.0 + 4.0 * d.eager)
        yield MemoryBoundKernel("rope", moved, moved, module, kind="" if module else "rope")
    if norm:
        yield MemoryBoundKernel(
            "qk norm", (4.0 + 32.0 * d.eager) * rotated, (6.0 + 66.0 * d.eager) * rotated
        )


def core_attention(
    model: StackSpec,
    d: Dims,
    heads: Array,
    kv_heads: Array,
    head_dims: tuple[float, float],
    span: float,
    up: str = "",
    repeats: bool = True,
    keys: float = 1.0,
    rate: float = 1.0,
) -> Iterator[Record]:
    """From queries, keys and values to the output by heads, and the communication around it.

    head_dims: of queries and keys, and of values.  up: the module whose recompute makes queries,
    keys and values again.  repeats: keys and values may be fewer than heads.  keys: 0 where an
    earlier layer has saved keys and values.  rate: see FlashAttention.
    """
    core = _Core(model, d, heads, kv_heads, head_dims)
    kernels = tuple(_core_kernels(core, span, rate))
    yield from kernels
    yield KeyValues(heads, kv_heads, sum(head_dims) / 2.0, kernels)
    yield from _core_saved(core, up, repeats, keys)
    # The gradients of unfused attention's softmax and of its scores.
    yield Working(2.0 * core.scores * core.unfused * d.activation_bytes)


class _Core:
    """Shapes of the core of attention on one rank: elements of what it reads and makes."""

    def __init__(
        self, model: StackSpec, d: Dims, heads: Array, kv_heads: Array,
        head_dims: tuple[float, float],
    ) -> None:  # fmt: skip
        self.model, self.d, self.heads, self.kv_heads = model, d, heads, kv_heads
        self.head_dim, self.value_dim = head_dims
        self.query = d.tokens * heads * self.head_dim
        self.key, self.value = (d.tokens * kv_heads * each for each in head_dims)
        self.context = d.tokens * heads * self.value_dim
        self.unfused = 1.0 - d.flash
        self.rows, self.batch = d.seq_length / d.cp, d.sequences * heads
        self.scores = self.batch * self.rows * d.seq_length


def _core_kernels(core: _Core, span: float, rate: float) -> Iterator[Kernel]:
    """Flash attention, or its products and passes one by one."""
    model, d, head_dim, value_dim = core.model, core.d, core.head_dim, core.value_dim
    # Q K^T and P V, where causal half of the square.
    yield FlashAttention(
        "attention",
        (1.0 + model.bidirectional) * d.tokens * span * core.heads * (head_dim + value_dim),
        span / d.cp,
        head_dim,
        d.tokens * core.heads,
        head_dim != value_dim,
        d.flash1,
        d.flash2,
        causal=not model.bidirectional,
        rate=rate,
        active=d.flash,
    )
    # Heads of other than whole 16 bytes keep the tensor cores idle in strided products.
    aligned = head_dim % ACTIVATION_ALIGNMENT == 0

    def product(name: str, n: Array, k: Array) -> Gemm:
        return Gemm(
            name, core.rows, n, k, "core_attn", core.batch, fp8=False, weights=False,
            tensor_cores=aligned, active=core.unfused,
        )  # fmt: skip

    def memory_bound(name: str, forward_bytes: Array, backward_bytes: Array) -> MemoryBoundKernel:
        return MemoryBoundKernel(name, forward_bytes, backward_bytes, "core_attn", core.unfused)

    scores, context = core.scores, core.context
    yield product("q k^T", d.seq_length, head_dim)
    # Fused scale-mask-softmax: read, write; backward: read two, write one.  Dropout: one more.
    yield memory_bound("softmax", 4.0 * scores, 6.0 * scores)
    if model.attention_dropout > 0:
        yield memory_bound("attention dropout", 5.0 * scores, 5.0 * scores)
    yield product("p v", value_dim, d.seq_length)
    # Heads back beside each other: one copy each way.
    yield memory_bound("context transpose", 4.0 * context, 4.0 * context)


def _core_saved(core: _Core, up: str, repeats: bool, keys: float) -> Iterator[SavedTensor]:
    """What the core keeps for its gradients; the arguments are those of core_attention."""
    model, d, scores, context = core.model, core.d, core.scores, core.context
    # Unfused attention of torch (SDPBackend.MATH) computes in fp32 and saves what it computes with.
    # It repeats keys and values for every query head.
    plain = core.unfused * d.runtime.unfused_attention_in_fp32
    core_bytes = d.activation_bytes + (FP32_BYTES - d.activation_bytes) * plain
    every = 1.0 + (core.heads / core.kv_heads - 1.0) * plain * repeats
    again = (up,) if up else ()
    yield SavedTensor("query", core.query, core_bytes, again, by_operator=1.0)
    # Keys and values received from other context-parallel ranks are copies.
    own = np.maximum(np.maximum(keys, plain), d.cp > 1)
    yield SavedTensor("key", core.key * every, core_bytes, again, own)
    yield SavedTensor("value", core.value * every, core_bytes, again, own, by_operator=1.0)
    module = ("core_attn",)
    yield SavedTensor("softmax output", scores, core_bytes, module, core.unfused)
    if model.attention_dropout > 0:
        yield SavedTensor("attention score mask", scores, MASK_BYTES, module, core.unfused)
        yield SavedTensor("attention dropout output", scores, core_bytes, module, core.unfused)
    statistics = d.tokens * core.heads
    yield SavedTensor("log-sum-exp", statistics, FP32_BYTES, module, d.flash, by_operator=1.0)
    yield SavedTensor("attention output", context, d.activation_bytes, by_operator=1.0)
    cast = np.where(d.input_bytes < d.activation_bytes, 1.0, 0.0)
    yield SavedTensor("attention output cast", context, d.input_bytes, (), cast)
    # All-to-all keeps the output by heads for its kernel, and by tokens for the projection (TE).
    exchanged = d.all_to_all * (d.cp > 1)
    yield SavedTensor("attention output by heads", context, d.activation_bytes, module, exchanged)


def output_gate(d: Dims, context: Array, gates: Array) -> Iterator[Record]:
    """The output of attention times its gates, element by element or head by head."""
    moved = 4.0 * context + 2.0 * gates
    yield MemoryBoundKernel("attention gate", moved, 2.0 * moved)
    yield SavedTensor("attention gate input", gates, d.activation_bytes)
    yield SavedTensor("gated attention output", context, d.input_bytes)


def output(model: StackSpec, d: Dims, out: Gemm) -> Iterator[Record]:
    """The output projection and its bias."""
    yield out
    hidden, has = float(model.hidden_size), model.attention_output_bias
    yield from bias_gradient(hidden, d.sharded_tokens, has, "attention out bias")
    yield row_parallel_sum(model, d, "attention", 0.0)
