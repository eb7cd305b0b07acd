"""Attention with a key and value for each head, for groups of heads, or for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.blocks.base import Mixer
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
    Pass,
    Record,
    SavedTensor,
    Split,
    TensorParallel,
    Weight,
    Working,
)
from cost_models.fields import Count
from cost_models.sources import Array, formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import ModelSpec

ACTIVATION_ALIGNMENT = 8  # half-precision elements in 16 bytes (tensor-cores)


@formula("1", "derived")
def attention_span(window: float | None, seq_length: float) -> float:
    """Mean number of keys a query is paired with before causal masking.

    A causal window w over s positions holds w(s - w/2) pairs, against s^2/2 for full causal.
    """
    if window is None or window >= seq_length:
        return seq_length
    return 2.0 * window * (seq_length - window / 2.0) / seq_length


def bias_gradient(width: Array, rows: Array, has: bool, name: str) -> Iterator[Kernel]:
    """The gradient of a bias: one reading of its output's gradient (the sum itself is fused)."""
    if has:
        yield Pass(name, 0.0, 2.0 * rows * width, redone=0.0, kind="bias")


class Attention(Mixer):
    """Heads and groups are the model's; window: keys a query sees to its left, None: all."""

    sources: ClassVar[tuple[str, ...]] = ("megatron-core", "korthikanti-2022", "torch")
    kind: Literal["attention"] = "attention"
    window: Count | None = Field(None, description="tokens seen to the left; None: all")

    @property
    def label(self) -> str:
        return "full" if self.window is None else f"window {self.window}"

    def weights(self, model: ModelSpec, split: Split) -> Iterator[Weight]:
        """A QK norm over one head is held whole; one over all heads is split with them.

        With fewer key/value heads than ranks each rank holds a part of one and gathers the
        activations.
        """
        heads = np.divide(model.num_attention_heads, split.tp)
        kv_heads = np.divide(model.num_query_groups, split.tp)
        width = (heads + 2.0 * kv_heads) * model.head_dim
        groups = model.num_query_groups
        yield Weight(
            "qkv", width * model.hidden_size, matrix=True, tensors=3,
            parts=(model.num_attention_heads, groups, groups),
        )  # fmt: skip
        if model.qkv_bias:
            yield Weight("qkv bias", width, tensors=3)
        yield Weight("attention out", heads * model.head_dim * model.hidden_size, matrix=True)
        yield from output_weights(model, heads)
        if model.qk_norm != "none":
            norm, split_norms = norm_parameters(model, model.head_dim), heads + kv_heads
            count = 2.0 if model.qk_norm == "head" else split_norms
            yield Weight("qk norms", count * norm, tensors=2 * (1 + model.norm_bias))

    def records(self, model: ModelSpec, d: Dims) -> Iterator[Record]:
        hidden, head_dim = float(model.hidden_size), float(model.head_dim)
        heads = model.num_attention_heads / d.tp
        # A rank holds at least one key/value head; with more ranks than heads they repeat.
        kv_heads = np.maximum(model.num_query_groups / d.tp, 1.0)
        width = (heads + 2.0 * kv_heads) * head_dim
        # torch keeps every second product: queries and values, not keys (see `op` recompute).
        qkv = Gemm(
            "qkv", d.tokens, width, hidden, gathered_input=True, redone=kv_heads * head_dim / width
        )
        yield qkv
        yield from bias_gradient(width, d.tokens, model.qkv_bias, "qkv bias")
        yield Pass("qkv split", 0.0, 4.0 * width * d.tokens, active=d.runtime.joins_qkv_gradients)
        yield from position_and_norm(model, d, d.tokens * (heads + kv_heads) * head_dim)
        if model.num_query_groups < model.num_attention_heads:
            repeats = d.runtime.repeats_key_value_heads
            repeated = 2.0 * d.tokens * heads * head_dim * repeats
            yield Pass(
                "repeat kv", 2.0 * repeated, 2.0 * repeated, active=repeats, kind="repeat kv"
            )
        if model.qk_norm != "none":
            rows = d.tokens * (heads + kv_heads)
            yield SavedTensor("qk norm input", rows * head_dim, d.activation_bytes)
            yield norm_statistics(model, d, "qk", rows)
        span = attention_span(self.window, d.seq_length)
        yield from core_attention(model, d, heads, kv_heads, (head_dim, head_dim), span)
        out = Gemm(
            "attention out", d.tokens, hidden, heads * head_dim, scattered_output=True, redone=1.0
        )
        yield from output(model, d, out)
        yield TensorParallel(hidden, (qkv,), (out,))


def output_weights(model: ModelSpec, heads: Array) -> Iterator[Weight]:
    """Bias of the output projection, whole on every rank, and sinks, one per head."""
    if model.attention_output_bias:
        yield Weight("attention out bias", model.hidden_size)
    if model.attention_sinks:
        yield Weight("attention sinks", heads)


def position_and_norm(
    model: ModelSpec, d: Dims, rotated: Array, module: str = ""
) -> Iterator[Pass]:
    """Rotation and norm of queries and keys, `rotated` elements in all."""
    if model.position == "rope":
        # Eager torch rotates in fp32: to fp32, complex product, back (5 bytes for each fused one).
        moved = 4.0 * rotated * (1.0 + 4.0 * d.eager)
        yield Pass("rope", moved, moved, module, kind="" if module else "rope")
    if model.qk_norm != "none":
        yield Pass("qk norm", (4.0 + 32.0 * d.eager) * rotated, (6.0 + 66.0 * d.eager) * rotated)


def core_attention(
    model: ModelSpec,
    d: Dims,
    heads: Array,
    kv_heads: Array,
    head_dims: tuple[float, float],
    span: float,
    up: str = "",
    repeats: bool = True,
) -> Iterator[Record]:
    """From queries, keys and values to the output by heads, and the exchange around it.

    head_dims: of queries and keys, and of values.  up: the module whose recompute makes queries,
    keys and values again.  repeats: keys and values may be fewer than heads.
    """
    head_dim, value_dim = head_dims
    query = d.tokens * heads * head_dim
    key, value = d.tokens * kv_heads * head_dim, d.tokens * kv_heads * value_dim
    context = d.tokens * heads * value_dim
    # Q K^T and P V, causal: half of the square.
    flash = FlashAttention(
        "attention",
        d.tokens * span * heads * (head_dim + value_dim),
        span / d.cp,
        head_dim,
        d.tokens * heads,
        head_dim != value_dim,
        d.flash1,
        d.flash2,
        active=d.flash,
    )
    unfused = 1.0 - d.flash
    rows, batch = d.seq_length / d.cp, d.sequences * heads
    scores = batch * rows * d.seq_length
    # Heads of other than whole 16 bytes keep the tensor cores idle in strided products.
    aligned = head_dim % ACTIVATION_ALIGNMENT == 0

    def product(name: str, n: Array, k: Array) -> Gemm:
        return Gemm(
            name, rows, n, k, "core_attn", batch, fp8=False, weights=False, tensor_cores=aligned,
            active=unfused,
        )  # fmt: skip

    def memory_bound(name: str, forward_bytes: Array, backward_bytes: Array) -> Pass:
        return Pass(name, forward_bytes, backward_bytes, "core_attn", unfused)

    kernels: list[Kernel] = [flash, product("q k^T", d.seq_length, head_dim)]
    # Fused scale-mask-softmax: read, write; backward: read two, write one.  Dropout: one more.
    kernels.append(memory_bound("softmax", 4.0 * scores, 6.0 * scores))
    if model.attention_dropout > 0:
        kernels.append(memory_bound("attention dropout", 5.0 * scores, 5.0 * scores))
    kernels.append(product("p v", value_dim, d.seq_length))
    # Heads back beside each other: one copy each way.
    kernels.append(memory_bound("context transpose", 4.0 * context, 4.0 * context))
    yield from kernels
    yield KeyValues(heads, kv_heads, (head_dim + value_dim) / 2.0, tuple(kernels))

    # Unfused attention of torch (SDPBackend.MATH) computes in fp32 and saves what it computes with.
    # It repeats keys and values for every query head.
    plain = unfused * d.runtime.unfused_attention_in_fp32
    core_bytes = d.activation_bytes + (FP32_BYTES - d.activation_bytes) * plain
    every = 1.0 + (heads / kv_heads - 1.0) * plain * repeats
    again = (up,) if up else ()
    yield SavedTensor("query", query, core_bytes, again, by_operator=1.0)
    yield SavedTensor("key", key * every, core_bytes, again)
    yield SavedTensor("value", value * every, core_bytes, again, by_operator=1.0)
    core = ("core_attn",)
    yield SavedTensor("softmax output", scores, core_bytes, core, unfused)
    if model.attention_dropout > 0:
        yield SavedTensor("attention score mask", scores, MASK_BYTES, core, unfused)
        yield SavedTensor("attention dropout output", scores, core_bytes, core, unfused)
    yield SavedTensor("log-sum-exp", d.tokens * heads, FP32_BYTES, core, d.flash, by_operator=1.0)
    yield SavedTensor("attention output", context, d.activation_bytes, by_operator=1.0)
    cast = np.where(d.input_bytes < d.activation_bytes, 1.0, 0.0)
    yield SavedTensor("attention output cast", context, d.input_bytes, (), cast)
    # All-to-all keeps the output by heads for its kernel, and by tokens for the projection (TE).
    exchanged = d.all_to_all * (d.cp > 1)
    yield SavedTensor("attention output by heads", context, d.activation_bytes, core, exchanged)
    # The gradients of unfused attention's softmax and of its scores.
    yield Working(2.0 * scores * unfused * d.activation_bytes)


def output(model: ModelSpec, d: Dims, out: Gemm) -> Iterator[Record]:
    """The output projection and its bias."""
    yield out
    hidden, has = float(model.hidden_size), model.attention_output_bias
    yield from bias_gradient(hidden, d.sharded_tokens, has, "attention out bias")
    yield row_parallel_sum(model, d, "attention", 0.0)
