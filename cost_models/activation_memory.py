"""Activation memory of one micro-batch: sums over the saved tensors in the records of blocks.

The sum over rows equals Table 2 of Korthikanti et al. to the byte, and the rows show which tensors
fill the memory.

Per-operator recompute ("op") is torchtitan's selective activation checkpointing: it keeps a block's
input, the outputs of attention, of every second matrix product in forward order, and of
tensor-parallel reduce-scatters; everything else is recomputed.

Not modelled: norm statistics of fused kernels (8 bytes per token and norm), random-number states,
word and position numbers, alignment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cost_models.arrays import laid_out, maximum
from cost_models.blocks.embedding import Embedding
from cost_models.blocks.head import Head
from cost_models.blocks.records import Record, SavedTensor, TensorParallel, Working
from cost_models.communication import pipeline_message_bytes
from cost_models.dims import Dims, dims
from cost_models.encoders import Encoded, encoded, frozen_encoders, trained_encoders
from cost_models.layers import LayerKind, layers_of
from cost_models.objectives import head_records
from cost_models.packing import packed
from cost_models.plans import Plans
from cost_models.sources import Array, formula
from cost_models.spec import ModelSpec, TrainingSpec
from cost_models.trainable import TrainableModel

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class MicroBatch:
    """The records of one micro-batch: of each kind of layer, of the embedding and of the head.

    frozen_encoders: encoders without a backward pass.
    """

    d: Dims
    kinds: tuple[LayerKind, ...]
    layers: tuple[tuple[Record, ...], ...]
    embedding: tuple[Record, ...]
    encoders: tuple[Encoded, ...]
    frozen_encoders: tuple[Encoded, ...]
    head: tuple[Record, ...]

    @property
    def before_layers(self) -> tuple[Record, ...]:
        """The records of blocks before the first layer that save tensors."""
        return (*self.embedding, *(r for encoder in self.encoders for r in encoder.records))


def micro_batch(model: ModelSpec, training: TrainingSpec, plans: Plans) -> MicroBatch:
    """The records of one micro-batch of each plan (or key, if `plans` has one row per key)."""
    d, kinds = dims(training, plans), layers_of(model).kinds
    trainable = TrainableModel(model, training)
    return MicroBatch(
        d,
        kinds,
        tuple(packed(trainable.records(kind, d), training, d) for kind in kinds),
        trainable.end(Embedding(), d),
        encoded(trained_encoders(model, training), model, d),
        encoded(frozen_encoders(model, training), model, d),
        tuple(head_records(trainable.end(Head(), d), training)),
    )


@formula("byte", "korthikanti-2022")
def saved_bytes(elements: Array, element_bytes: Array, kept_share: Array) -> Array:
    """Bytes of one saved tensor: elements x element size where it is kept (1) or not (0)."""
    return elements * element_bytes * kept_share


def saved_tensors(records: Iterable[Record]) -> Iterable[SavedTensor]:
    """The saved tensors of some records, in forward order."""
    return (record for record in records if isinstance(record, SavedTensor))


def tensor_bytes(tensor: SavedTensor, d: Dims) -> Array:
    """Bytes of one saved tensor that remain under the plan's selective recompute."""
    kept_share: Array = tensor.active
    for module in tensor.dropped_by:
        kept_share = kept_share * (1.0 - d.recomputed(module))
    kept_share = kept_share * (1.0 - d.by_operator * (1.0 - tensor.by_operator))
    if tensor.pointwise:
        kept_share = kept_share * (1.0 - d.products_only)
    return saved_bytes(tensor.elements, tensor.element_bytes, kept_share)


def activation_bytes(records: Iterable[Record], d: Dims) -> tuple[Array, Array]:
    """Bytes of one block for one micro-batch: (kept until its backward, recomputed there).

    Selective recompute drops the second part, which exists again during that one layer's backward.
    """
    kept_bytes: Array = 0.0
    every: Array = 0.0
    for tensor in saved_tensors(records):
        kept_bytes = kept_bytes + tensor_bytes(tensor, d)
        every = every + saved_bytes(tensor.elements, tensor.element_bytes, tensor.active)
    return kept_bytes, every - kept_bytes


@formula("byte", "korthikanti-2022")
def layer_input_bytes(model: ModelSpec, d: Dims) -> Array:
    """Bytes of a layer's input: full recompute keeps nothing else (2sbh, or 2sbh/t)."""
    return d.sharded_tokens * model.hidden_size * model.residual_streams * d.residual_bytes


def working_bytes(records: Iterable[Record]) -> Array:
    """The largest number of bytes that are alive only during the backward pass of a layer.

    The backward pass begins at the last block; memory that this frees is free again when the
    blocks before it run.
    """
    freed: Array = 0.0
    fullest: Array = 0.0
    for record in reversed([r for r in records if isinstance(r, Working)]):
        fullest = maximum(fullest, record.alive_bytes - freed)
        freed = freed + record.freed_bytes
    return fullest


@formula("byte", "derived")
def gathered_input_bytes(model: ModelSpec, d: Dims) -> Array:
    """Bytes of the gathered input of a weight gradient, if the input was saved in shards."""
    gathered = (d.tokens - d.sharded_tokens) * (1.0 - d.runtime.keeps_gathered_input)
    return gathered * model.hidden_size * d.activation_bytes


@dataclass(frozen=True)
class LayerBytes:
    """Bytes that a layer keeps of a micro-batch, drops, and uses temporarily: arrays over keys."""

    saved: FloatArray
    dropped: FloatArray
    working: FloatArray


@dataclass(frozen=True)
class MicroBatchBytes:
    """Activation memory of one micro-batch on one rank, by key; layers: by kind."""

    layers: tuple[LayerBytes, ...]
    layer_input: FloatArray
    embedding_saved: FloatArray
    head_saved: FloatArray
    head_working: FloatArray
    message: FloatArray


def micro_batch_bytes(model: ModelSpec, micro: MicroBatch, keys: int) -> MicroBatchBytes:
    """An array of bytes with one value per key."""
    d = micro.d

    full = partial(laid_out, count=keys)

    def layer(records: tuple[Record, ...]) -> LayerBytes:
        kept_bytes, dropped_bytes = activation_bytes(records, d)
        columns = (r.columns for r in records if isinstance(r, TensorParallel))
        trained = any(gemm.trained for gemms in columns for gemm in gemms)
        working = working_bytes(records) + gathered_input_bytes(model, d) * trained
        return LayerBytes(full(kept_bytes), full(dropped_bytes), full(working))

    # Every rank of a tp group sends what it holds (the shard or the whole tensor), unless the
    # runtime scatters it before and gathers it after.
    scattered = d.runtime.scatters_messages
    width = float(model.hidden_size * model.residual_streams)
    sent = d.sharded_tokens * (1.0 - scattered) + d.tokens / d.tp * scattered
    return MicroBatchBytes(
        layers=tuple(layer(records) for records in micro.layers),
        layer_input=full(layer_input_bytes(model, d)),
        embedding_saved=full(activation_bytes(micro.before_layers, d)[0]),
        head_saved=full(activation_bytes(micro.head, d)[0]),
        head_working=full(working_bytes(micro.head)),
        message=full(pipeline_message_bytes(sent, width, d.activation_bytes)),
    )
