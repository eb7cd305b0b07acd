"""Mamba: a selective state-space model with a decay for each channel and state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.blocks.records import Collective, Gemm, Record, SavedTensor, Split, Weight
from cost_models.blocks.recurrence import Recurrence, Shape
from cost_models.fields import Count, Width
from cost_models.sources import formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


@formula("flop", "mamba")
def selective_scan_flop(state: float) -> float:
    """Forward FLOP of one token and channel: exponential, decay, input, sum and output."""
    return 9.0 * state


class Mamba(Recurrence):
    """A scan of inner_size channels; time steps are projected from time_step_rank values."""

    sources: ClassVar[tuple[str, ...]] = ("mamba",)
    kind: Literal["mamba"] = "mamba"
    inner_size: Width
    state_size: Width
    time_step_rank: Width
    convolution: Count = Field(4, description="taps of the short convolution")
    convolution_bias: bool = True
    bias: bool = Field(False, description="of both projections")
    selection_norms: bool = Field(False, description="norms of step, B and C (Jamba)")

    def biases(self) -> tuple[bool, bool]:
        return self.bias, self.bias

    def shape(self, model: StackSpec) -> Shape:
        return Shape(
            projected=2 * self.inner_size,
            inner=self.inner_size,
            heads=self.inner_size,
            head_flop=selective_scan_flop(self.state_size),
            token_s=0.0,
            state_per_head=float(self.state_size),
            passed_per_head=2.0 * self.state_size,
            taps=self.convolution,
            convolved=self.inner_size,
            gate=self.inner_size,
            fused_convolution=True,
            matrices=False,
        )

    def small_weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        inner, state, rank = self.inner_size, self.state_size, self.time_step_rank
        yield Weight("convolution", np.divide(inner * self.convolution, split.tp))
        if self.convolution_bias:
            yield Weight("convolution bias", np.divide(inner, split.tp))
        selected = (rank + 2 * state) * inner
        yield Weight("selection", np.divide(selected, split.tp), matrix=True)
        yield Weight("time step", np.divide(rank * inner, split.tp), matrix=True)
        yield Weight("time step bias", np.divide(inner, split.tp))
        yield Weight("decays", np.divide((state + 1) * inner, split.tp), tensors=2)
        if self.selection_norms:
            yield Weight("selection norms", float(rank + 2 * state), tensors=3)

    def inner_records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Time step, B and C of a token depend on all channels, so they are all-reduced."""
        inner, selected = self.inner_size / d.tp, float(self.time_step_rank + 2 * self.state_size)
        yield Gemm("selection", d.tokens, selected, inner)
        payload = d.tokens * selected * d.activation_bytes
        yield Collective(("all_reduce",), payload, "tp")
        yield Gemm("time step", d.tokens, inner, float(self.time_step_rank))
        # The fused kernel recomputes convolution and time step (mamba_ssm, checkpoint_lvl 1).
        yield SavedTensor("selection", d.tokens * selected, d.activation_bytes)
