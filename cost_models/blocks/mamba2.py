"""Mamba-2: a state-space model with a scalar decay for each head (SSD)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.arrays import maximum
from cost_models.blocks.records import Split, Weight
from cost_models.blocks.recurrence import Recurrence, Shape
from cost_models.fields import Count, Width
from cost_models.sources import formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.sources import Array
    from cost_models.spec import StackSpec

# 8,192 tokens in 715 us (aiconfigurator, mamba2_chunk_scan on B200: 64 and 128 heads of 64).
TOKEN_S = 715e-6 / 8192


@formula("flop", "mamba-2")
def ssd_flop(chunk: float, head_dim: float, state: float, heads_per_group: float) -> float:
    """Forward FLOP of one token and head of chunked SSD.

    Inside the chunk: C B^T (once per group) and its product with X.  Across chunks: the chunk's
    state, and the output from the state before it.
    """
    inside = 2.0 * chunk * (state / heads_per_group + head_dim)
    return inside + 4.0 * head_dim * state


class Mamba2(Recurrence):
    """num_heads heads of head_dim; B and C are shared by the heads of a group."""

    sources: ClassVar[tuple[str, ...]] = ("mamba-2", "megatron-core", "aiconfigurator")
    kind: Literal["mamba2"] = "mamba2"
    num_heads: Count
    head_dim: Width
    state_size: Width
    num_groups: Count = 1
    convolution: Count = Field(4, description="taps of the short convolution")
    convolution_bias: bool = True
    bias: bool = Field(False, description="of both projections")
    gated_norm: bool = Field(True, description="a norm over the gated output")
    chunk_size: Count = 128

    @property
    def _inner(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def _convolved(self) -> int:
        return self._inner + 2 * self.num_groups * self.state_size

    def missing(self, model: StackSpec) -> str:
        if self.num_heads % self.num_groups:
            return f"num_heads {self.num_heads} is not a multiple of num_groups {self.num_groups}"
        return ""

    def biases(self) -> tuple[bool, bool]:
        return self.bias, self.bias

    def shape(self, model: StackSpec) -> Shape:
        per_group = self.num_heads / self.num_groups
        return Shape(
            projected=self._inner + self._convolved + self.num_heads,
            inner=self._inner,
            heads=self.num_heads,
            head_flop=ssd_flop(self.chunk_size, self.head_dim, self.state_size, per_group),
            token_s=TOKEN_S,
            state_per_head=float(self.head_dim * self.state_size),
            passed_per_head=self.head_dim * self.state_size + 1.0,
            convolved=self._convolved,
            taps=self.convolution,
            gate=self._inner,
            fused_convolution=True,
        )

    def exchanged_widths(self, model: StackSpec, d: Dims) -> tuple[Array, ...]:
        """Gate, values, B, C and time steps; ranks that share a group each get its B and C."""
        ranks = maximum(d.tp * d.cp / self.num_groups, 1.0)
        inner, group = self._inner / d.tp, self.num_groups * self.state_size / d.tp * ranks
        return inner, inner, group, group, self.num_heads / d.tp

    def small_weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """A, D and the time-step bias per head; the convolution per channel."""
        yield Weight("convolution", np.divide(self._convolved * self.convolution, split.tp))
        if self.convolution_bias:
            yield Weight("convolution bias", np.divide(self._convolved, split.tp))
        yield Weight("decays", np.divide(3 * self.num_heads, split.tp), tensors=3)
        if self.gated_norm:
            yield Weight("gated norm", np.divide(self._inner, split.tp))
