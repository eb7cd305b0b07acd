"""RWKV: a decay for each channel, and feed-forwards that look one token back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.blocks.base import FeedForward
from cost_models.blocks.records import (
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    TensorParallel,
    Weight,
)
from cost_models.blocks.recurrence import Recurrence, Shape, gathered_before, tokens_before
from cost_models.fields import Width
from cost_models.sources import formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


@formula("flop", "rwkv")
def wkv_flop() -> float:
    """Forward FLOP of one token and channel: two exponentials, two sums updated and read."""
    return 12.0


def _token_before(hidden: float, d: Dims) -> Iterator[Record]:
    """The last token of the context-parallel rank before, to mix into this rank's first token."""
    preceding = tokens_before(hidden, 1, d)
    yield from gathered_before(preceding, d)
    yield SavedTensor("token before", preceding, d.activation_bytes)


class TimeMix(Recurrence):
    """RWKV-4's attention: a recurrence for each channel, gated by the receptance."""

    sources: ClassVar[tuple[str, ...]] = ("rwkv",)
    kind: Literal["rwkv_time_mix"] = "rwkv_time_mix"
    width: Width | None = Field(None, description="None: the model's hidden_size")

    def _width(self, model: StackSpec) -> int:
        return self.width or model.hidden_size

    def shape(self, model: StackSpec) -> Shape:
        width = self._width(model)
        return Shape(
            projected=3 * width, inner=width, heads=width, head_flop=wkv_flop(), token_s=0.0,
            state_per_head=3.0, passed_per_head=4.0, gate=width, matrices=False,
        )  # fmt: skip

    def small_weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        """Mixing weights for key, value and receptance; decay and bonus; all per channel."""
        yield Weight("token shift", 3.0 * model.hidden_size, tensors=3)
        yield Weight("decays", np.divide(2 * self._width(model), split.tp), tensors=2)

    def inner_records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        yield from _token_before(float(model.hidden_size), d)
        shifted = 3.0 * d.tokens * model.hidden_size
        yield MemoryBoundKernel("token shift", 4.0 * shifted, 6.0 * shifted)
        yield SavedTensor("shifted inputs", shifted, d.activation_bytes)


class ChannelMix(FeedForward):
    """RWKV-4's feed-forward: squared ReLU, gated by a receptance as wide as the hidden state."""

    sources: ClassVar[tuple[str, ...]] = ("rwkv",)
    kind: Literal["rwkv_channel_mix"] = "rwkv_channel_mix"
    width: Width | None = Field(None, description="None: the model's ffn_hidden_size")

    def _width(self, model: StackSpec) -> int:
        return self.width or model.ffn_hidden_size

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        hidden, width = model.hidden_size, np.divide(self._width(model), split.tp)
        yield Weight("token shift", 2.0 * hidden, tensors=2)
        yield Weight("fc1", width * hidden, matrix=True)
        yield Weight("fc2", width * hidden, matrix=True)
        yield Weight("receptance", float(hidden * hidden), matrix=True)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        hidden, width = float(model.hidden_size), self._width(model) / d.tp
        shifted, inner = 2.0 * d.tokens * hidden, d.tokens * width
        yield from _token_before(hidden, d)
        yield MemoryBoundKernel("token shift", 4.0 * shifted, 6.0 * shifted)
        yield SavedTensor("shifted inputs", shifted, d.activation_bytes)
        into = Gemm("fc1", d.tokens, width, hidden, gathered_input=True)
        out = Gemm("fc2", d.tokens, hidden, width, scattered_output=True)
        yield into
        yield MemoryBoundKernel("activation", 4.0 * inner, 6.0 * inner)
        yield SavedTensor("fc1 output", inner, d.activation_bytes)
        yield SavedTensor("activation output", inner, d.input_bytes)
        yield out
        yield Gemm("receptance", d.sharded_tokens, hidden, hidden)
        gated = d.sharded_tokens * hidden
        yield MemoryBoundKernel("receptance gate", 6.0 * gated, 10.0 * gated)
        yield SavedTensor("receptance and fc2 output", 2.0 * gated, d.activation_bytes)
        yield TensorParallel(hidden, (into,), (out,))
