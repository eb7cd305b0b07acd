"""FLOP of one optimizer step: what the model needs (MFU) and what the hardware runs (HFU).

Every number names its definition: `full` counts the whole attention square (PaLM appendix B,
SC'21), `causal` only the half that a causal model needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from cost_models.blocks.records import FlashAttention, Gemm, Record, Scan, Split
from cost_models.dims import Dims, dims
from cost_models.encoders import before_layers, frozen_encoders
from cost_models.kernels import gemm_flop
from cost_models.layers import LayerKind, layers_of
from cost_models.objectives import forward_share
from cost_models.packing import FloatArray, lengths_of, packed_span
from cost_models.plans import ParallelPlan, Plans
from cost_models.sources import Array, formula
from cost_models.spec import ModelSpec, TrainingSpec
from cost_models.trainable import TrainableModel

BACKWARD_PER_FORWARD = 2.0  # gradient of the input and of the weights, one GEMM each


@formula("flop", "megatron-2", "derived")
def matmul_flop(tokens: Array, parameters: Array) -> Array:
    """Forward FLOP of multiplying `tokens` rows with weight matrices of `parameters` elements."""
    return 2.0 * tokens * parameters


@lru_cache(maxsize=256)
@formula("1", "megatron-2", "deepseek-v2")
def layer_matrix_parameters(model: ModelSpec, kind: LayerKind) -> float:
    """Weight-matrix elements one token is multiplied with in a layer (no biases, no norms)."""
    weights = kind.weights(model, Split())
    return float(sum(weight.elements * weight.used for weight in weights if weight.matrix))


@formula("flop", "palm", "megatron-2")
def mixing_flop(
    model: ModelSpec,
    kind: LayerKind,
    tokens: float,
    seq_length: float,
    causal: bool,
    lengths: FloatArray | None = None,
) -> float:
    """Forward FLOP of a layer's products of activations with each other.

    Attention kernels run the causal half of Q K^T and P V: twice that is the whole square.
    lengths: of the samples in a sequence, if it has several.
    """
    packs = None if lengths is None else (seq_length, lengths)
    return products_flop(_records(model, kind, tokens, seq_length), causal, False, packs)


@lru_cache(maxsize=64)  # the whole square and its half count the same ones
def _records(
    model: ModelSpec, kind: LayerKind, tokens: float, seq_length: float
) -> tuple[Record, ...]:
    return tuple(kind.records(model, _sizes(tokens, seq_length)))


def _sizes(tokens: float, seq_length: float, encoder_tokens: int | None = None) -> Dims:
    """The sizes of a number of tokens on one rank."""
    return replace(
        _one_token(encoder_tokens), tokens=tokens, sharded_tokens=tokens,
        seq_length=seq_length, sequences=tokens / seq_length,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _one_token(encoder_tokens: int | None) -> Dims:
    training = TrainingSpec(seq_length=1, global_batch_size=1, encoder_tokens=encoder_tokens)
    return dims(training, Plans.of(ParallelPlan()))


@formula("flop", "palm", "megatron-2")
def products_flop(
    records: Iterable[Record],
    causal: bool,
    weights: bool,
    packs: tuple[float, FloatArray] | None = None,
) -> float:
    """Forward FLOP of matrix products and recurrences; weights: also of those with weights.

    packs: the length of a sequence, and of the samples in it, if it has several.
    """
    total: Array = 0.0
    for record in records:
        if isinstance(record, FlashAttention):
            square = 1.0 if causal or not record.causal else 2.0
            if packs is not None:
                span = float(np.max(record.span))
                square *= packed_span(span, *packs) / span
            total = total + record.forward_flop * record.active * square
        elif isinstance(record, Scan):
            total = total + record.forward_flop * record.active
        elif isinstance(record, Gemm) and (weights or not record.weights):
            total = total + gemm_flop(record.m, record.n, record.k) * record.groups * record.active
    return float(total)


@formula("flop", "palm", "megatron-2")
def forward_flop(
    model: ModelSpec,
    tokens: float,
    seq_length: float,
    causal: bool,
    lengths: FloatArray | None = None,
    encoder_tokens: int | None = None,
) -> float:
    """Forward FLOP of the model over a number of tokens, with the whole or the causal square."""
    packs = None if lengths is None else tuple(lengths.tolist())
    whole, half = _sequence_flop(model, seq_length, packs, encoder_tokens)
    return tokens / seq_length * (half if causal else whole)


@lru_cache(maxsize=256)  # the same for every batch size
def _sequence_flop(
    model: ModelSpec,
    seq_length: float,
    packs: tuple[float, ...] | None,
    encoder_tokens: int | None,
) -> tuple[float, float]:
    """Forward FLOP of the model over one sequence, with the whole and with the causal square.

    packs: lengths of the samples in it.
    """
    layers, predictions = layers_of(model), model.mtp_num_layers
    lengths = None if packs is None else np.array(packs)
    dense = (1.0 + predictions) * model.hidden_size * model.vocab_size
    dense += predictions * 2 * model.hidden_size**2
    d = _sizes(seq_length, seq_length, encoder_tokens)
    ends = [record for block in before_layers(model) for record in block.records(model, d)]
    for kind, count in zip(layers.kinds, layers.trained_counts, strict=True):
        dense += count * layer_matrix_parameters(model, kind)

    def counted(causal: bool) -> float:
        mixing = 0.0
        for kind, count in zip(layers.kinds, layers.trained_counts, strict=True):
            mixing += count * mixing_flop(model, kind, seq_length, seq_length, causal, lengths)
        first = products_flop(ends, causal, weights=True)
        return float(matmul_flop(seq_length, dense)) + mixing + first

    return counted(False), counted(True)


# Every plan of an answer is reported with the same.
@lru_cache(maxsize=256)
@formula("flop", "palm", "megatron-2", "lora")
def step_flop(model: ModelSpec, training: TrainingSpec, causal: bool = False) -> float:
    """Model FLOP of one optimizer step: forward and backward, nothing recomputed.

    A reference model adds its forward pass; a reward model has one output column instead of logits.
    Frozen matrices have no weight gradient: 4 FLOP per parameter and token, not 6.  Adapters have
    one, in addition to their forward pass.
    """
    tokens = float(training.tokens_per_iteration)
    lengths = lengths_of(training) if training.sample_lengths else None
    seq_length = float(training.seq_length)
    forward = forward_flop(model, tokens, seq_length, causal, lengths, training.encoder_tokens)
    step = (1.0 + BACKWARD_PER_FORWARD + forward_share(model, training)) * forward
    if training.loss == "reward":
        columns = model.hidden_size * (model.vocab_size - 1.0)
        step -= (1.0 + BACKWARD_PER_FORWARD) * float(matmul_flop(tokens, columns))
    if still := frozen_encoders(model, training):
        d = _sizes(tokens, seq_length, training.encoder_tokens)
        records = (record for encoder in still for record in encoder.records(model, d))
        step -= BACKWARD_PER_FORWARD * products_flop(records, causal, weights=True)
    if not training.freezes:
        return step
    frozen, adapters = _changed_parameters(model, training)
    return step + float(matmul_flop(tokens, 3.0 * adapters - frozen))


def _changed_parameters(model: ModelSpec, training: TrainingSpec) -> tuple[float, float]:
    """Elements by which one token is multiplied: (of frozen matrices, of adapters)."""
    layers, frozen, adapters = layers_of(model), 0.0, 0.0
    trainable = TrainableModel(model, training)
    for kind, count in zip(layers.kinds, layers.trained_counts, strict=True):
        weights = [w for w in trainable.weights(kind, Split()) if w.matrix]
        frozen += count * float(sum(w.elements * w.used for w in weights if not w.trained))
        every = float(sum(w.elements * w.used for w in weights))
        adapters += count * (every - layer_matrix_parameters(model, kind))
    if not training.trains("head") and training.loss != "reward":
        frozen += (1.0 + model.mtp_num_layers) * model.hidden_size * model.vocab_size
        frozen += 2.0 * model.mtp_num_layers * model.hidden_size**2
    return frozen, adapters
