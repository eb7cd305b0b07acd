"""Attention over a sliding window and over compressed tokens before it (DeepSeek-V4)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from cost_models.arrays import maximum, minimum
from cost_models.blocks.attention import core_attention, output_weights, position_and_norm
from cost_models.blocks.base import Mixer
from cost_models.blocks.indexer import attention_span
from cost_models.blocks.norm import norm_copies, norm_parameters, norm_statistics
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
from cost_models.fields import Count, Spec, Width

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


class Choice(Spec):
    """Heads that score the compressed tokens, of which each query attends to the top_k."""

    num_heads: Count
    head_dim: Width
    top_k: Count


class CompressedAttention(Mixer):
    """Low-rank queries; one key head, whose keys serve as values; a grouped low-rank output.

    compression: tokens per compressed token, their gated mean; None: sliding window only.
    choice: each query attends to its top_k compressed tokens, which then overlap; None: to all.
    """

    sources: ClassVar[tuple[str, ...]] = ("deepseek-v4",)
    norm: ClassVar[str] = "attention"
    kind: Literal["compressed_attention"] = "compressed_attention"
    q_lora_rank: Width
    o_lora_rank: Width
    o_groups: Count
    window: Count
    compression: Count | None = None
    choice: Choice | None = None

    @property
    def label(self) -> str:
        if self.compression is None:
            return f"window {self.window}"
        chosen = f", top {self.choice.top_k}" if self.choice else ""
        return f"1/{self.compression} compressed{chosen}"

    def missing(self, model: StackSpec) -> str:
        if self.choice is not None and self.compression is None:
            return "choice needs compression"
        if model.num_attention_heads % self.o_groups:
            return f"num_attention_heads is not a multiple of o_groups {self.o_groups}"
        return ""

    def _compressors(self, model: StackSpec) -> tuple[int, int]:
        """Widths of the compressed (keys, keys of the choice); doubled where tokens overlap."""
        overlap = 2 if self.choice else 1
        keys = overlap * model.head_dim if self.compression else 0
        return keys, overlap * self.choice.head_dim if self.choice else 0

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """Latents, keys and compressors are replicated on every rank, the rest split by heads."""
        hidden, head_dim, rank = model.hidden_size, model.head_dim, self.q_lora_rank
        heads = np.divide(model.num_attention_heads, split.tp)
        yield Weight("latents", float((rank + head_dim) * hidden), matrix=True, tensors=2)
        each = 1 + model.norm_bias
        yield Weight("latent norms", norm_parameters(model, rank + head_dim), tensors=2 * each)
        yield Weight("q up", heads * head_dim * rank, matrix=True)
        yield Weight("output down", heads * head_dim * self.o_lora_rank, matrix=True)
        up = np.divide(self.o_groups * self.o_lora_rank, split.tp)
        yield Weight("output up", up * hidden, matrix=True)
        yield from output_weights(model, heads)
        widths = self._compressors(model)
        if self.compression is not None:
            wide = 2.0 * sum(widths)
            yield Weight("compressors", wide * hidden, matrix=True, tensors=2)
            yield Weight("compressed positions", float(self.compression * sum(widths)))
            yield Weight("compressed norm", norm_parameters(model, head_dim), tensors=each)
        if self.choice is not None:
            choice = self.choice.num_heads * (rank * self.choice.head_dim + hidden)
            yield Weight("choice", float(choice), matrix=True, tensors=2)
            norm = norm_parameters(model, self.choice.head_dim)
            yield Weight("choice norm", norm, tensors=each)

    def cached(self, model: StackSpec, split: Split) -> Iterator[Cached]:
        """Keys, which serve as values, of the window and of compressed tokens, on every rank."""
        flop = 4.0 * np.divide(model.num_attention_heads, split.tp) * model.head_dim
        yield Cached(float(model.head_dim), flop, float(self.window))
        if self.compression is None:
            return
        read = self.choice.top_k if self.choice else math.inf
        yield Cached(float(model.head_dim), flop, read=read, every=float(self.compression))
        if self.choice is not None:
            width = float(self.choice.head_dim)
            flop = 2.0 * self.choice.num_heads * width
            yield Cached(width, flop, every=float(self.compression))

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        hidden, head_dim, rank = float(model.hidden_size), float(model.head_dim), self.q_lora_rank
        heads = model.num_attention_heads / d.tp
        down = rank + head_dim
        yield Gemm("latents", d.sharded_tokens, down, hidden)
        yield SavedTensor("mla down output", d.sharded_tokens * down, d.activation_bytes)
        yield SavedTensor("mla norm output", d.sharded_tokens * rank, d.input_bytes)
        yield norm_statistics(model, d, "mla", 2.0 * d.sharded_tokens)
        yield MemoryBoundKernel(
            "latent norms", 4.0 * d.sharded_tokens * down, 6.0 * d.sharded_tokens * down
        )
        up = Gemm("q up", d.tokens, heads * head_dim, float(rank))
        yield up
        context = d.tokens * heads * head_dim
        rotated = context + d.tokens * head_dim
        yield from position_and_norm(model, d, rotated, rope=True, norm=False)
        # Queries have a norm without weights.
        yield from position_and_norm(model, d, context, rope=False, norm=True)
        yield SavedTensor("qk norm input", context, d.activation_bytes)
        yield from norm_copies(model, d, "qk", context, d.activation_bytes)
        span, keys = attention_span(self.window, d.seq_length), 1.0
        if self.compression is not None:
            yield from self._compressed(model, d)
            compressed_keys = d.seq_length / self.compression
            span += attention_span(self.choice.top_k if self.choice else None, compressed_keys)
            keys += 1.0 / self.compression
        yield from core_attention(
            model, d, heads, maximum(1.0 / d.tp, 1.0), (head_dim, head_dim), span, keys=0.0
        )
        # Keys serve as values; with context parallelism the exchanged copies of both are kept.
        yield SavedTensor("key", d.tokens * keys * head_dim, d.activation_bytes, (), d.cp == 1)
        # Eager torch keeps the output both before and after it is rotated back.
        yield from position_and_norm(model, d, context, rope=True, norm=False)
        yield SavedTensor("turned attention output", context, d.activation_bytes, (), d.eager)
        lower = self.o_groups * self.o_lora_rank / d.tp
        group = heads * head_dim / (self.o_groups / d.tp)
        yield Gemm(
            "output down", d.tokens, float(self.o_lora_rank), group, groups=self.o_groups / d.tp
        )
        yield SavedTensor("output latents", d.tokens * lower, d.input_bytes)
        out = Gemm("output up", d.tokens, hidden, lower, scattered_output=True)
        yield out
        yield TensorParallel(down, (up,), (out,))

    def _compressed(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Compressed keys, and the scores that choose among them (causal half)."""
        assert self.compression is not None
        wide = 2.0 * sum(self._compressors(model))
        yield Gemm("compressors", d.sharded_tokens, wide, float(model.hidden_size))
        size = d.sharded_tokens * wide
        yield MemoryBoundKernel("compression", 4.0 * size, 6.0 * size)
        keys, chosen = (2.0 * width * d.sharded_tokens for width in self._compressors(model))
        yield SavedTensor("compressor outputs", keys, d.activation_bytes)
        if self.choice is None:
            return
        heads, dim = float(self.choice.num_heads), float(self.choice.head_dim)
        yield Gemm("choice q", d.tokens, heads * dim, float(self.q_lora_rank))
        yield Gemm("choice head weights", d.tokens, heads, float(model.hidden_size))
        rows, keys_seen = d.seq_length / d.cp, d.seq_length / self.compression / 2.0
        yield Gemm(
            "choice scores", rows, keys_seen, dim, "core_attn", d.sequences * heads, fp8=False,
            weights=False,
        )  # fmt: skip
        scores = d.sequences * rows * keys_seen
        yield MemoryBoundKernel("choice top-k", 12.0 * scores, 8.0 * scores, "core_attn")
        size = d.tokens * heads * (dim + 1.0) + chosen
        yield SavedTensor("indexer q + k", size, d.activation_bytes)
        picked = d.sequences * rows * minimum(float(self.choice.top_k), 2.0 * keys_seen)
        yield SavedTensor("indexer choice", picked, 4.0)
