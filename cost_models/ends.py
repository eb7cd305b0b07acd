"""What stands before the first layer: the word table, and encoders of other inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from cost_models.blocks.base import End
from cost_models.blocks.embedding import Embedding
from cost_models.blocks.norm import norm_parameters
from cost_models.blocks.records import Gemm, Pass, Record, SavedTensor, Split, Weight
from cost_models.dims import Dims
from cost_models.layers import layers_of
from cost_models.spec import EncoderSpec, ModelSpec, TrainingSpec


class Encoder(End):
    """Patches projected, the encoder's layers, and the projector to the model's width.

    Tensor-parallel ranks split its layers as the model's; context-parallel ranks its positions.
    """

    sources: ClassVar[tuple[str, ...]] = ("megatron-core",)
    part: ClassVar[str] = "encoders"
    spec: EncoderSpec

    def weights(self, model: ModelSpec, split: Split) -> Iterator[Weight]:
        spec = self.spec
        if spec.input_width is not None:
            yield Weight("patches", float(spec.input_width * spec.hidden_size), matrix=True)
        if spec.position == "learned" and spec.max_position_embeddings is not None:
            yield Weight("patch positions", float(spec.max_position_embeddings * spec.hidden_size))
        layers = layers_of(spec)
        for kind, count in zip(layers.kinds, layers.counts, strict=True):
            for weight in kind.weights(spec, split):
                yield replace(
                    weight, elements=weight.elements * count, tensors=weight.tensors * count
                )
        if spec.final_norm:
            yield Weight("encoder norm", norm_parameters(spec, spec.hidden_size))
        projector = sum(product.elements for product in spec.projector)
        yield Weight("projector", projector, matrix=True, tensors=len(spec.projector))
        yield Weight("other encoder parameters", float(spec.other_parameters))

    def records(self, model: ModelSpec, d: Dims) -> Iterator[Record]:
        spec, own = self.spec, self._dims(d)
        hidden = float(spec.hidden_size)
        if spec.input_width is not None:
            yield Gemm("patches", own.sharded_tokens, hidden, float(spec.input_width), fp8=False)
        layers = layers_of(spec)
        for kind in layers.order:
            yield from layers.kinds[kind].records(spec, own)
        size = own.sharded_tokens * hidden
        yield Pass("encoder norm", 4.0 * size, 6.0 * size)
        yield SavedTensor("encoder norm input and output", 2.0 * size, d.activation_bytes)
        for product in spec.projector:
            vectors = own.sharded_tokens / spec.merge * product.times
            yield Gemm("projector", vectors, float(product.outputs), float(product.inputs))
            yield SavedTensor("projector output", vectors * product.outputs, d.activation_bytes)

    def _dims(self, d: Dims) -> Dims:
        """The sizes of its own sequences: images are apart from each other."""
        every = float(d.encoder_tokens or self.spec.tokens)
        span = min(float(self.spec.span or self.spec.tokens), every)
        share = every / d.seq_length
        return replace(
            d, sequences=d.sequences * every / span, seq_length=span,
            tokens=d.tokens * share, sharded_tokens=d.sharded_tokens * share,
        )  # fmt: skip


def frozen_encoders(model: ModelSpec, training: TrainingSpec) -> tuple[Encoder, ...]:
    """Encoders that nothing runs backward through."""
    return () if training.trains(Encoder.part) else _encoders(model)


def trained_encoders(model: ModelSpec, training: TrainingSpec) -> tuple[Encoder, ...]:
    """Encoders that are trained with the model."""
    return _encoders(model) if training.trains(Encoder.part) else ()


def _encoders(model: ModelSpec) -> tuple[Encoder, ...]:
    return tuple(Encoder(spec=spec) for spec in model.encoders)


def before_layers(model: ModelSpec, divisible_by: int = 128) -> tuple[End, ...]:
    """The blocks before the first layer, which the first pipeline stage holds."""
    return (Embedding(divisible_by=divisible_by), *_encoders(model))
