"""Encoders of images and other inputs, and all blocks before the first layer of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from cost_models.blocks.base import End
from cost_models.blocks.embedding import Embedding
from cost_models.blocks.norm import norm_parameters, norm_statistics
from cost_models.blocks.records import (
    Collective,
    Gemm,
    MemoryBoundKernel,
    Record,
    SavedTensor,
    Split,
    Weight,
)
from cost_models.dims import Dims
from cost_models.layers import layers_of
from cost_models.spec import EncoderSpec, ModelSpec, TrainingSpec


class Encoder(End):
    """An encoder: the projection of patches, its layers, and the projector to the model's width.

    Tensor-parallel ranks split its layers as they split the model's; context-parallel ranks split
    its positions.  Its output vectors are gathered over both groups, since any rank may hold their
    tokens.  It is never recomputed: without --recompute-vision, Megatron-LM's
    examples/multimodal/model.py removes the recompute settings.  Megatron-Bridge gives the encoder
    of Qwen3-VL those of the text model (modelling_qwen3_vl/transformer_config.py); a plan has no
    field for that yet.
    """

    sources: ClassVar[tuple[str, ...]] = ("megatron-core", "torch")
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
        spec, dims = self.spec, self.dims(d)
        hidden, positions = float(spec.hidden_size), dims.sharded_tokens
        if spec.input_width is not None:
            values = float(spec.input_width)
            yield Gemm("patches", positions, hidden, values, fp8=False)
            yield SavedTensor("patches", positions * values, d.activation_bytes)
        layers = layers_of(spec)
        for kind in layers.order:
            for record in layers.kinds[kind].records(spec, dims):
                if isinstance(record, SavedTensor):
                    record = replace(record, dropped_by=(), by_operator=1.0)
                yield record
        if spec.final_norm:
            size = positions * hidden
            yield MemoryBoundKernel("encoder norm", 4.0 * size, 6.0 * size)
            yield SavedTensor("norm input", size, d.activation_bytes)
            yield replace(norm_statistics(spec, d, "", positions), name="norm statistics")
        yield from self._projector(model, dims)

    def _projector(self, model: ModelSpec, dims: Dims) -> Iterator[Record]:
        """The records of the projector: matrix products with an activation between them."""
        spec = self.spec
        vectors = dims.sharded_tokens / spec.merge
        for number, product in enumerate(spec.projector, 1):
            rows = vectors * product.times
            yield Gemm("projector", rows, float(product.outputs), float(product.inputs))
            yield SavedTensor("projector input", rows * product.inputs, dims.input_bytes)
            if number < len(spec.projector):
                size = rows * product.outputs
                yield MemoryBoundKernel("projector activation", 4.0 * size, 6.0 * size)
                yield SavedTensor("projector output", size, dims.activation_bytes)
        size = dims.tokens / spec.merge * model.hidden_size * dims.activation_bytes
        sharded = 1.0 * (dims.sharded_tokens < dims.tokens)
        yield Collective(("all_gather",), size, "tp", active=sharded)
        yield Collective(("all_gather",), size * dims.cp, "cp")

    def dims(self, d: Dims) -> Dims:
        """The sizes of its own sequences: no image attends to another, and none is recomputed."""
        every = float(d.encoder_tokens or self.spec.tokens)
        span = min(float(self.spec.span or self.spec.tokens), every)
        share = every / d.seq_length
        return replace(
            d, sequences=d.sequences * every / span, seq_length=span,
            tokens=d.tokens * share, sharded_tokens=d.sharded_tokens * share,
            modules=np.zeros_like(d.modules), by_operator=0.0, products_only=0.0,
        )  # fmt: skip


@dataclass(frozen=True)
class Encoded:
    """The records of an encoder, and the sizes and width of its collectives."""

    d: Dims
    spec: EncoderSpec
    records: tuple[Record, ...]


def encoded(encoders: tuple[Encoder, ...], model: ModelSpec, d: Dims) -> tuple[Encoded, ...]:
    """The records of encoders for one micro-batch of the model."""
    return tuple(
        Encoded(encoder.dims(d), encoder.spec, tuple(encoder.records(model, d)))
        for encoder in encoders
    )


def frozen_encoders(model: ModelSpec, training: TrainingSpec) -> tuple[Encoder, ...]:
    """Encoders that are frozen: no backward pass runs through them."""
    return () if training.trains(Encoder.part) else _encoders(model)


def trained_encoders(model: ModelSpec, training: TrainingSpec) -> tuple[Encoder, ...]:
    """Encoders that are trained with the model."""
    return _encoders(model) if training.trains(Encoder.part) else ()


def _encoders(model: ModelSpec) -> tuple[Encoder, ...]:
    return tuple(Encoder(spec=spec) for spec in model.encoders)


def before_layers(model: ModelSpec, divisible_by: int = 128) -> tuple[End, ...]:
    """The blocks before the first layer, which the first pipeline stage holds."""
    return (Embedding(divisible_by=divisible_by), *_encoders(model))
