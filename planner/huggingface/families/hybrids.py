"""Families that alternate attention with recurrent mixers: Qwen3-Next, Qwen3.5, Nemotron-H."""

from __future__ import annotations

from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families.pattern_fields import (
    ATTENTION,
    EXPERTS,
    FULL,
    LINEAR,
    MLP,
    delta_net,
    every_full,
    expert_width,
    numbered,
    pattern,
    prediction,
    routed,
)
from planner.huggingface.families.shared_fields import (
    RMSNORM_GATED,
    Fields,
    attention_bias,
    gqa,
    llama_shape,
    shape,
)

GATED_ATTENTION: Fields = {"kind": "attention", "gate": "element"}


def _qwen_layers(config: Config, fields: Fields, feeds: list[Fields]) -> Fields:
    """Delta nets, and gated attention in every fourth layer."""
    mixers = {LINEAR: delta_net(config), FULL: GATED_ATTENTION}
    listed = every_full(config, fields["num_layers"])
    layers = [[mixers[kind], feed] for kind, feed in zip(listed, feeds, strict=True)]
    mtp = prediction(config, "mtp_num_hidden_layers", "num_nextn_predict_layers")
    return fields | attention_bias(config, False) | {"qk_norm": "head"} | pattern(layers) | mtp


def _qwen_experts(config: Config, *, number: int, chosen: int) -> Fields:
    shared = config.count("shared_expert_intermediate_size", most=WIDTH, default=512)
    return {
        **routed(config, experts=("num_experts",), number=number, chosen=chosen),
        "expert_ffn_hidden_size": expert_width(config, 512),
        "shared_expert_ffn_hidden_size": shared,
        "shared_expert_gate": True,
    }


def qwen3_next(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=2, head_dim=256) | RMSNORM_GATED
    step = config.count("decoder_sparse_step", most=LAYERS, default=1)
    dense = numbered(config, "mlp_only_layers") or set()
    layers = range(fields["num_layers"])
    feeds = [MLP if i in dense or (i + 1) % step else EXPERTS for i in layers]
    if EXPERTS in feeds:
        fields["moe"] = _qwen_experts(config, number=512, chosen=10)
    return _qwen_layers(config, fields, feeds)


def qwen3_5(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=4, head_dim=256) | RMSNORM_GATED
    return _qwen_layers(config, fields, [MLP] * fields["num_layers"])


def qwen3_5_moe(config: Config) -> Fields:
    fields = gqa(config, shape(config, tied=False), kv_heads=2, head_dim=256) | RMSNORM_GATED
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    fields["moe"] = _qwen_experts(config, number=256, chosen=8)
    return _qwen_layers(config, fields, [EXPERTS] * fields["num_layers"])


NEMOTRON_LETTERS = {"M": LINEAR, "E": "moe", "*": FULL, "-": "mlp"}
NEMOTRON_KINDS = {"mamba": LINEAR, "attention": FULL, **{k: k for k in NEMOTRON_LETTERS.values()}}


def _nemotron_kinds(
    config: Config,
    listed: str = "layers_block_type",
    spelled: str = "hybrid_override_pattern",
    usual: str = "ME*-",
) -> list[str]:
    """One block for each layer, as a list of words or a string of letters."""
    for name in (listed, "layer_types") if listed == "layers_block_type" else (listed,):
        words = config.data.get(name)
        if words is not None:
            known = isinstance(words, list) and bool(words)
            if known and all(isinstance(w, str) and w in NEMOTRON_KINDS for w in words):
                return [NEMOTRON_KINDS[word] for word in words]
            config.refuse(name, f"must be a list of {', '.join(NEMOTRON_KINDS)}")
            return [FULL]
    letters = config.data.get(spelled)
    if letters is None:
        config.guess(spelled, usual)
        return [NEMOTRON_LETTERS[letter] for letter in usual]
    if isinstance(letters, str) and letters and not set(letters) - set(NEMOTRON_LETTERS):
        return [NEMOTRON_LETTERS[letter] for letter in letters[:LAYERS]]
    config.refuse(spelled, "must be a string of M, E, * and -")
    return [FULL]


def nemotron_h(config: Config) -> Fields:
    """Each layer is one block, with its own norm; its attention has no positions."""
    listed = _nemotron_kinds(config)
    head_dim = "attention_head_dim" if config.states("attention_head_dim") else "head_dim"
    fields: Fields = {
        "num_layers": len(listed),
        "hidden_size": config.count("hidden_size", most=WIDTH),
        "num_attention_heads": config.count("num_attention_heads", most=HEADS),
        "num_query_groups": config.count("num_key_value_heads", most=HEADS, default=8),
        "head_dim": config.count(head_dim, most=WIDTH, default=128),
        "ffn_hidden_size": config.count("intermediate_size", most=WIDTH),
        "vocab_size": config.count("vocab_size", most=TOKENS),
        "tied_embeddings": config.flag("tie_word_embeddings", False),
        "norm": "rmsnorm",
        "position": "none",
        "mlp_bias": config.flag("mlp_bias", False),
        "attention_dropout": config.probability("attention_dropout", 0.0),
        "hidden_dropout": config.probability("hidden_dropout", 0.0),
    }
    blocks = {FULL: ATTENTION, "mlp": MLP, "moe": EXPERTS, LINEAR: _nemotron_mamba(config)}
    if "moe" in listed:
        config.require("mlp_bias", False, "its experts have no bias")
        fields["moe"] = _nemotron_experts(config)
    mtp = prediction(config)
    if mtp["mtp_num_layers"]:
        after = _nemotron_kinds(
            config, "mtp_layers_block_type", "mtp_hybrid_override_pattern", "*E"
        )
        mtp["mtp_layer"] = [blocks[kind] for kind in after]
    return fields | pattern([[blocks[kind]] for kind in listed]) | mtp


def _nemotron_mamba(config: Config) -> Fields:
    return {
        "kind": "mamba2",
        "num_heads": config.count("mamba_num_heads", most=HEADS, default=128),
        "head_dim": config.count("mamba_head_dim", most=WIDTH, default=64),
        "state_size": config.count("ssm_state_size", most=WIDTH, default=128),
        "num_groups": config.count("n_groups", "mamba_n_groups", most=HEADS, default=8),
        "convolution": config.count("conv_kernel", "mamba_d_conv", most=TOKENS, default=4),
        "convolution_bias": config.flag("use_conv_bias", True),
        "bias": config.flag("use_bias", False),
        "chunk_size": config.count("chunk_size", "mamba_chunk_size", most=TOKENS, default=128),
    }


def _nemotron_experts(config: Config) -> Fields:
    latent = config.optional("moe_latent_size", most=WIDTH, default=None)
    shared = config.count("moe_shared_expert_intermediate_size", most=WIDTH, default=7688)
    groups = config.count("n_group", most=HEADS, default=1)
    chosen = config.count("topk_group", most=HEADS, default=1)
    return {
        **routed(config, experts=("n_routed_experts",), number=8, chosen=2),
        "expert_ffn_hidden_size": expert_width(config, 7688),
        "shared_expert_ffn_hidden_size": shared,
        "latent_size": latent,
        "score_correction_bias": True,
        **({} if groups == 1 else {"num_groups": groups, "top_k_groups": chosen}),
    }
