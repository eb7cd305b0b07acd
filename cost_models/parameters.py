"""Exact parameter counts: of one layer per rank, of the ends of the model, of the whole.

Sums over the weights of blocks.  Counts are float64, exact below 2**53, and broadcast over tp, etp
and ep.  What is split over tensor-parallel ranks follows Megatron-Core: column-parallel weights and
their biases and row-parallel weights are divided by tp; row-parallel biases, norms over h and the
router are held whole by every rank.

Not counted: buffers (rotary tables, the score-correction bias that DeepSeek-V3 balances experts
with and no gradient reaches).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from cost_models.arrays import maximum, sum_of
from cost_models.blocks.embedding import padded_vocab_size
from cost_models.blocks.head import Head
from cost_models.blocks.norm import norm_parameters
from cost_models.blocks.records import Split, Weight
from cost_models.encoders import before_layers
from cost_models.layers import layers_of
from cost_models.sources import Array, formula
from cost_models.spec import ModelSpec

__all__ = ["padded_vocab_size"]


def elements(weights: Iterable[Weight]) -> Array:
    """The number of elements of some weights."""
    return sum_of(weight.elements for weight in weights)


@formula("1", "derived")
def widest_matrix_parameters(model: ModelSpec, split: Split, together: bool = False) -> Array:
    """Parameters of the largest matrix of any layer per rank.

    together: that of all experts is one, and those that a product takes at once are apart.
    """
    widest: Array = 0.0
    for kind in layers_of(model).kinds:
        for weight in kind.weights(model, split):
            if weight.matrix:
                parts = weight.tensors if together else weight.copies
                widest = maximum(widest, weight.elements / parts)
    return widest


@formula("1", "megatron-core")
def embedding_parameters(model: ModelSpec, tp: Array, divisible_by: int = 128) -> Array:
    """Parameters before the first layer per tensor-parallel rank."""
    blocks = before_layers(model, divisible_by)
    return elements(w for block in blocks for w in block.weights(model, Split(tp)))


@formula("1", "megatron-core")
def output_layer_parameters(model: ModelSpec, tp: Array, divisible_by: int = 128) -> Array:
    """Parameters after the last layer per tensor-parallel rank: final norm, head, head bias."""
    return elements(Head(divisible_by=divisible_by).weights(model, Split(tp)))


@formula("1", "deepseek-v3")
def prediction_parameters(model: ModelSpec, tp: Array) -> Array:
    """Parameters of one multi-token-prediction layer per rank, beyond those of a usual layer.

    DeepSeek-V3, section 2.2: norms of the hidden state and of the embedding, a 2h -> h projection
    (column-parallel) and a final norm; embedding and head are shared.
    """
    projection = np.divide(2.0 * model.hidden_size**2, tp)
    return projection + 3.0 * norm_parameters(model, model.hidden_size)


@lru_cache(maxsize=256)
@formula("1", "derived")
def total_parameters(model: ModelSpec) -> int:
    """Parameters of the whole model, vocabulary unpadded, a tied table once.

    Without multi-token-prediction layers, which are dropped after training: the published 671
    billion of DeepSeek-V3 count so.  Training them adds a layer and `prediction_parameters` each.
    """
    return _whole_model(model, active=False)


@formula("1", "derived")
def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token uses: as total_parameters, with top_k of the routed experts."""
    return _whole_model(model, active=True)


def _whole_model(model: ModelSpec, active: bool) -> int:
    count = embedding_parameters(model, 1.0, 1) + output_layer_parameters(model, 1.0, 1)
    layers = layers_of(model)
    for kind, number in zip(layers.kinds, layers.counts, strict=True):
        for weight in kind.weights(model, Split()):
            count = count + number * weight.elements * (weight.used if active else 1.0)
    return round(float(count))


@formula("1", "derived")
def tensors_of(weights: Iterable[Weight]) -> float:
    """The number of parameter tensors of some weights; queries, keys and values are separate."""
    return sum(weight.tensors for weight in weights)
