"""The word table, positions, and the other inputs of the first layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cost_models.blocks.base import End
from cost_models.blocks.norm import FP32_BYTES, MASK_BYTES, norm_parameters
from cost_models.blocks.records import (
    Boundary,
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    Weight,
)
from cost_models.sources import Array, formula

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import ModelSpec


@formula("1", "megatron-core")
def padded_vocab_size(vocab_size: Array, tp: Array, divisible_by: Array = 128.0) -> Array:
    """Rows of the word embedding table over all tensor-parallel ranks.

    V rounded up to a multiple of divisible_by x tp (`--make-vocab-size-divisible-by`, 128).
    """
    multiple = np.multiply(divisible_by, tp)
    return np.ceil(np.divide(vocab_size, multiple)) * multiple


class Embedding(End):
    """The word table is padded and split by rows; learned positions and the norm are replicated."""

    sources: ClassVar[tuple[str, ...]] = ("megatron-core",)
    part: ClassVar[str] = "embedding"
    divisible_by: int = 128

    def weights(self, model: ModelSpec, split: Split) -> Iterator[Weight]:
        rows = np.divide(padded_vocab_size(model.vocab_size, split.tp, self.divisible_by), split.tp)
        table = model.embedding_size or model.hidden_size
        yield Weight("word table", rows * table, side=table)
        if model.position == "learned" and model.max_position_embeddings is not None:
            size = float(model.max_position_embeddings * model.hidden_size)
            yield Weight("positions", size, side=model.hidden_size)
        if model.embedding_norm:
            norm = norm_parameters(model, model.hidden_size)
            yield Weight("embedding norm", norm, tensors=1 + model.norm_bias)
        if model.per_layer_input_size is not None:
            width = model.num_layers * model.per_layer_input_size
            vocab = model.per_layer_input_vocab_size
            yield Weight("per-layer table", (np.divide(vocab, split.tp) if vocab else rows) * width)
            yield Weight("per-layer projection", float(width * model.hidden_size), matrix=True)
            yield Weight("per-layer norm", float(model.per_layer_input_size))
        if model.other_parameters:
            yield Weight("other parameters", float(model.other_parameters))

    def records(self, model: ModelSpec, d: Dims) -> Iterator[Record]:
        """Row look-up forward; scatter-add into fp32 gradients backward.

        With the table split by rows, ranks all-reduce (or reduce-scatter) the rows they looked up;
        backward gathers.
        """
        size = d.tokens * model.hidden_size
        positions = 1.0 if model.position == "learned" else 0.0
        yield MemoryBoundKernel(
            "embedding", (4.0 + 4.0 * positions) * size, 10.0 * size, kind="embedding"
        )
        yield Boundary()
        if model.embedding_norm:
            yield MemoryBoundKernel("embedding norm", 4.0 * size, 6.0 * size)
        if model.hidden_dropout > 0:
            yield MemoryBoundKernel("embedding dropout", 5.0 * size, 5.0 * size)
            mask = d.sharded_tokens * model.hidden_size
            yield SavedTensor("embedding dropout mask", mask, MASK_BYTES, by_operator=1.0)
        if model.per_layer_input_size is not None:
            # A looked-up row plus a normed projection of the embedding.
            width = float(model.num_layers * model.per_layer_input_size)
            yield Gemm("per-layer projection", d.sharded_tokens, width, float(model.hidden_size))
            inputs = d.sharded_tokens * width
            yield MemoryBoundKernel("per-layer inputs", 12.0 * inputs, 20.0 * inputs)
            yield SavedTensor("per-layer inputs", 2.0 * inputs, d.activation_bytes)
            rows = d.sharded_tokens * float(model.num_layers) * d.runtime.keeps_norm_statistics
            yield SavedTensor("per-layer norm statistics", rows, FP32_BYTES)
