"""Lightning attention: linear attention with a fixed decay for each head (MiniMax-01)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field

from cost_models.blocks.delta_net import TOKEN_S
from cost_models.blocks.norm import norm_parameters
from cost_models.blocks.records import Split, Weight
from cost_models.blocks.recurrence import Recurrence, Shape
from cost_models.fields import Count, Width
from cost_models.sources import formula

if TYPE_CHECKING:
    from cost_models.spec import StackSpec

BLOCK = 256.0  # tokens per block of its kernel


@formula("flop", "minimax-01")
def lightning_flop(block: float, head_dim: float) -> float:
    """Forward FLOP of one token and head: two products inside the block, two with the state."""
    return 4.0 * block * head_dim + 4.0 * head_dim**2


class LightningAttention(Recurrence):
    """Linear attention, with the model's heads by default; output_norm: over all heads or each."""

    sources: ClassVar[tuple[str, ...]] = ("minimax-01", "aiconfigurator")
    kind: Literal["lightning_attention"] = "lightning_attention"
    num_heads: Count | None = None
    head_dim: Width | None = None
    gate: bool = Field(True, description="an output gate as wide as the heads")
    output_norm: Literal["all", "head", "none"] = "all"
    qk_norm: bool = False

    def _widths(self, model: StackSpec) -> tuple[int, int]:
        return self.num_heads or model.num_attention_heads, self.head_dim or model.head_dim

    def shape(self, model: StackSpec) -> Shape:
        heads, head_dim = self._widths(model)
        inner = heads * head_dim
        return Shape(
            projected=(3 + self.gate) * inner,
            inner=inner,
            heads=heads,
            head_flop=lightning_flop(BLOCK, head_dim),
            token_s=TOKEN_S,
            state_per_head=float(head_dim**2),
            passed_per_head=head_dim**2 + 1.0,
            gate=inner * self.gate,
        )

    def small_weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        heads, head_dim = self._widths(model)
        if self.output_norm == "all":
            yield Weight("gated norm", np.divide(heads * head_dim, split.tp))
        if self.output_norm == "head":
            yield Weight("gated norm", float(head_dim))
        if self.qk_norm:
            yield Weight("qk norms", 2.0 * norm_parameters(model, head_dim), tensors=2)
