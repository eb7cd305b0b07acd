"""Hyper-connections: several residual streams; blocks read and write weighted sums of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from cost_models.blocks.base import Block
from cost_models.blocks.norm import FP32_BYTES
from cost_models.blocks.records import Gemm, MemoryBoundKernel, Record, SavedTensor, Split, Weight

if TYPE_CHECKING:
    from cost_models.dims import Dims
    from cost_models.spec import StackSpec


class HyperConnection(Block):
    """Mixture weights computed from a token's streams: to read them, write to them and mix them."""

    sources: ClassVar[tuple[str, ...]] = ("mhc", "deepseek-v4")

    def weights(self, model: StackSpec, split: Split) -> Iterator[Weight]:
        streams = model.residual_streams
        mixtures = (2 + streams) * streams
        width = float(streams * model.hidden_size)
        yield Weight("stream mixtures", mixtures * width, matrix=True, placeholder=False)
        yield Weight("stream offsets", mixtures + 3.0, tensors=2)

    def records(self, model: StackSpec, d: Dims) -> Iterator[Record]:
        """Streams are read for the mixtures, for the block's input and to add its output."""
        streams = float(model.residual_streams)
        mixtures, size = (2.0 + streams) * streams, d.sharded_tokens * model.hidden_size
        width = streams * model.hidden_size
        yield Gemm("stream mixtures", d.sharded_tokens, mixtures, width, fp8=False)
        moved = (4.0 * streams + 2.0) * size
        yield MemoryBoundKernel("streams", 2.0 * moved, 4.0 * moved)
        yield SavedTensor("streams", streams * size, d.activation_bytes)
        # The rest is recomputed from the mixtures; their gradient needs the block's output.
        yield SavedTensor("stream mixtures", d.sharded_tokens * mixtures, FP32_BYTES)
        yield SavedTensor("stream outputs", size, d.activation_bytes)
