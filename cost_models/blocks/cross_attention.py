"""Attention of a decoder's tokens to the output of an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.arrays import maximum
from cost_models.blocks.attention import bias_gradient, output, output_weights
from cost_models.blocks.base import Mixer
from cost_models.blocks.norm import FP32_BYTES, head_norm, norm_parameters
from cost_models.blocks.records import (
    Cached,
    FlashAttention,
    Gemm,
    Record,
    SavedTensor,
    Split,
    TensorParallel,
    Weight,
)
from cost_models.fields import Count, Width

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


class CrossAttention(Mixer):
    """Cross-attention; every context-parallel rank holds all of the encoder's output.

    tokens: the encoder's, per sequence; source_width: of the encoder's output, None: hidden_size.
    """

    sources: ClassVar[tuple[str, ...]] = ("megatron-core",)
    norm: ClassVar[str] = "attention"
    kind: Literal["cross_attention"] = "cross_attention"
    tokens: Count
    source_width: Width | None = None
    num_query_groups: Count | None = Field(None, description="None: the model's")

    @property
    def label(self) -> str:
        return "cross attention"

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        head_dim, hidden = model.head_dim, model.hidden_size
        heads = np.divide(model.num_attention_heads, split.tp)
        kv_heads = np.divide(self.num_query_groups or model.num_query_groups, split.tp)
        source = self.source_width or hidden
        yield Weight("cross q", heads * head_dim * hidden, matrix=True)
        yield Weight("cross kv", 2.0 * kv_heads * head_dim * source, matrix=True, tensors=2)
        if model.qkv_bias:
            yield Weight("cross qkv bias", (heads + 2.0 * kv_heads) * head_dim, tensors=3)
        yield Weight("cross out", heads * head_dim * hidden, matrix=True)
        yield from output_weights(model, heads, sinks=False)
        if model.qk_norm == "head":
            yield Weight("cross qk norms", 2.0 * norm_parameters(model, head_dim), tensors=2)

    def cached(self, model: StackSpec, split: Split) -> Iterator[Cached]:
        """Keys and values of the encoder's tokens, which are read and not added to."""
        groups = np.divide(self.num_query_groups or model.num_query_groups, split.tp)
        each = 2.0 * maximum(groups, 1.0) * model.head_dim
        yield Cached(state_elements=each * self.tokens)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        hidden, head_dim = float(model.hidden_size), float(model.head_dim)
        heads = model.num_attention_heads / d.tp
        kv_heads = maximum((self.num_query_groups or model.num_query_groups) / d.tp, 1.0)
        source, keys = float(self.source_width or hidden), d.sequences * self.tokens
        query = Gemm("cross q", d.tokens, heads * head_dim, hidden, gathered_input=True)
        yield query
        yield Gemm("cross kv", keys, 2.0 * kv_heads * head_dim, source)
        width = (heads + 2.0 * kv_heads) * head_dim
        yield from bias_gradient(width, d.tokens, model.qkv_bias, "cross qkv bias")
        if model.qk_norm == "head":
            rows = d.tokens * heads + keys * kv_heads
            yield from head_norm(model, d, "cross qk", rows * head_dim, rows)
        pairs = d.tokens * self.tokens * heads
        yield FlashAttention(
            "cross attention", 4.0 * pairs * head_dim, float(self.tokens), head_dim,
            d.tokens * heads, causal=False,
        )  # fmt: skip
        context = d.tokens * heads * head_dim
        yield SavedTensor("cross query", context, d.activation_bytes)
        yield SavedTensor(
            "cross keys and values", 2.0 * keys * kv_heads * head_dim, d.activation_bytes
        )
        yield SavedTensor("cross log-sum-exp", d.tokens * heads, FP32_BYTES)
        yield SavedTensor("cross attention output", context, d.activation_bytes)
        out = Gemm("cross out", d.tokens, hidden, heads * head_dim, scattered_output=True)
        yield from output(model, d, out)
        yield TensorParallel(hidden, (query,), (out,))
