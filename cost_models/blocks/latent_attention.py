"""Multi-head latent attention: keys and values from a low-rank latent (DeepSeek-V2)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.blocks.attention import (
    Gate,
    core_attention,
    output,
    output_gate,
    output_weights,
    position_and_norm,
)
from cost_models.blocks.base import Mixer
from cost_models.blocks.indexer import Indexer, attention_span
from cost_models.blocks.norm import head_norm, norm_parameters, norm_statistics
from cost_models.blocks.records import (
    Cached,
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    TensorParallel,
    Weight,
)
from cost_models.fields import Count

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import MLASpec, StackSpec

UP = "mla_up_proj"


class LatentAttention(Mixer):
    """Multi-head latent attention with the widths in the model's `mla`.

    gate: the output is multiplied by one value per head or per element.
    """

    sources: ClassVar[tuple[str, ...]] = ("deepseek-v2", "deepseek-v3.2", "megatron-core")
    norm: ClassVar[str] = "attention"
    kind: Literal["latent_attention"] = "latent_attention"
    indexer: Indexer | None = Field(None, description="picks the keys that each query attends to")
    window: Count | None = Field(None, description="tokens seen to the left; None: all")
    gate: Gate = "none"
    rope_key_norm: bool = Field(False, description="a norm over the rotary part of the keys")

    @property
    def label(self) -> str:
        if self.indexer is not None:
            reused = "earlier " if self.indexer.shared else ""
            return f"latent attention, {reused}top {self.indexer.top_k}"
        return "latent attention" if self.window is None else f"latent window {self.window}"

    def missing(self, model: StackSpec) -> str:
        if self.indexer is not None and self.indexer.block_size:
            return "an indexer picks blocks for groups of heads, which latent attention has none of"
        return "" if model.mla is not None else "latent_attention needs mla"

    @staticmethod
    def _spec(model: StackSpec) -> MLASpec:
        assert model.mla is not None
        return model.mla

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """Down-projections and their norms are replicated on every rank, the rest split by heads.

        With `qkv_bias`, only the two down-projections have a bias.
        """
        mla, hidden = self._spec(model), model.hidden_size
        heads = np.divide(model.num_attention_heads, split.tp)
        query_rank = mla.q_lora_rank or 0
        down = mla.kv_lora_rank + mla.qk_rope_head_dim + query_rank
        tensors = 1 + (query_rank > 0)
        parts = (query_rank, down - query_rank) if query_rank else ()
        yield Weight("mla down", down * hidden, matrix=True, tensors=tensors, parts=parts)
        if model.qkv_bias:
            yield Weight("mla down bias", down, tensors=tensors)
        norms = norm_parameters(model, mla.kv_lora_rank + query_rank)
        yield Weight("mla norms", norms, tensors=tensors * (1 + model.norm_bias))
        head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        query = query_rank or hidden
        yield Weight("mla q up", heads * head_dim * query, matrix=True, side=query)
        up = mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
        yield Weight("mla kv up", heads * up, matrix=True, side=mla.kv_lora_rank)
        gates = {"none": 0, "head": 1, "element": mla.v_head_dim}[self.gate]
        if gates:
            yield Weight("attention gate", heads * gates * hidden, matrix=True)
        if self.rope_key_norm:
            yield Weight("rope key norm", norm_parameters(model, mla.qk_rope_head_dim))
        if self.indexer is not None:
            yield from self.indexer.weights(model, query_rank or hidden)
        yield Weight("attention out", heads * mla.v_head_dim * hidden, matrix=True)
        yield from output_weights(model, heads)
        if model.qk_norm != "none":
            count = 2.0 if model.qk_norm == "head" else 2.0 * heads
            norm = norm_parameters(model, model.head_dim)
            yield Weight("qk norms", count * norm, tensors=2 * (1 + model.norm_bias))

    def cached(self, model: StackSpec, split: Split) -> Iterator[Cached]:
        """The latent and the rotary keys, on every rank; queries are taken to the latent's space,
        so that all heads read the same keys and values (DeepSeek-V2, section 2.1.2).
        """
        mla, heads = self._spec(model), np.divide(model.num_attention_heads, split.tp)
        width = mla.kv_lora_rank + mla.qk_rope_head_dim
        read = self.indexer.top_k if self.indexer is not None else math.inf
        flop = 2.0 * heads * (width + mla.kv_lora_rank)
        yield Cached(float(width), flop, self.window or math.inf, read)
        if self.indexer is not None and not self.indexer.shared:
            yield self.indexer.cached()

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        mla, hidden = self._spec(model), float(model.hidden_size)
        heads = model.num_attention_heads / d.tp
        head_dim = float(mla.qk_nope_head_dim + mla.qk_rope_head_dim)
        value_dim = float(mla.v_head_dim)
        query_rank = float(mla.q_lora_rank or 0)
        latent = query_rank + mla.kv_lora_rank
        down = latent + mla.qk_rope_head_dim
        yield Gemm("mla down", d.sharded_tokens, down, hidden, recomputed=0.5)
        yield SavedTensor("mla down output", d.sharded_tokens * down, d.activation_bytes)
        size = d.sharded_tokens * latent
        yield MemoryBoundKernel("mla norms", 4.0 * size, 6.0 * size)
        gathered_tokens = d.runtime.keeps_gathered_input * (d.tokens - d.sharded_tokens)
        normed = d.sharded_tokens + gathered_tokens
        yield SavedTensor("mla norm output", normed * latent, d.input_bytes, pointwise=True)
        norms = 1.0 + (query_rank > 0) + self.rope_key_norm
        yield norm_statistics(model, d, "mla", norms * d.sharded_tokens)
        query_up = Gemm("mla q up", d.tokens, heads * head_dim, query_rank or hidden, UP)
        kv_width = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
        kv_up = Gemm("mla kv up", d.tokens, kv_width, float(mla.kv_lora_rank), UP, recomputed=1.0)
        yield query_up
        yield kv_up
        # Keys concatenate the up-projected part and the rotary part that all heads share.  A fused
        # kernel for RoPE and this concatenation rotates queries in place, reads the projections
        # and writes keys and values.
        joins = d.runtime.rotates_while_joining
        each = d.tokens * heads
        joined = (1.0 - joins) * 4.0 * (2.0 * head_dim + value_dim)
        joined = joined + joins * (
            4.0 * mla.qk_rope_head_dim + 2.0 * (kv_width / heads + head_dim + value_dim)
        )
        yield MemoryBoundKernel("mla join", joined * each, joined * each, UP)
        rotated, normed = 2.0 * each * head_dim, model.qk_norm != "none"
        yield from position_and_norm(model, d, (1.0 - joins) * rotated, UP, rope=True, norm=False)
        yield from position_and_norm(model, d, rotated, UP, rope=False, norm=normed)
        if normed:
            yield from head_norm(model, d, "qk", rotated, 2.0 * d.tokens * heads)
        span = attention_span(self.window, d.seq_length)
        if self.indexer is not None:
            yield from self.indexer.records(model, d, query_rank or hidden)
            span = attention_span(self.indexer.top_k, d.seq_length)
        yield from core_attention(
            model, d, heads, heads, (head_dim, value_dim), span, UP, repeats=False
        )
        if self.gate != "none":
            gates = heads * (value_dim if self.gate == "element" else 1.0)
            yield Gemm("attention gate", d.tokens, gates, hidden)
            yield from output_gate(d, d.tokens * heads * value_dim, d.tokens * gates)
        out = Gemm(
            "attention out",
            d.tokens,
            hidden,
            heads * value_dim,
            scattered_output=True,
            recomputed=1.0,
        )
        yield from output(model, d, out)
        # With low-rank queries the latents are gathered, not the hidden state.
        yield TensorParallel(down if query_rank else hidden, (query_up, kv_up), (out,))
