"""Gated delta rule: a matrix state that each token corrects (Gated DeltaNet, Kimi Linear)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.arrays import minimum
from cost_models.blocks.records import Gemm, MemoryBoundKernel, Record, SavedTensor, Split, Weight
from cost_models.blocks.recurrence import Recurrence, Shape, scanned_tokens
from cost_models.fields import Count, Width
from cost_models.sources import formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec

# 8,192 tokens in 445 to 533 us (aiconfigurator, chunk_gated_delta_rule of FLA, 32 heads of 128).
TOKEN_S = 490e-6 / 8192
CHUNK = 64.0  # tokens per chunk in FLA's kernels


@formula("flop", "gated-delta-net")
def delta_rule_flop(chunk: float, key_dim: float, value_dim: float) -> float:
    """Forward FLOP of one token and head of the chunked delta rule.

    Inside the chunk: K K^T, the corrected keys and values, Q K^T and its product with the corrected
    values.  Across chunks: the state is read twice and written once.
    """
    inside = 2.0 * chunk * (3.0 * key_dim + 2.0 * value_dim)
    return inside + 6.0 * key_dim * value_dim


class GatedDeltaNet(Recurrence):
    """Value heads share key heads in groups; the output is normed and gated.

    channel_decays: a decay per key channel (Kimi Delta Attention) instead of one per head.
    decay_rank, gate_rank: rank of a pair of matrices that projects decay and gate.
    """

    sources: ClassVar[tuple[str, ...]] = ("gated-delta-net", "kimi-linear", "aiconfigurator")
    kind: Literal["gated_delta_net"] = "gated_delta_net"
    num_key_heads: Count
    num_value_heads: Count
    key_head_dim: Width
    value_head_dim: Width
    convolution: Count = Field(4, description="taps of the short convolution; 1: none")
    channel_decays: bool = False
    decay_rank: Width | None = Field(None, description="None: projected directly")
    gate_rank: Width | None = Field(None, description="None: projected directly")
    gated: bool = Field(True, description="an output gate")

    @property
    def _keys(self) -> int:
        return self.num_key_heads * self.key_head_dim

    @property
    def _values(self) -> int:
        return self.num_value_heads * self.value_head_dim

    def missing(self, model: StackSpec) -> str:
        heads, groups = self.num_value_heads, self.num_key_heads
        if heads % groups:
            return f"num_value_heads {heads} is not a multiple of num_key_heads {groups}"
        return ""

    def shape(self, model: StackSpec) -> Shape:
        gate = self._values * self.gated
        direct = sum(width for width, rank in self._gates() if rank is None)
        return Shape(
            projected=2 * self._keys + self._values + self.num_value_heads + direct,
            inner=self._values,
            heads=self.num_value_heads,
            head_flop=delta_rule_flop(CHUNK, self.key_head_dim, self.value_head_dim),
            token_s=TOKEN_S,
            state_per_head=float(self.key_head_dim * self.value_head_dim),
            passed_per_head=float(self.key_head_dim * (self.key_head_dim + self.value_head_dim)),
            taps=self.convolution,
            convolved=2 * self._keys + self._values if self.convolution > 1 else 0,
            gate=gate,
        )

    def _decays(self) -> int:
        return self._keys if self.channel_decays else self.num_value_heads

    def _gates(self) -> tuple[tuple[int, int | None], ...]:
        """(width, rank) of the decay and of the output gate."""
        gate = ((self._values, self.gate_rank),) if self.gated else ()
        return ((self._decays(), self.decay_rank), *gate)

    def _low_rank_pairs(self) -> tuple[tuple[int, int], ...]:
        """(width, rank) of those that a low-rank pair of matrices projects."""
        return tuple((width, rank) for width, rank in self._gates() if rank is not None)

    def small_weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        convolved = 2 * self._keys + self._values
        if self.convolution > 1:
            yield Weight("convolution", np.divide(convolved * self.convolution, split.tp))
        for width, rank in self._low_rank_pairs():
            yield Weight("gates down", float(rank * model.hidden_size), matrix=True)
            yield Weight("gates up", np.divide(width * rank, split.tp), matrix=True)
        decays = self.num_value_heads + self._decays()
        yield Weight("decays", np.divide(decays, split.tp), tensors=2)
        yield Weight("gated norm", float(self.value_head_dim))

    def inner_records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        for width, rank in self._low_rank_pairs():
            yield Gemm("gates down", d.sharded_tokens, float(rank), float(model.hidden_size))
            yield Gemm("gates up", d.tokens, width / d.tp, float(rank))
            yield SavedTensor("gates", d.tokens * (width / d.tp + rank), d.activation_bytes)
        keys = 2.0 * d.tokens * self._keys / d.tp
        yield MemoryBoundKernel("key norm", 4.0 * keys, 6.0 * keys)
        heads = d.tokens * self.num_value_heads / d.tp
        # The inverse matrix that corrects a chunk's values: one row for each token.
        rows = minimum(CHUNK, scanned_tokens(d))
        yield SavedTensor("chunk inverse", heads * rows, d.activation_bytes)
        yield SavedTensor("normed keys", keys, d.activation_bytes)
