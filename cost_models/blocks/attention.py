"""Multi-head, grouped-query and multi-query attention."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.blocks.autocast import CAST_BYTES, input_casts
from cost_models.blocks.base import Mixer
from cost_models.blocks.indexer import BLOCK_RATE, Indexer, attention_span
from cost_models.blocks.norm import (
    FP32_BYTES,
    MASK_BYTES,
    head_norm,
    norm_parameters,
    row_parallel_sum,
)
from cost_models.blocks.records import (
    Cached,
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
    """The gradient of a bias: one read of the output's gradient (the sum itself is fused)."""
    if has:
        yield MemoryBoundKernel(name, 0.0, 2.0 * rows * width, recomputed=0.0, kind="bias")


Gate = Literal["none", "head", "element"]
KeyValueSource = Literal["own", "keys", "earlier"]


class Attention(Mixer):
    """Attention by heads; fields left out take the model's values.

    key_values: both projected here; keys that serve as values too (Gemma 4); or those of an earlier
    layer (Gemma 3n).  gate: the output is multiplied by one value per head or per element.
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
        """A few words on how it differs from full attention."""
        parts = ["full"]
        if self.window is not None:
            parts = [f"window {self.window}"]
        if self.chunk is not None:
            parts = [f"chunk {self.chunk}"]
        if self.indexer is not None:
            parts = [self.indexer.label]
        if self.num_attention_heads is not None or self.num_query_groups is not None:
            parts.append(f"{self.num_attention_heads or ''}/{self.num_query_groups or ''} heads")
        if not self.rope:
            parts.append("without positions")
        if self.key_values == "earlier":
            parts.append("earlier keys")
        return " ".join(parts)

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
        """Numbers of (query heads, key/value heads)."""
        heads = self.num_attention_heads or model.num_attention_heads
        has_own_heads = self.num_attention_heads is not None
        return heads, self.num_query_groups or (heads if has_own_heads else model.num_query_groups)

    def _head_dims(self, model: StackSpec) -> tuple[int, int]:
        """Head dimensions of (queries and keys, values)."""
        head_dim = self.head_dim or model.head_dim
        return head_dim, self.value_head_dim or head_dim

    def _qk_norm(self, model: StackSpec) -> str:
        return model.qk_norm if self.qk_norm is None else self.qk_norm

    def _projected(self) -> tuple[int, int]:
        """(keys, values): 1 if this layer projects them, 0 if not."""
        return {"own": (1, 1), "keys": (1, 0), "earlier": (0, 0)}[self.key_values]

    def _qkv_width(self, model: StackSpec, heads: Array, kv_heads: Array) -> Array:
        (head_dim, value_dim), (keys, values) = self._head_dims(model), self._projected()
        gates = {"none": 0.0, "head": 1.0, "element": value_dim}[self.gate]
        kv_head_width = keys * head_dim + values * value_dim
        return heads * (head_dim + gates) + kv_heads * kv_head_width

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """A QK norm over one head is replicated; one over all heads is split with them.

        With fewer key/value heads than ranks, each rank holds a part of a head and gathers the
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

    def cached(self, model: StackSpec, split: Split) -> Iterator[Cached]:
        """Keys and values of the heads of one rank; with fewer heads than ranks each holds one."""
        (every, groups), (head_dim, value_dim) = self.heads(model), self._head_dims(model)
        keys, values = self._projected()
        each = np.maximum(np.divide(groups, split.tp), 1.0)
        token_limit = min(self.window or math.inf, self.chunk or math.inf)
        read = self.indexer.top_k if self.indexer is not None else math.inf
        yield Cached(
            each * (keys * head_dim + values * value_dim),
            2.0 * np.divide(every, split.tp) * (head_dim + value_dim),
            token_limit,
            read,
        )
        if self.indexer is not None and not self.indexer.shared:
            yield self.indexer.cached()

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        (every, groups), (own_dim, own_value) = self.heads(model), self._head_dims(model)
        hidden, head_dim, value_dim = float(model.hidden_size), float(own_dim), float(own_value)
        heads = every / d.tp
        # A rank uses at least one key/value head; with more ranks than heads, heads are repeated.
        kv_heads = np.maximum(groups / d.tp, 1.0)
        width = self._qkv_width(model, heads, kv_heads)
        keys, _ = self._projected()
        # Per-operator recompute keeps every second product: queries and values, not keys.
        repeated_share = keys * kv_heads * head_dim / width
        qkv = Gemm("qkv", d.tokens, width, hidden, gathered_input=True, recomputed=repeated_share)
        yield qkv
        yield from input_casts(d, "qkv", hidden, 1.0 + sum(self._projected()), "")
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
            yield from head_norm(model, d, "qk", rows * head_dim, rows)
        span = attention_span(self.window, d.seq_length)
        if self.chunk is not None:
            span = np.minimum(float(self.chunk), d.seq_length)
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
            "attention out", d.tokens, hidden, heads * value_dim, scattered_output=True,
            recomputed=1.0,
        )  # fmt: skip
        yield from output(model, d, out)
        yield TensorParallel(hidden, (qkv,), (out,))


def output_weights(model: StackSpec, heads: Array, sinks: bool | None = None) -> Iterator[Weight]:
    """The bias of the output projection, replicated on every rank, and one sink per head."""
    if model.attention_output_bias:
        yield Weight("attention out bias", model.hidden_size)
    if model.attention_sinks if sinks is None else sinks:
        yield Weight("attention sinks", heads)


def position_and_norm(
    model: StackSpec, d: Dims, rotated: Array, module: str = "", *, rope: bool, norm: bool
) -> Iterator[MemoryBoundKernel]:
    """RoPE and QK norm over `rotated` elements of queries and keys."""
    if rope and model.position == "rope":
        # Eager torch casts to fp32, takes the complex product and casts back: 5x the fused bytes.
        moved = 4.0 * rotated * (1.0 + 4.0 * d.eager_layers)
        yield MemoryBoundKernel("rope", moved, moved, module, kind="" if module else "rope")
    if norm:
        forward, backward = 4.0 + 32.0 * d.eager_layers, 6.0 + 66.0 * d.eager_layers
        yield MemoryBoundKernel("qk norm", forward * rotated, backward * rotated)


def core_attention(
    model: StackSpec,
    d: Dims,
    heads: Array,
    kv_heads: Array,
    head_dims: tuple[float, float],
    span: Array,
    up: str = "",
    repeats: bool = True,
    keys: float = 1.0,
    rate: float = 1.0,
) -> Iterator[Record]:
    """Core attention: from queries, keys and values to each head's output, with communication.

    head_dims: of (queries and keys, values).  span: mean number of keys per query.  up: the module
    whose recompute also recomputes queries, keys and values.  repeats: there may be fewer key/value
    heads than query heads.  keys: 0 where an earlier layer has saved keys and values.
    rate: see FlashAttention.
    """
    core = _Core(model, d, heads, kv_heads, head_dims)
    kernels = tuple(_core_kernels(core, span, rate))
    yield from kernels
    yield KeyValues(heads, kv_heads, sum(head_dims) / 2.0, kernels)
    yield from _core_saved(core, up, repeats, keys)
    # The gradients of unfused attention's softmax and of its scores.
    yield Working(2.0 * core.scores * core.unfused * d.activation_bytes)


class _Core:
    """Element counts of the inputs, scores and outputs of core attention on one rank."""

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


def _core_kernels(core: _Core, span: Array, rate: float) -> Iterator[Kernel]:
    """Flash attention, or the separate kernels of unfused attention."""
    model, d, head_dim, value_dim = core.model, core.d, core.head_dim, core.value_dim
    # Q K^T and P V; only half of the square if causal.
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
    # Strided products use tensor cores only where heads are a multiple of 16 bytes wide.
    aligned = head_dim % ACTIVATION_ALIGNMENT == 0

    def product(name: str, n: Array, k: Array) -> Gemm:
        return Gemm(
            name, core.rows, n, k, "core_attn", core.batch, fp8=False, weights=False,
            tensor_cores=aligned, active=core.unfused,
        )  # fmt: skip

    def memory_bound(name: str, forward: Array, backward: Array, widened: Array = 0.0) -> Kernel:
        copies = (0.0, widened)
        return MemoryBoundKernel(
            name, forward, backward, "core_attn", core.unfused, widened_bytes=copies
        )

    scores, context = core.scores, core.context
    yield product("q k^T", d.seq_length, head_dim)
    # Fused scale-mask-softmax: read, write; backward: read two, write one.  Dropout: read, write
    # and a mask byte, in both passes.
    # By operator: scale, mask, softmax in fp32 and its cast, and the like backward.
    by_operator = d.runtime.unfused_attention_by_operator
    forward, backward = (4.0 + 22.0 * by_operator) * scores, (6.0 + 22.0 * by_operator) * scores
    yield memory_bound("softmax", forward, backward, CAST_BYTES * by_operator * scores)
    if model.attention_dropout > 0:
        yield memory_bound("attention dropout", 5.0 * scores, 5.0 * scores)
    yield product("p v", value_dim, d.seq_length)
    # The transpose that puts heads side by side again: one copy each way.
    yield memory_bound("context transpose", 4.0 * context, 4.0 * context)


def _core_saved(core: _Core, up: str, repeats: bool, keys: float) -> Iterator[SavedTensor]:
    """Tensors that core attention saves for backward; the arguments are those of core_attention."""
    model, d, scores, context = core.model, core.d, core.scores, core.context
    # Unfused attention of torch (SDPBackend.MATH) computes in fp32, saves its fp32 inputs, and
    # repeats keys and values for every query head.
    plain = core.unfused * d.runtime.unfused_attention_in_fp32
    core_bytes = d.activation_bytes + (FP32_BYTES - d.activation_bytes) * plain
    by_operator = core.unfused * d.runtime.unfused_attention_by_operator
    # Per-operator recompute keeps the product that copies of values were made of.
    fused = d.runtime.keeps_repeated_heads * np.maximum(d.eager, d.runtime.calls_attention_apart)
    fused = d.flash * fused
    copies = np.maximum(np.maximum(plain, by_operator), fused) * repeats
    every = 1.0 + (core.heads / core.kv_heads - 1.0) * copies
    product = 1.0 + (1.0 / every - 1.0) * fused
    modules = (up,) if up else ()
    yield SavedTensor("query", core.query, core_bytes, modules, by_operator=1.0)
    # Keys and values received from other context-parallel ranks are copies.
    active = np.maximum(np.maximum(keys, plain), d.cp > 1)
    yield SavedTensor("key", core.key * every, core_bytes, modules, active)
    yield SavedTensor("value", core.value * every, core_bytes, modules, active, by_operator=product)
    views = d.runtime.views_values * (core.kv_heads == core.heads)
    yield SavedTensor("unrotated", core.query + core.key, d.activation_bytes, modules, views)
    module = ("core_attn",)
    yield SavedTensor("softmax output", scores, core_bytes, module, core.unfused)
    if np.any(by_operator):
        yield SavedTensor("softmax output in fp32", scores, FP32_BYTES, module, by_operator)
    if model.attention_dropout > 0:
        yield SavedTensor("attention score mask", scores, MASK_BYTES, module, core.unfused)
        yield SavedTensor("attention dropout output", scores, core_bytes, module, core.unfused)
    statistics = d.tokens * core.heads
    yield SavedTensor("log-sum-exp", statistics, FP32_BYTES, module, d.flash, by_operator=1.0)
    kept = 1.0 - d.products_only * d.recomputed("core_attn")  # else attention gives it again
    yield SavedTensor("attention output", context, d.activation_bytes, (), kept, by_operator=1.0)
    cast = np.where(d.input_bytes < d.activation_bytes, 1.0, 0.0)
    yield SavedTensor("attention output cast", context, d.input_bytes, (), cast)
    # All-to-all context parallelism (TE) saves the output twice: split by heads for the attention
    # kernel, and split by tokens for the projection.
    exchanged = d.all_to_all * (d.cp > 1)
    yield SavedTensor("attention output by heads", context, d.activation_bytes, module, exchanged)


def output_gate(d: Dims, context: Array, gates: Array) -> Iterator[Record]:
    """The attention output times its gates, one per element or per head."""
    moved = 4.0 * context + 2.0 * gates
    yield MemoryBoundKernel("attention gate", moved, 2.0 * moved)
    yield SavedTensor("attention gate input", gates, d.activation_bytes)
    yield SavedTensor("gated attention output", context, d.input_bytes, pointwise=True)


def output(model: StackSpec, d: Dims, out: Gemm) -> Iterator[Record]:
    """The output projection and its bias."""
    yield out
    hidden, has = float(model.hidden_size), model.attention_output_bias
    yield from bias_gradient(hidden, d.sharded_tokens, has, "attention out bias")
    yield row_parallel_sum(model, d, "attention", 0.0)
