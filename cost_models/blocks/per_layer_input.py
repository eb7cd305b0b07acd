"""Per-layer embeddings, added after each layer's feed-forward (Gemma 3n and 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from cost_models.blocks.base import FeedForward
from cost_models.blocks.records import Gemm, MemoryBoundKernel, Record, SavedTensor, Split, Weight
from cost_models.fields import Width

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


class PerLayerInput(FeedForward):
    """The hidden state gates the layer's embedding of the token, which is projected and added."""

    sources: ClassVar[tuple[str, ...]] = ("gemma-3n",)
    gathers: ClassVar[bool] = False
    norms: ClassVar[float | None] = 1.0
    kind: Literal["per_layer_input"] = "per_layer_input"
    size: Width

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        matrices = 2.0 * self.size * model.hidden_size
        yield Weight("per-layer input", matrices, matrix=True, tensors=2)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        hidden, size, tokens = float(model.hidden_size), float(self.size), d.sharded_tokens
        yield Gemm("per-layer gate", tokens, size, hidden)
        yield MemoryBoundKernel("per-layer gate", 6.0 * tokens * size, 10.0 * tokens * size)
        yield SavedTensor("per-layer gate", 3.0 * tokens * size, d.activation_bytes)
        yield Gemm("per-layer projection", tokens, hidden, size)
