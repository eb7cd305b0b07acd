"""Exact parameter counts: of one layer per rank, of the ends of the model, of the whole.

Symbols: h hidden_size, a num_attention_heads, g num_query_groups, d head_dim, f the width of an
MLP, V vocab_size, t tp, t_e etp.  Counts are float64, exact below 2**53, and broadcast over tp,
etp and ep.  What is split over tensor-parallel ranks follows Megatron-Core: column-parallel
weights and their biases and row-parallel weights are divided by tp; row-parallel biases, norms
over h and the router are held whole by every rank.

Not counted: buffers (rotary tables, the score-correction bias that DeepSeek-V3 balances experts
with and no gradient reaches).
"""

from __future__ import annotations

import numpy as np

from cost_models.sources import Array, formula
from cost_models.spec import LayerKind, MLASpec, ModelSpec


@formula("1", "megatron-core")
def padded_vocab_size(vocab_size: Array, tp: Array, divisible_by: Array = 128.0) -> Array:
    """Rows of the word embedding table over all tensor-parallel ranks.

    V rounded up to a multiple of divisible_by x tp (`--make-vocab-size-divisible-by`, 128).
    """
    multiple = np.multiply(divisible_by, tp)
    return np.ceil(np.divide(vocab_size, multiple)) * multiple


@formula("1", "megatron-2")
def sc21_parameters(
    num_layers: Array, hidden_size: Array, vocab_size: Array, seq_length: Array
) -> Array:
    """Parameters of a GPT with ffn 4h, biases, learned positions and a tied head.

    Equation 2 of SC'21: 12 l h^2 (1 + 13/(12h) + (V+s)/(12 l h)), multiplied out so that it stays
    an integer.  It leaves out the final norm (2h).
    """
    layers = np.multiply(num_layers, hidden_size) * (np.multiply(12.0, hidden_size) + 13.0)
    return layers + np.multiply(np.add(vocab_size, seq_length), hidden_size)


def _norm(model: ModelSpec, width: int) -> float:
    """Parameters of one norm over `width` elements."""
    return float(width * (1 + model.norm_bias))


def _mla_parameters(model: ModelSpec, mla: MLASpec, tp: Array) -> Array:
    """MLA: down-projections and their norms whole on every rank, the rest split by heads.

    With `qkv_bias` the two down-projections have a bias, the projections after them none.
    """
    hidden = model.hidden_size
    heads = np.divide(model.num_attention_heads, tp)
    query_head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    bias = int(model.qkv_bias)

    kv_down = mla.kv_lora_rank + mla.qk_rope_head_dim
    whole = kv_down * (hidden + bias) + _norm(model, mla.kv_lora_rank)
    if mla.q_lora_rank is None:
        query_input = hidden
    else:
        query_input = mla.q_lora_rank
        whole += mla.q_lora_rank * (hidden + bias) + _norm(model, mla.q_lora_rank)
    per_head = (
        query_input * query_head_dim
        + mla.kv_lora_rank * (mla.qk_nope_head_dim + mla.v_head_dim)
        + mla.v_head_dim * hidden
    )
    return heads * per_head + whole


@formula("1", "megatron-core", "deepseek-v2")
def attention_parameters(model: ModelSpec, tp: Array) -> Array:
    """Parameters of one layer's attention per tensor-parallel rank, without the norm before it.

    QKV and output projections, their biases, QK norms and sinks.  A QK norm over one head is held
    whole; one over all heads is split with them.  With fewer key/value heads than ranks each rank
    holds a part of one and gathers the activations.
    """
    heads = np.divide(model.num_attention_heads, tp)
    kv_heads = np.divide(model.num_query_groups, tp)
    if model.mla is not None:
        count = _mla_parameters(model, model.mla, tp)
    else:
        qkv_width = (heads + 2.0 * kv_heads) * model.head_dim
        count = qkv_width * (model.hidden_size + model.qkv_bias)
        count = count + heads * model.head_dim * model.hidden_size
    if model.attention_output_bias:
        count = count + model.hidden_size
    if model.qk_norm == "head":
        count = count + 2.0 * _norm(model, model.head_dim)
    elif model.qk_norm == "full":
        count = count + (heads + kv_heads) * _norm(model, model.head_dim)
    if model.attention_sinks:
        count = count + heads
    return count


def _mlp_parameters(model: ModelSpec, ffn: int, bias: bool, tp: Array) -> Array:
    """Parameters of an MLP of width `ffn` per tensor-parallel rank."""
    inputs = 2 if model.gated_mlp else 1
    split = ffn * (inputs * (model.hidden_size + bias) + model.hidden_size)
    return np.divide(split, tp) + model.hidden_size * bias


@formula("1", "megatron-core")
def dense_mlp_parameters(model: ModelSpec, tp: Array) -> Array:
    """Parameters of one dense MLP per tensor-parallel rank."""
    return _mlp_parameters(model, model.ffn_hidden_size, model.mlp_bias, tp)


@formula("1", "megatron-core")
def norm_parameters(model: ModelSpec) -> float:
    """Parameters of the norms over h of one layer, held whole by every rank."""
    return model.norms_per_layer * _norm(model, model.hidden_size)


@formula("1", "megatron-core")
def router_parameters(model: ModelSpec) -> float:
    """Parameters of one layer's router, held whole by every rank; 0 without experts."""
    if model.moe is None:
        return 0.0
    return float(model.moe.num_experts * (model.hidden_size + model.moe.router_bias))


@formula("1", "megatron-core")
def shared_expert_parameters(model: ModelSpec, tp: Array) -> Array:
    """Parameters of one layer's shared experts and their gate per tensor-parallel rank."""
    if model.moe is None or model.moe.shared_expert_ffn_hidden_size == 0:
        return np.multiply(0.0, tp)
    moe = model.moe
    gate = model.hidden_size * moe.shared_expert_gate
    return _mlp_parameters(model, moe.shared_expert_ffn_hidden_size, moe.expert_bias, tp) + gate


@formula("1", "megatron-core")
def expert_parameters(model: ModelSpec, etp: Array) -> Array:
    """Parameters of one routed expert per expert-tensor-parallel rank; 0 without experts."""
    if model.moe is None:
        return np.multiply(0.0, etp)
    return _mlp_parameters(model, model.moe.expert_ffn_hidden_size, model.moe.expert_bias, etp)


@formula("1", "derived")
def widest_matrix_parameters(model: ModelSpec, tp: Array, etp: Array) -> Array:
    """Parameters of the largest single matrix of a layer per rank: QKV, or an MLP's first."""
    inputs = 2 if model.gated_mlp else 1
    heads = np.divide(model.num_attention_heads + 2.0 * model.num_query_groups, tp)
    width: Array = np.maximum(heads * model.head_dim, np.divide(inputs * model.ffn_hidden_size, tp))
    if model.moe is not None:
        width = np.maximum(width, np.divide(inputs * model.moe.expert_ffn_hidden_size, etp))
    return width * model.hidden_size


@formula("1", "megatron-core")
def layer_parameters(
    model: ModelSpec, kind: LayerKind, tp: Array, etp: Array, ep: Array
) -> tuple[Array, Array]:
    """(non-expert, expert) parameters of one layer per rank; num_experts / ep experts are local."""
    common = attention_parameters(model, tp) + norm_parameters(model)
    if kind == "dense" or model.moe is None:
        return common + dense_mlp_parameters(model, tp), np.multiply(0.0, etp) * ep
    shared = router_parameters(model) + shared_expert_parameters(model, tp)
    experts = np.divide(model.moe.num_experts, ep) * expert_parameters(model, etp)
    return common + shared, experts


@formula("1", "megatron-core")
def embedding_parameters(model: ModelSpec, tp: Array, divisible_by: Array = 128.0) -> Array:
    """Parameters before the first layer per tensor-parallel rank.

    The word table with its padded rows split, learned positions and the embedding norm whole.
    """
    rows = np.divide(padded_vocab_size(model.vocab_size, tp, divisible_by), tp)
    whole = 0.0
    if model.position == "learned" and model.max_position_embeddings is not None:
        whole += model.max_position_embeddings * model.hidden_size
    if model.embedding_norm:
        whole += _norm(model, model.hidden_size)
    return rows * model.hidden_size + whole


@formula("1", "megatron-core")
def output_layer_parameters(model: ModelSpec, tp: Array, divisible_by: Array = 128.0) -> Array:
    """Parameters after the last layer per tensor-parallel rank: final norm, head, head bias.

    A tied head adds none of its own: the word table is counted with the embedding (a pipeline
    that holds a second copy of it adds that copy).
    """
    rows = np.divide(padded_vocab_size(model.vocab_size, tp, divisible_by), tp)
    columns = model.hidden_size * (not model.tied_embeddings) + model.lm_head_bias
    return rows * columns + _norm(model, model.hidden_size)


@formula("1", "deepseek-v3")
def mtp_parameters(model: ModelSpec, tp: Array, etp: Array, ep: Array) -> tuple[Array, Array]:
    """(non-expert, expert) parameters of one multi-token-prediction layer per rank.

    DeepSeek-V3, section 2.2: norms of the hidden state and of the embedding, a 2h -> h projection
    (column-parallel), a layer of the last kind and a final norm; embedding and head are shared.
    """
    dense, experts = layer_parameters(model, model.layer_kinds[-1], tp, etp, ep)
    projection = np.divide(2.0 * model.hidden_size**2, tp)
    return dense + projection + 3.0 * _norm(model, model.hidden_size), experts


@formula("1", "derived")
def total_parameters(model: ModelSpec) -> int:
    """Parameters of the whole model, vocabulary unpadded, a tied table once.

    Without multi-token-prediction layers, which are dropped after training: the published 671
    billion of DeepSeek-V3 count so.  Training them adds `mtp_parameters` each.
    """
    return _whole_model(model, None)


@formula("1", "derived")
def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token uses: as total_parameters, with top_k of the routed experts."""
    return _whole_model(model, None if model.moe is None else model.moe.top_k)


def _whole_model(model: ModelSpec, experts_per_layer: int | None) -> int:
    """Parameters of the model with this many routed experts per layer; None: all of them."""
    count = embedding_parameters(model, 1.0, 1.0) + output_layer_parameters(model, 1.0, 1.0)
    for kind in set(model.layer_kinds):
        layers = model.layer_kinds.count(kind)
        other, experts = layer_parameters(model, kind, 1.0, 1.0, 1.0)
        if experts_per_layer is not None and kind == "moe":
            experts = experts_per_layer * expert_parameters(model, 1.0)
        count = count + layers * (other + experts)
    return int(count)


@formula("1", "derived")
def tensors_per_norm(model: ModelSpec) -> int:
    """Tensors of one norm: a weight, and a bias where it has one."""
    return 1 + (model.norm == "layernorm" and model.norm_bias)


@formula("1", "derived")
def tensors_per_layer(model: ModelSpec) -> int:
    """Parameter tensors of one dense layer, queries, keys and values apart."""
    mlp = 3 if model.gated_mlp else 2
    biases = 3 * model.qkv_bias + model.attention_output_bias + mlp * model.mlp_bias
    return 4 + mlp + biases + model.norms_per_layer * tensors_per_norm(model)
