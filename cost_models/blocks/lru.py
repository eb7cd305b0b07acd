"""Gated linear recurrent unit: a decay for each channel, made from the input (Griffin)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from cost_models.blocks.records import Gemm, Record, SavedTensor, Split, Weight
from cost_models.blocks.recurrence import Recurrence, Shape
from cost_models.fields import Count, Width
from cost_models.sources import formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


@formula("flop", "griffin")
def lru_flop() -> float:
    """Forward FLOP of one token and channel: exponential, root, two products and a sum."""
    return 8.0


class LinearRecurrentUnit(Recurrence):
    """Two branches of `width` channels; the gates are block-diagonal projections."""

    sources: ClassVar[tuple[str, ...]] = ("griffin",)
    kind: Literal["linear_recurrent_unit"] = "linear_recurrent_unit"
    width: Width
    num_blocks: Count
    convolution: Count = 4

    def missing(self, model: StackSpec) -> str:
        if self.width % self.num_blocks:
            return f"width {self.width} is not a multiple of num_blocks {self.num_blocks}"
        return ""

    def biases(self) -> tuple[bool, bool]:
        return True, True

    def shape(self, model: StackSpec) -> Shape:
        return Shape(
            projected=2 * self.width, inner=self.width, heads=self.width, head_flop=lru_flop(),
            token_s=0.0, state_per_head=1.0, passed_per_head=2.0, taps=self.convolution,
            convolved=self.width, gate=self.width, matrices=False,
        )  # fmt: skip

    def small_weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        width = np.divide(self.width, split.tp)
        yield Weight("convolution", width * (self.convolution + 1), tensors=2)
        yield Weight("gates", 2.0 * width * self.width / self.num_blocks, matrix=True, tensors=2)
        yield Weight("gates bias", 2.0 * width, tensors=2)
        yield Weight("decays", width)

    def inner_records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        width, block = self.width / d.tp, self.width / self.num_blocks
        yield Gemm("gates", d.tokens, 2.0 * block, block, groups=width / block)
        yield SavedTensor("gates", 2.0 * d.tokens * width, d.activation_bytes)
