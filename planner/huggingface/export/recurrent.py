"""Config files of families with recurrent mixers: Qwen3-Next, Nemotron-H, Mamba-2, LFM2.

A function NAME gives the keys of a config.json for a model; NAME_fields_read_back gives the model
that transformers builds from those keys, by which the config is checked.
"""

from __future__ import annotations

from typing import Any

from cost_models.blocks.delta_net import GatedDeltaNet
from cost_models.blocks.mamba2 import Mamba2
from cost_models.blocks.short_convolution import ShortConvolution
from cost_models.spec import ModelSpec
from planner.huggingface.export.shared_keys import (
    ATTENTION,
    EXPERTS,
    MLP,
    Fields,
    Keys,
    Layer,
    attends,
    first_block,
    group_fields,
    is_moe,
    layers_of,
    moe_fields,
    moe_keys,
    shape,
    usual,
)

# Gated delta nets: Qwen3-Next and Qwen3.5.


def _delta_keys(model: ModelSpec) -> Keys:
    block = first_block(model, GatedDeltaNet)
    if block is None:
        return {}
    kinds = ["full_attention" if attends(one) else "linear_attention" for one in layers_of(model)]
    return usual(model) | {
        "attention_bias": model.attention_output_bias,
        "layer_types": kinds,
        "linear_conv_kernel_dim": block.convolution,
        "linear_key_head_dim": block.key_head_dim,
        "linear_value_head_dim": block.value_head_dim,
        "linear_num_key_heads": block.num_key_heads,
        "linear_num_value_heads": block.num_value_heads,
    }


def _delta_fields_read_back(keys: Keys, feed_forwards: list[dict[str, Any]]) -> Fields:
    delta = {
        "kind": "gated_delta_net",
        "num_key_heads": keys["linear_num_key_heads"],
        "num_value_heads": keys["linear_num_value_heads"],
        "key_head_dim": keys["linear_key_head_dim"],
        "value_head_dim": keys["linear_value_head_dim"],
        "convolution": keys["linear_conv_kernel_dim"],
    }
    mixers = [
        delta if kind == "linear_attention" else {**ATTENTION, "gate": "element"}
        for kind in keys["layer_types"]
    ]
    biased = keys["attention_bias"]
    layers = [[mixer, part] for mixer, part in zip(mixers, feed_forwards, strict=True)]
    return shape(keys, layers, qk_norm="head", qkv_bias=biased, attention_output_bias=biased)


def qwen3_5(model: ModelSpec) -> Keys:
    return {} if model.moe is not None else _delta_keys(model)


def qwen3_5_fields_read_back(keys: Keys) -> Fields:
    return _delta_fields_read_back(keys, [MLP] * len(keys["layer_types"]))


def qwen3_next(model: ModelSpec) -> Keys:
    keys, moe = _delta_keys(model), model.moe
    if moe is None or not keys:
        return {}
    dense = [i for i, layer in enumerate(layers_of(model)) if not is_moe(layer)]
    return keys | moe_keys(model) | {
        "shared_expert_intermediate_size": moe.shared_expert_ffn_hidden_size,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
        "norm_topk_prob": True,
    }  # fmt: skip


def qwen3_next_fields_read_back(keys: Keys) -> Fields:
    dense, shared = set(keys["mlp_only_layers"]), keys["shared_expert_intermediate_size"]
    parts = [MLP if i in dense else EXPERTS for i in range(keys["num_hidden_layers"])]
    more = {"shared_expert_ffn_hidden_size": shared, "shared_expert_gate": True}
    return _delta_fields_read_back(keys, parts) | moe_fields(keys, **more)


# Mamba-2: Nemotron-H and Nemotron 3, Bamba, Mamba-2 itself.

NEMOTRON = {
    "mamba2": "linear_attention",
    "attention": "full_attention",
    "mlp": "mlp",
    "experts": "moe",
}


def nemotron_h(model: ModelSpec) -> Keys:
    kinds = [layer[0].kind for layer in layers_of(model) if len(layer) == 1]
    if set(kinds) - set(NEMOTRON) or len(kinds) < model.num_layers:
        return {}
    keys = usual(model) | {
        "layers_block_type": [NEMOTRON[kind] for kind in kinds],
        "attention_bias": model.attention_output_bias,
        "mlp_bias": model.mlp_bias,
        "hidden_dropout": model.hidden_dropout,
    }
    del keys["num_hidden_layers"]  # it is the length of layers_block_type
    block, moe = first_block(model, Mamba2), model.moe
    if block is not None:
        keys |= {
            "mamba_num_heads": block.num_heads,
            "mamba_head_dim": block.head_dim,
            "ssm_state_size": block.state_size,
            "n_groups": block.num_groups,
            "conv_kernel": block.convolution,
            "use_conv_bias": block.convolution_bias,
            "use_bias": block.bias,
            "mamba_proj_bias": block.bias,
            "chunk_size": block.chunk_size,
        }
    if moe is not None:
        keys |= moe_keys(model, "n_routed_experts") | {
            "n_shared_experts": 1,
            "moe_shared_expert_intermediate_size": moe.shared_expert_ffn_hidden_size,
            "moe_latent_size": moe.latent_size,
            "n_group": moe.num_groups or 1,
            "topk_group": moe.top_k_groups or 1,
        }
    return keys


def nemotron_h_fields_read_back(keys: Keys) -> Fields:
    mamba = _mamba(
        keys, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel",
        "use_conv_bias", "use_bias", "chunk_size",
    )  # fmt: skip
    kinds = {name: kind for kind, name in NEMOTRON.items()}
    layers: list[Layer] = [
        [mamba if name == "linear_attention" else {"kind": kinds[name]}]
        for name in keys["layers_block_type"]
    ]
    more = {
        "shared_expert_ffn_hidden_size": keys.get("moe_shared_expert_intermediate_size"),
        "latent_size": keys.get("moe_latent_size"),
        **group_fields(keys),
    }
    biased = keys["attention_bias"]
    return shape(
        keys | {"num_hidden_layers": len(layers)},
        layers,
        gated_mlp=False,
        qkv_bias=biased,
        attention_output_bias=biased,
        mlp_bias=keys["mlp_bias"],
        hidden_dropout=keys["hidden_dropout"],
        **moe_fields(keys, "n_routed_experts", **more),
    )


def _mamba(keys: Keys, *names: str) -> dict[str, Any]:
    """A Mamba-2 block with its options from these keys; missing ones keep their default."""
    options = (
        "num_heads", "head_dim", "state_size", "num_groups", "convolution", "convolution_bias",
        "bias", "chunk_size",
    )  # fmt: skip
    pairs = zip(options, names, strict=True)
    return {"kind": "mamba2"} | {option: keys[name] for option, name in pairs if name in keys}


def bamba(model: ModelSpec) -> Keys:
    block = first_block(model, Mamba2)
    if block is None or any(len(layer) != 2 for layer in model.layer_pattern):
        return {}
    attending = [i for i, layer in enumerate(layers_of(model)) if attends(layer)]
    return usual(model) | {
        "attn_layer_indices": attending,
        "attention_bias": model.attention_output_bias,
        "mlp_bias": model.mlp_bias,
        **_bamba_mixer(block),
    }


def _bamba_mixer(block: Mamba2) -> Keys:
    return {
        "mamba_n_heads": block.num_heads,
        "mamba_d_head": block.head_dim,
        "mamba_d_state": block.state_size,
        "mamba_n_groups": block.num_groups,
        "mamba_d_conv": block.convolution,
        "mamba_conv_bias": block.convolution_bias,
        "mamba_proj_bias": block.bias,
        "mamba_chunk_size": block.chunk_size,
    }


def bamba_fields_read_back(keys: Keys) -> Fields:
    mamba = _mamba(
        keys, "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv",
        "mamba_conv_bias", "mamba_proj_bias", "mamba_chunk_size",
    )  # fmt: skip
    attending, biased = set(keys["attn_layer_indices"]), keys["attention_bias"]
    count = keys["num_hidden_layers"]
    layers = [[ATTENTION if i in attending else mamba, MLP] for i in range(count)]
    # Bamba ignores a stated head_dim: its heads are hidden_size / num_attention_heads wide.
    keys = keys | {"head_dim": keys["hidden_size"] // keys["num_attention_heads"]}
    biases = {"qkv_bias": biased, "attention_output_bias": biased, "mlp_bias": keys["mlp_bias"]}
    whole = keys["mamba_n_heads"] * keys["mamba_d_head"] == 2 * keys["hidden_size"]
    return shape(keys, layers, **biases) if whole else {}


def mamba2(model: ModelSpec) -> Keys:
    block = first_block(model, Mamba2)
    if block is None or any(len(layer) != 1 for layer in model.layer_pattern):
        return {}
    return {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "expand": block.num_heads * block.head_dim // model.hidden_size,
        "num_heads": block.num_heads,
        "head_dim": block.head_dim,
        "state_size": block.state_size,
        "n_groups": block.num_groups,
        "conv_kernel": block.convolution,
        "use_conv_bias": block.convolution_bias,
        "use_bias": block.bias,
        "chunk_size": block.chunk_size,
    }


def mamba2_fields_read_back(keys: Keys) -> Fields:
    mamba = _mamba(
        keys, "num_heads", "head_dim", "state_size", "n_groups", "conv_kernel", "use_conv_bias",
        "use_bias", "chunk_size",
    )  # fmt: skip
    if keys["expand"] * keys["hidden_size"] != keys["num_heads"] * keys["head_dim"]:
        return {}
    return {
        "num_layers": keys["num_hidden_layers"],
        "hidden_size": keys["hidden_size"],
        "num_attention_heads": 1,
        "vocab_size": keys["vocab_size"],
        "tied_embeddings": keys["tie_word_embeddings"],
        "norm": "rmsnorm",
        "layer_pattern": [[mamba]] * keys["num_hidden_layers"],
    }


# Short convolutions: LFM2.


def lfm2(model: ModelSpec) -> Keys:
    block = first_block(model, ShortConvolution)
    if block is None:
        return {}
    kinds = ["full_attention" if attends(one) else "conv" for one in layers_of(model)]
    keys = usual(model) | {
        "layer_types": kinds,
        "conv_L_cache": block.taps,
        "conv_bias": block.bias,
    }
    if model.moe is None:
        return keys | {"block_auto_adjust_ff_dim": False}
    return {}


def lfm2_moe(model: ModelSpec) -> Keys:
    block = first_block(model, ShortConvolution)
    if block is None or model.moe is None:
        return {}
    kinds = ["full_attention" if attends(one) else "conv" for one in layers_of(model)]
    dense = next(i for i, layer in enumerate(layers_of(model)) if is_moe(layer))
    return usual(model) | moe_keys(model) | {
        "layer_types": kinds,
        "conv_L_cache": block.taps,
        "conv_bias": block.bias,
        "num_dense_layers": dense,
    }  # fmt: skip


def lfm2_fields_read_back(keys: Keys) -> Fields:
    taps = {"kind": "short_convolution", "taps": keys["conv_L_cache"], "bias": keys["conv_bias"]}
    dense = keys.get("num_dense_layers", len(keys["layer_types"]))
    layers: list[Layer] = [
        [taps if kind == "conv" else ATTENTION, MLP if i < dense else EXPERTS]
        for i, kind in enumerate(keys["layer_types"])
    ]
    keys = keys | {"head_dim": keys["hidden_size"] // keys["num_attention_heads"]}
    return shape(keys, layers, qk_norm="head", **moe_fields(keys)) | {"attention_dropout": 0.0}
