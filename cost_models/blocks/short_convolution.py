"""Gated short convolution: the mixer of most layers of LFM2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from cost_models.blocks.base import Mixer
from cost_models.blocks.records import (
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    TensorParallel,
    Weight,
)
from cost_models.blocks.recurrence import gathered_before, tokens_before
from cost_models.fields import Count

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


class ShortConvolution(Mixer):
    """B, C and x are projected from the hidden state; the output is C * convolution(B * x)."""

    sources: ClassVar[tuple[str, ...]] = ("lfm2",)
    kind: Literal["short_convolution"] = "short_convolution"
    taps: Count = 3
    bias: bool = False

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        hidden = model.hidden_size
        width = np.divide(hidden, split.tp)
        yield Weight("mixer in", 3.0 * width * hidden, matrix=True)
        yield Weight("convolution", self.taps * width)
        yield Weight("mixer out", width * hidden, matrix=True)
        if self.bias:
            yield Weight("mixer biases", 4.0 * width + hidden, tensors=3)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        hidden = float(model.hidden_size)
        width = hidden / d.tp
        size = d.tokens * width
        into = Gemm("mixer in", d.tokens, 3.0 * width, hidden, gathered_input=True)
        yield into
        yield SavedTensor("mixer in output", 3.0 * size, d.activation_bytes)
        yield MemoryBoundKernel("input gate", 6.0 * size, 10.0 * size)
        preceding = tokens_before(width, self.taps - 1, d)
        yield from gathered_before(preceding, d)
        yield MemoryBoundKernel("convolution", 4.0 * size, 6.0 * size)
        yield MemoryBoundKernel("output gate", 6.0 * size, 10.0 * size)
        yield SavedTensor("convolution input", size + preceding, d.activation_bytes)
        yield SavedTensor("convolution output", size, d.activation_bytes)
        yield SavedTensor("mixer out input", size, d.input_bytes)
        out = Gemm("mixer out", d.tokens, hidden, width, scattered_output=True, recomputed=1.0)
        yield out
        yield TensorParallel(hidden, (into,), (out,))
