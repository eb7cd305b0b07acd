"""Mixture-of-experts families."""

from __future__ import annotations

from planner.huggingface.config import HEADS, LAYERS, WIDTH, Config
from planner.huggingface.families.shared_fields import (
    RMSNORM_GATED,
    Fields,
    attention_bias,
    gqa,
    llama_shape,
    shape,
    window,
)


def _routing(config: Config, names: tuple[str, ...], experts: int, top_k: int | None) -> Fields:
    """Number of experts and top-k, with the family's defaults."""
    return {
        "num_experts": config.count(*names, least=2, most=HEADS, default=experts),
        "top_k": config.count("num_experts_per_tok", most=LAYERS, default=top_k),
    }


def mixtral(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=8) | RMSNORM_GATED
    fields |= window(config, fields["num_layers"], size=None)
    moe = _routing(config, ("num_local_experts", "num_experts"), 8, 2)
    return fields | {"moe": {**moe, "expert_ffn_hidden_size": fields["ffn_hidden_size"]}}


def olmoe(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    width = fields["hidden_size"] // fields["num_attention_heads"]
    config.require("head_dim", width, "its query norm is as wide as hidden_size")
    moe = _routing(config, ("num_experts",), 64, 8)
    moe["expert_ffn_hidden_size"] = fields["ffn_hidden_size"]
    return fields | {"qk_norm": "full", "moe": moe}


def gpt_oss(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=8, head_dim=64) | RMSNORM_GATED
    fields |= attention_bias(config, True) | {"attention_sinks": True}
    fields |= window(config, fields["num_layers"], size=128, period=2)
    moe = _routing(config, ("num_local_experts", "num_experts"), 128, 4)
    moe |= {"expert_ffn_hidden_size": fields["ffn_hidden_size"]}
    return fields | {"moe": moe | {"router_bias": True, "expert_bias": True}}


def _sparse_layers(config: Config, layers: int) -> Fields:
    """Qwen: every decoder_sparse_step-th layer has experts, except those of mlp_only_layers.

    Exceptions can be planned only if they are the first layers.
    """
    step = config.count("decoder_sparse_step", most=1000, default=1)
    only = config.data.get("mlp_only_layers") or []
    if not isinstance(only, list) or any(type(layer) is not int for layer in only):
        config.refuse("mlp_only_layers", "must be a list of layer numbers")
        only = []
    dense = set(only)
    leading = next(i for i in range(layers + 1) if i not in dense)
    if any(leading <= i < layers and (i + 1) % step == 0 for i in dense):
        config.refuse("mlp_only_layers", "only the first layers can be dense ones")
    return {"layer_frequency": step, "layer_offset": step - 1, "num_dense_layers": leading}


def qwen2_moe(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=16) | RMSNORM_GATED
    fields["qkv_bias"] = config.flag("qkv_bias", True)
    config.require("use_sliding_window", False, "its window pattern has no form here")
    moe = _routing(config, ("num_experts", "num_local_experts"), 60, 4)
    moe |= _sparse_layers(config, fields["num_layers"]) | {
        "expert_ffn_hidden_size": config.count("moe_intermediate_size", most=WIDTH, default=1408),
        "shared_expert_ffn_hidden_size": config.count(
            "shared_expert_intermediate_size", most=WIDTH, default=5632
        ),
        "shared_expert_gate": True,
    }
    return fields | {"moe": moe}


def qwen3_moe(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=4) | RMSNORM_GATED
    fields |= attention_bias(config, False) | {"qk_norm": "head"}
    if config.flag("use_sliding_window", False):
        fields |= window(config, fields["num_layers"], size=4096)
    moe = _routing(config, ("num_experts", "num_local_experts"), 128, 8)
    moe |= _sparse_layers(config, fields["num_layers"])
    moe["expert_ffn_hidden_size"] = config.count("moe_intermediate_size", most=WIDTH, default=768)
    return fields | {"moe": moe}


def _deepseek_experts(
    config: Config, *, experts: int, top_k: int | None, expert_ffn: int, shared: int, dense: int
) -> Fields:
    """The expert keys of DeepSeek, which GLM uses too."""
    config.require("moe_layer_freq", 1, "every layer after the dense ones has experts")
    ffn = config.count("moe_intermediate_size", most=WIDTH, default=expert_ffn)
    shared_experts = config.count("n_shared_experts", least=0, most=1000, default=shared)
    return _routing(config, ("n_routed_experts",), experts, top_k) | {
        "expert_ffn_hidden_size": ffn,
        "shared_expert_ffn_hidden_size": shared_experts * ffn,
        "num_dense_layers": config.count(
            "first_k_dense_replace", least=0, most=LAYERS, default=dense
        ),
    }


def groups(config: Config, groups: int, top_k: int) -> Fields:
    """Groups of experts for routing, with the family's defaults; a single group counts as none."""
    count = config.count("n_group", most=HEADS, default=groups)
    chosen = config.count("topk_group", most=HEADS, default=top_k)
    return {} if count == 1 else {"num_groups": count, "top_k_groups": chosen}


def latent(
    config: Config,
    *,
    q_rank: int | None = 1536,
    kv_rank: int = 512,
    nope: int = 128,
    rope: int = 64,
    value: int = 128,
    layers: tuple[str, ...] = ("num_hidden_layers",),
    ffn: str = "intermediate_size",
) -> Fields:
    """DeepSeek's attention: every head has its own keys and values, from one latent vector."""
    fields = shape(config, tied=False, layers=layers) | RMSNORM_GATED
    fields |= attention_bias(config, False)
    nope = config.count("qk_nope_head_dim", most=WIDTH, default=nope)
    rope = config.count("qk_rope_head_dim", most=WIDTH, default=rope)
    return fields | {
        "num_query_groups": fields["num_attention_heads"],
        "head_dim": nope + rope,
        "ffn_hidden_size": config.count(ffn, most=WIDTH),
        "attention_dropout": config.probability("attention_dropout", 0.0),
        "mla": {
            "kv_lora_rank": config.count("kv_lora_rank", most=WIDTH, default=kv_rank),
            "q_lora_rank": config.optional("q_lora_rank", most=WIDTH, default=q_rank),
            "qk_nope_head_dim": nope,
            "qk_rope_head_dim": rope,
            "v_head_dim": config.count("v_head_dim", most=WIDTH, default=value),
        },
    }


def _mtp(config: Config) -> Fields:
    """Multi-token prediction, only if the file states it: class defaults differ by release."""
    depth = config.count(
        "num_nextn_predict_layers",
        "num_mtp_layers",
        least=0,
        most=16,
        default=0,
        because="no multi-token prediction",
    )
    return {"mtp_num_layers": depth}


def deepseek_v2(config: Config) -> Fields:
    fields = latent(config)
    config.require("mlp_bias", False, "its MLPs have no bias")
    moe = _deepseek_experts(config, experts=64, top_k=None, expert_ffn=1407, shared=2, dense=0)
    if config.data.get("topk_method") == "group_limited_greedy":
        moe |= groups(config, 1, 1)
    return fields | {"moe": moe}


def deepseek_v3(config: Config) -> Fields:
    fields = latent(config) | _mtp(config)
    moe = _deepseek_experts(config, experts=256, top_k=8, expert_ffn=2048, shared=1, dense=3)
    moe |= groups(config, 8, 4) | {"score_correction_bias": True}
    return fields | {"moe": moe}


def glm4_moe(config: Config) -> Fields:
    fields = (
        gqa(config, shape(config, tied=False), kv_heads=8, even=False)
        | RMSNORM_GATED
        | _mtp(config)
    )
    moe = _deepseek_experts(config, experts=128, top_k=8, expert_ffn=1408, shared=1, dense=1)
    moe |= groups(config, 1, 1) | {"score_correction_bias": True}
    return fields | {
        "ffn_hidden_size": config.count("intermediate_size", most=WIDTH),
        "qkv_bias": config.flag("attention_bias", False),
        "qk_norm": "head" if config.flag("use_qk_norm", False) else "none",
        "attention_dropout": config.probability("attention_dropout", 0.0),
        "moe": moe,
    }
