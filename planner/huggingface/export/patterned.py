"""Config files of families with layer patterns: Nemotron-H, Qwen3-Next, Llama 4 and the like.

Each family gives its keys for a model, and the model that transformers builds from those keys: a
config counts only if the two models are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cost_models.blocks.latent_attention import LatentAttention
from cost_models.spec import ModelSpec
from planner.huggingface.export import recurrent
from planner.huggingface.export.shared_keys import (
    ATTENTION,
    EXPERTS,
    MLP,
    Blocks,
    Fields,
    Keys,
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


@dataclass(frozen=True)
class Form:
    """A family: its class, its keys for a model, and the fields of the model built from those keys.

    bare: its attention never has positions.  buffers: it has buffers besides parameters, such as
    load-balancing biases or decays.
    """

    architecture: str
    keys: Callable[[ModelSpec], Keys]
    built: Callable[[Keys], Fields]
    bare: bool = False
    buffers: bool = False


def _deepseek_v32(model: ModelSpec) -> Keys:
    block, mla, moe = first_block(model, LatentAttention), model.mla, model.moe
    if block is None or block.indexer is None or mla is None or moe is None:
        return {}
    ffn = moe.expert_ffn_hidden_size
    return usual(model) | moe_keys(model, "n_routed_experts") | {
        "head_dim": mla.qk_rope_head_dim,
        "attention_bias": model.attention_output_bias,
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "n_shared_experts": moe.shared_expert_ffn_hidden_size // ffn,
        "n_group": moe.num_groups or 1,
        "topk_group": moe.top_k_groups or 1,
        "mlp_layer_types": ["sparse" if is_moe(one) else "dense" for one in layers_of(model)],
        "index_n_heads": block.indexer.num_heads,
        "index_head_dim": block.indexer.head_dim,
        "index_topk": block.indexer.top_k,
    }  # fmt: skip


def _deepseek_v32_fields_read_back(keys: Keys) -> Fields:
    names = {"num_heads": "index_n_heads", "head_dim": "index_head_dim", "top_k": "index_topk"}
    indexer = {option: keys[name] for option, name in names.items()}
    latent: Blocks = {"kind": "latent_attention", "indexer": indexer}
    layers = [[latent, EXPERTS if k == "sparse" else MLP] for k in keys["mlp_layer_types"]]
    shared = keys["n_shared_experts"] * keys["moe_intermediate_size"]
    more = {"shared_expert_ffn_hidden_size": shared, **group_fields(keys)}
    ranks = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    biased = keys["attention_bias"]
    return shape(
        keys,
        layers,
        mla={name: keys[name] for name in ranks},
        qkv_bias=biased,
        attention_output_bias=biased,
        **moe_fields(keys, "n_routed_experts", **more),
    )


def _minimax(model: ModelSpec) -> Keys:
    if model.moe is None or not model.layer_pattern:
        return {}
    kinds = ["full_attention" if attends(one) else "linear_attention" for one in layers_of(model)]
    return usual(model) | {
        "intermediate_size": model.moe.expert_ffn_hidden_size,
        "num_local_experts": model.moe.num_experts,
        "num_experts_per_tok": model.moe.top_k,
        "layer_types": kinds,
    }


def _minimax_fields_read_back(keys: Keys) -> Fields:
    heads = {"num_heads": keys["num_attention_heads"], "head_dim": keys["head_dim"]}
    linear = {"kind": "lightning_attention", **heads}
    kinds = keys["layer_types"]
    layers = [[ATTENTION if kind == "full_attention" else linear, EXPERTS] for kind in kinds]
    moe = {
        "num_experts": keys["num_local_experts"],
        "top_k": keys["num_experts_per_tok"],
        "expert_ffn_hidden_size": keys["intermediate_size"],
    }
    return shape(keys, layers, moe=moe)


def _llama4(model: ModelSpec) -> Keys:
    attention = [attends(layer) for layer in layers_of(model)]
    moe, chunks = model.moe, {one.chunk for one in attention if one is not None and one.chunk}
    if moe is None or None in attention or not chunks:
        return {}
    layers = layers_of(model)
    return usual(model) | {
        "intermediate_size": moe.expert_ffn_hidden_size,
        "intermediate_size_mlp": model.ffn_hidden_size,
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_layers": [i for i, layer in enumerate(layers) if is_moe(layer)],
        "attention_chunk_size": min(chunks),
        "layer_types": [
            "chunked_attention" if one is not None and one.chunk else "full_attention"
            for one in attention
        ],
        "no_rope_layers": [int(one is not None and one.rope) for one in attention],
        "attention_bias": model.attention_output_bias,
        "use_qk_norm": False,
    }


def _llama4_fields_read_back(keys: Keys) -> Fields:
    routed, chunk = set(keys["moe_layers"]), {"chunk": keys["attention_chunk_size"]}
    layers = [
        [
            ATTENTION
            | (chunk if kind == "chunked_attention" else {})
            | ({} if placed else {"rope": False}),
            EXPERTS if i in routed else MLP,
        ]
        for i, (kind, placed) in enumerate(
            zip(keys["layer_types"], keys["no_rope_layers"], strict=True)
        )
    ]
    biased, width = keys["attention_bias"], keys["intermediate_size"]
    moe = {
        "num_experts": keys["num_local_experts"],
        "top_k": keys["num_experts_per_tok"],
        "expert_ffn_hidden_size": width,
        "shared_expert_ffn_hidden_size": width,
    }
    dense = keys | {"intermediate_size": keys["intermediate_size_mlp"]}
    return shape(dense, layers, moe=moe, qkv_bias=biased, attention_output_bias=biased)


def _smollm3(model: ModelSpec) -> Keys:
    attention = [attends(layer) for layer in layers_of(model)]
    return usual(model) | {
        "no_rope_layers": [int(one is None or one.rope) for one in attention],
        "pad_token_id": None,  # the default of the class may lie outside the vocabulary
        "use_sliding_window": False,
        "attention_bias": model.attention_output_bias,
        "mlp_bias": model.mlp_bias,
    }


def _smollm3_fields_read_back(keys: Keys) -> Fields:
    kinds = ({**ATTENTION, "rope": False}, ATTENTION)
    biased = keys["attention_bias"]
    return shape(
        keys,
        [[kinds[placed], MLP] for placed in keys["no_rope_layers"]],
        qkv_bias=biased,
        attention_output_bias=biased,
        mlp_bias=keys["mlp_bias"],
    )


def _sliding(model: ModelSpec) -> Keys:
    attention = [attends(layer) for layer in layers_of(model)]
    windows = {one.window for one in attention if one is not None and one.window}
    if not windows:
        return {}
    return usual(model) | {
        "attention_bias": model.attention_output_bias,
        "sliding_window": min(windows),
        "layer_types": [
            "sliding_attention" if one is not None and one.window else "full_attention"
            for one in attention
        ],
    }


def _qwen3(model: ModelSpec) -> Keys:
    keys = _sliding(model)
    return keys | {"use_sliding_window": True} if keys else {}


def _sliding_fields_read_back(**more: Any) -> Callable[[Keys], Fields]:
    def built(keys: Keys) -> Fields:
        near = {**ATTENTION, "window": keys["sliding_window"]}
        kinds, biased = keys["layer_types"], keys["attention_bias"]
        layers = [[near if kind == "sliding_attention" else ATTENTION, MLP] for kind in kinds]
        return shape(keys, layers, qkv_bias=biased, attention_output_bias=biased, **more)

    return built


FORMS: dict[str, Form] = {
    "qwen3_5_text": Form(
        "Qwen3_5ForCausalLM", recurrent.qwen3_5, recurrent.qwen3_5_fields_read_back
    ),
    "qwen3_next": Form(
        "Qwen3NextForCausalLM", recurrent.qwen3_next, recurrent.qwen3_next_fields_read_back
    ),
    "mamba2": Form(
        "Mamba2ForCausalLM", recurrent.mamba2, recurrent.mamba2_fields_read_back, bare=True
    ),
    "nemotron_h": Form(
        "NemotronHForCausalLM",
        recurrent.nemotron_h,
        recurrent.nemotron_h_fields_read_back,
        True,
        buffers=True,
    ),
    "bamba": Form("BambaForCausalLM", recurrent.bamba, recurrent.bamba_fields_read_back),
    "lfm2": Form("Lfm2ForCausalLM", recurrent.lfm2, recurrent.lfm2_fields_read_back),
    "lfm2_moe": Form(
        "Lfm2MoeForCausalLM", recurrent.lfm2_moe, recurrent.lfm2_fields_read_back, buffers=True
    ),
    "deepseek_v32": Form(
        "DeepseekV32ForCausalLM", _deepseek_v32, _deepseek_v32_fields_read_back, buffers=True
    ),
    "minimax": Form("MiniMaxForCausalLM", _minimax, _minimax_fields_read_back, buffers=True),
    "llama4_text": Form("Llama4ForCausalLM", _llama4, _llama4_fields_read_back),
    "smollm3": Form("SmolLM3ForCausalLM", _smollm3, _smollm3_fields_read_back),
    "gemma3_text": Form(
        "Gemma3ForCausalLM", _sliding, _sliding_fields_read_back(norms_per_layer=4, qk_norm="head")
    ),
    "qwen3": Form("Qwen3ForCausalLM", _qwen3, _sliding_fields_read_back(qk_norm="head")),
    "olmo3": Form("Olmo3ForCausalLM", _sliding, _sliding_fields_read_back(qk_norm="full")),
}


def forms(model: ModelSpec) -> Iterator[tuple[str, Keys, Fields, Form]]:
    """Each family: name, config.json for a model, fields of the model it builds, form; config and
    fields are empty if the family cannot represent the model.
    """
    for family, form in FORMS.items():
        keys = form.keys(model) if model.layer_pattern else {}
        head = {"model_type": family, "architectures": [form.architecture]}
        yield family, {**head, **keys} if keys else {}, form.built(keys) if keys else {}, form
