"""Dense families, with the keys and defaults of their configuration classes."""

from __future__ import annotations

from planner.huggingface.config import HEADS, TOKENS, WIDTH, Config
from planner.huggingface.families.shared_fields import (
    RMSNORM_GATED,
    Fields,
    attention_bias,
    gqa,
    linear_biases,
    llama_shape,
    shape,
    shared_width,
    window,
)

COHERE: Fields = {
    "norm_bias": False,
    "norms_per_layer": 1,
    "parallel_residual": True,
    "gated_mlp": True,
}


def llama(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    return fields | {"mlp_bias": config.flag("mlp_bias", False)}


def mistral(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=8) | RMSNORM_GATED
    return fields | window(config, fields["num_layers"], size=4096)


def qwen_window(config: Config, layers: int) -> Fields:
    """Qwen's window: off unless use_sliding_window; the first max_window_layers stay full."""
    if not config.flag("use_sliding_window", False):
        return {}
    if not config.states("layer_types"):
        full = config.count("max_window_layers", most=TOKENS, least=0, default=28)
        if full >= layers:
            return {}
        if full:
            config.refuse("max_window_layers", "only 0 or all layers can be planned")
    return window(config, layers, size=4096)


def qwen2(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=32) | RMSNORM_GATED | {"qkv_bias": True}
    return fields | qwen_window(config, fields["num_layers"])


def qwen3(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=32, head_dim=128) | RMSNORM_GATED
    fields |= attention_bias(config, False) | {"qk_norm": "head"}
    return fields | qwen_window(config, fields["num_layers"])


def gemma(config: Config) -> Fields:
    fields = llama_shape(config, tied=True, kv_heads=16, head_dim=256) | RMSNORM_GATED
    config.require("use_bidirectional_attention", False, "attention here is causal")
    return fields | attention_bias(config, False)


def gemma2(config: Config) -> Fields:
    fields = llama_shape(config, tied=True, kv_heads=4, head_dim=256) | RMSNORM_GATED
    config.require("use_bidirectional_attention", False, "attention here is causal")
    fields |= attention_bias(config, False) | {"norms_per_layer": 4}
    return fields | window(config, fields["num_layers"], size=4096, period=2, always=True)


def gemma3(config: Config) -> Fields:
    """Published files state only what differs from the class, heads and vocabulary included."""
    fields = shape(config, tied=True, num_heads=8, vocab_size=262_208)
    fields = gqa(config, fields, kv_heads=4, head_dim=256) | RMSNORM_GATED
    config.require("use_bidirectional_attention", False, "attention here is causal")
    fields |= attention_bias(config, False) | {"norms_per_layer": 4, "qk_norm": "head"}
    fields["ffn_hidden_size"] = config.count("intermediate_size", most=WIDTH)
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    return fields | alternating_window(config, fields["num_layers"], period=6)


def alternating_window(config: Config, layers: int, *, period: int) -> Fields:
    """A window of 4096 by default; every n-th layer is full, with n as stated or `period`."""
    if not config.states("layer_types"):
        period = config.count("sliding_window_pattern", most=TOKENS, default=period)
    return window(config, layers, size=4096, period=period, always=True)


def cohere(config: Config) -> Fields:
    fields = llama_shape(config, tied=True) | attention_bias(config, False) | COHERE
    return fields | {"qk_norm": "full" if config.flag("use_qk_norm", False) else "none"}


def cohere2(config: Config) -> Fields:
    fields = llama_shape(config, tied=True) | attention_bias(config, False) | COHERE
    return fields | alternating_window(config, fields["num_layers"], period=4)


def olmo2(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    return fields | {"qk_norm": "full"}


def nemotron(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | attention_bias(config, False)
    return fields | {"mlp_bias": config.flag("mlp_bias", False)}


def stablelm(config: Config) -> Fields:
    fields = gqa(config, shape(config, tied=False), kv_heads=32)
    fields = shared_width(config, fields)
    config.require("qk_layernorm", False, "its norms differ for each head")
    parallel = config.flag("use_parallel_residual", False)
    return fields | {
        "ffn_hidden_size": config.count("intermediate_size", most=WIDTH),
        "gated_mlp": True,
        "qkv_bias": config.flag("use_qkv_bias", False),
        "parallel_residual": parallel,
        "norms_per_layer": 1 if parallel else 2,
        "hidden_dropout": config.probability("hidden_dropout", 0.0),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }


def starcoder2(config: Config) -> Fields:
    fields = llama_shape(config, tied=True, kv_heads=2)
    fields |= linear_biases(config.flag("use_bias", True))
    fields["hidden_dropout"] = config.probability("residual_dropout", 0.0)
    return fields | window(config, fields["num_layers"], size=None)


def phi(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | linear_biases(True) | {"lm_head_bias": True}
    return fields | {
        "norms_per_layer": 1,
        "parallel_residual": True,
        "qk_norm": "head" if config.flag("qk_layernorm", False) else "none",
        "hidden_dropout": config.probability("resid_pdrop", 0.0),
    }


def phi3(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | RMSNORM_GATED
    fields["hidden_dropout"] = config.probability("resid_pdrop", 0.0)
    return fields | window(config, fields["num_layers"], size=None)


def glm(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=2, head_dim=128) | RMSNORM_GATED
    return fields | {"qkv_bias": config.flag("attention_bias", True)}


def glm4(config: Config) -> Fields:
    return glm(config) | {"norms_per_layer": 4}


def chatglm(config: Config) -> Fields:
    """GLM-4 with the key names of its first release."""
    rows = ("padded_vocab_size", "vocab_size")
    fields = shape(config, tied=False, layers=("num_layers",), vocabulary=rows) | RMSNORM_GATED
    config.require("rmsnorm", True, "its norms are RMS norms")
    config.require("post_layer_norm", True, "the final norm is always there")
    groups = fields["num_attention_heads"]
    if config.flag("multi_query_attention", False):
        groups = config.count("multi_query_group_num", most=HEADS)
    bias = config.flag("add_bias_linear", False)
    return fields | {
        **linear_biases(bias),
        "num_query_groups": groups,
        "head_dim": config.count("kv_channels", most=WIDTH),
        "ffn_hidden_size": config.count("ffn_hidden_size", most=WIDTH),
        "qkv_bias": config.flag("add_qkv_bias", False) or bias,
        "attention_dropout": config.probability("attention_dropout", 0.0),
        "hidden_dropout": config.probability("hidden_dropout", 0.0),
    }
