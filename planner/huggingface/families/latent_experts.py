"""Mixture-of-experts families with sparse, latent, linear, chunked or windowed attention."""

from __future__ import annotations

from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families.mixtures import groups, latent
from planner.huggingface.families.pattern_fields import (
    EXPERTS,
    FULL,
    LATENT,
    LINEAR,
    MLP,
    SLIDING,
    Layer,
    dense_or_sparse,
    expert_width,
    full_attention_every,
    kinds,
    latent_experts,
    numbered,
    pattern,
    prediction,
    rotary_layers,
    routed,
)
from planner.huggingface.families.shared_fields import (
    RMSNORM_GATED,
    Fields,
    attention_bias,
    gqa,
    shape,
)


def _indexer(config: Config, heads: int, top_k: int = 2048) -> Fields:
    return {
        "num_heads": config.count("index_n_heads", most=HEADS, default=heads),
        "head_dim": config.count("index_head_dim", most=WIDTH, default=128),
        "top_k": config.count("index_topk", most=TOKENS, default=top_k),
    }


def deepseek_v32(config: Config) -> Fields:
    fields = latent(config) | prediction(config)
    config.require("mlp_bias", False, "its MLPs have no bias")
    mixer = {**LATENT, "indexer": _indexer(config, 64)}
    feeds = dense_or_sparse(config, fields["num_layers"], 3)
    if EXPERTS in feeds:
        fields["moe"] = latent_experts(config) | groups(config, 8, 4)
    return fields | pattern([[mixer, feed] for feed in feeds])


def glm_moe_dsa(config: Config) -> Fields:
    """Most layers of GLM-5.2 use the tokens that an earlier layer's indexer has picked."""
    fields = latent(config, q_rank=2048, nope=192, value=256) | prediction(config)
    config.require("mlp_bias", False, "its MLPs have no bias")
    own = _indexer(config, 32)
    indexers = {"full": own, "shared": {**own, "shared": True}}
    feeds = dense_or_sparse(config, fields["num_layers"], 3)
    if EXPERTS in feeds:
        fields["moe"] = latent_experts(config) | groups(config, 1, 1)
    listed = _glm_indexers(config, fields["num_layers"])
    layers = [
        [{**LATENT, "indexer": indexers[kind]}, feed]
        for kind, feed in zip(listed, feeds, strict=True)
    ]
    return fields | pattern(layers)


def _glm_indexers(config: Config, layers: int) -> list[str]:
    letters = config.data.get("index_topk_pattern")
    if isinstance(letters, str) and not config.states("indexer_types"):
        if len(letters) != layers or set(letters) - {"F", "S"}:
            config.refuse("index_topk_pattern", f"must be {layers} letters F and S")
            return ["full"] * layers
        return ["full" if letter == "F" else "shared" for letter in letters]
    period, offset = 1, 2
    if not config.states("indexer_types"):
        period = config.count("index_topk_freq", least=0, most=LAYERS, default=1) or 1
        offset = config.count("index_skip_topk_offset", least=0, most=LAYERS, default=2)
    default = [
        "shared" if max(i - offset + 1, 0) % period else "full" for i in range(layers)
    ]  # fmt: skip
    how = f"every {period}th layer after {offset}"
    return kinds(config, "indexer_types", default, {"full", "shared"}, how)


V4_KINDS = {
    0: SLIDING,
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}


def deepseek_v4(config: Config) -> Fields:
    """Four residual streams; attention to a window and to tokens compressed by 4 (top-k) or 128."""
    fields = shape(config, tied=False) | RMSNORM_GATED
    for name in ("attention_bias", "mlp_bias"):
        config.require(name, False, "its projections have no bias")
    config.require("num_key_value_heads", 1, "all heads share one key")
    common = {
        "kind": "compressed_attention",
        "q_lora_rank": config.count("q_lora_rank", most=WIDTH, default=1024),
        "o_lora_rank": config.count("o_lora_rank", most=WIDTH, default=1024),
        "o_groups": config.count("o_groups", most=HEADS, default=8),
        "window": config.count("sliding_window", most=TOKENS, default=128),
    }
    rates = config.nested("compress_rates")
    some, many = (
        rates.count(V4_KINDS[rate], most=TOKENS, default=rate) for rate in (4, 128)
    )  # fmt: skip
    choice = _indexer(config, 64, top_k=512)
    mixers = {
        SLIDING: common,
        V4_KINDS[4]: {**common, "compression": some, "choice": choice},
        V4_KINDS[128]: {**common, "compression": many},
    }
    listed = _v4_kinds(config, fields["num_layers"])
    moe = latent_experts(config, chosen=6)
    return (
        fields
        | {
            "num_query_groups": 1,
            "head_dim": config.count("head_dim", most=WIDTH, default=512),
            "attention_sinks": True,
            "attention_dropout": config.probability("attention_dropout", 0.0),
            "residual_streams": config.count("hc_mult", least=2, most=64, default=4),
            "moe": moe,
        }
        | prediction(config)
        | pattern([[mixers[kind], EXPERTS] for kind in listed])
    )


def _v4_kinds(config: Config, layers: int) -> list[str]:
    ratios = config.data.get("compress_ratios")
    if isinstance(ratios, list) and not config.states("layer_types"):
        if len(ratios) < layers or any(type(r) is not int or r not in V4_KINDS for r in ratios):
            config.refuse("compress_ratios", f"must be a list of {layers} of 0, 4 and 128")
            return [SLIDING] * layers
        return [V4_KINDS[ratio] for ratio in ratios[:layers]]
    default = [V4_KINDS[4 if i % 2 and i > 1 else 128] for i in range(layers)]
    return kinds(config, "layer_types", default, V4_KINDS.values(), "4 and 128 take turns")


def kimi_linear(config: Config) -> Fields:
    """Kimi delta attention, and latent attention without positions in every fourth layer."""
    fields = latent(config, q_rank=None) | {"position": "none"} | prediction(config)
    if config.states("routed_expert_hidden_size"):
        message = "experts behind a latent, as of Kimi K3, have no public code to plan by"
        config.refuse("routed_expert_hidden_size", message)
    linear = config.nested("linear_attn_config")
    head_dim = _either(config, linear, "linear_head_dim", "head_dim", 128)
    heads = _either(config, linear, "linear_num_heads", "num_heads", 32)
    delta = {
        "kind": "gated_delta_net",
        "num_key_heads": heads,
        "num_value_heads": heads,
        "key_head_dim": head_dim,
        "value_head_dim": head_dim,
        "convolution": _either(
            config, linear, "linear_conv_kernel_dim", "short_conv_kernel_size", 4
        ),
        "channel_decays": True,
        "decay_rank": head_dim,
        "gate_rank": head_dim,
    }
    mixers = {LINEAR: delta, FULL: LATENT}
    feeds = dense_or_sparse(config, fields["num_layers"], 1)
    if EXPERTS in feeds:
        fields["moe"] = _kimi_experts(config)
    listed = _kimi_kinds(config, linear, fields["num_layers"])
    return fields | pattern([[mixers[k], feed] for k, feed in zip(listed, feeds, strict=True)])


def _either(config: Config, inner: Config, name: str, other: str, default: int) -> int:
    """A number that an inner object states, or else the config itself."""
    if inner.states(other):
        return inner.count(other, most=WIDTH)
    return config.count(name, most=WIDTH, default=default)


def _kimi_experts(config: Config) -> Fields:
    names = ("num_experts_per_tok", "num_experts_per_token")
    ffn = expert_width(config, 1024)
    shared = config.count("n_shared_experts", "num_shared_experts", most=1000, default=1)
    count = config.count("n_group", "num_expert_group", most=HEADS, default=1)
    chosen = config.count("topk_group", most=HEADS, default=1)
    return {
        **routed(
            config, experts=("num_local_experts", "num_experts"), number=256, top_k=names, chosen=8
        ),
        "expert_ffn_hidden_size": ffn,
        "shared_expert_ffn_hidden_size": shared * ffn,
        "score_correction_bias": True,
        **({} if count == 1 else {"num_groups": count, "top_k_groups": chosen}),
    }


def _kimi_kinds(config: Config, linear: Config, layers: int) -> list[str]:
    """The kind of each layer; a list of full_attn_layers counts from 1."""
    full = numbered(linear, "full_attn_layers")
    if full is not None and not config.states("layer_types"):
        return [FULL if i + 1 in full else LINEAR for i in range(layers)]
    default = [FULL if i and i % 4 == 0 else LINEAR for i in range(layers)]
    return kinds(config, "layer_types", default, {FULL, LINEAR}, "full in every fourth layer")


def minimax_m2(config: Config) -> Fields:
    fields = gqa(config, shape(config, tied=False), kv_heads=8, head_dim=128) | RMSNORM_GATED
    moe = routed(config, experts=("num_local_experts", "num_experts"), number=256, chosen=8)
    moe |= {
        "expert_ffn_hidden_size": config.count("intermediate_size", most=WIDTH),
        "score_correction_bias": True,
    }
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    return fields | {"qk_norm": "full", "moe": moe} | prediction(config, "num_mtp_modules")


def minimax_m3(config: Config) -> Fields:
    """Most layers attend to the blocks of tokens that their own indexer scores highest."""
    fields = gqa(config, shape(config, tied=False), kv_heads=4, head_dim=128) | RMSNORM_GATED
    layers = fields["num_layers"]
    ffn = config.count("intermediate_size", most=WIDTH)
    shared = config.count("shared_intermediate_size", most=WIDTH, default=3072)
    feeds = dense_or_sparse(config, layers, 0)
    if EXPERTS in feeds:
        fields["moe"] = {
            **routed(config, experts=("num_local_experts",), number=128, chosen=4),
            "expert_ffn_hidden_size": ffn,
            "shared_expert_ffn_hidden_size": shared,
            "score_correction_bias": True,
        }
    mixers, listed = _m3_mixers(config, layers)
    modules = "num_nextn_predict_layers" if config.states("num_nextn_predict_layers") else ""
    return (
        fields
        | {
            "ffn_hidden_size": config.count("dense_intermediate_size", most=WIDTH, default=12_288),
            "qk_norm": "head",
            "attention_dropout": config.probability("attention_dropout", 0.0),
        }
        | prediction(config, modules or "num_mtp_modules")
        | pattern([[mixers[k], feed] for k, feed in zip(listed, feeds, strict=True)])
    )


def _m3_mixers(config: Config, layers: int) -> tuple[dict[str, Fields], list[str]]:
    sparse = config.nested("sparse_attention_config")
    block = _either(config, sparse, "index_block_size", "sparse_block_size", 128)
    indexer = {
        "num_heads": _either(config, sparse, "index_n_heads", "sparse_num_index_heads", 4),
        "head_dim": _either(config, sparse, "index_head_dim", "sparse_index_dim", 128),
        "block_size": block,
        "top_k": block * _either(config, sparse, "index_topk_blocks", "sparse_topk_blocks", 16),
        "key_norm_bias": False,
        "query_norm": True,
        "head_weights": False,
    }
    mixers: dict[str, Fields] = {
        FULL: {"kind": "attention"},
        "minimax_m3_sparse": {"kind": "attention", "indexer": indexer},
    }
    stated = sparse.data.get("sparse_attention_freq")
    default = [FULL] * layers
    if isinstance(stated, list):
        default = ["minimax_m3_sparse" if flag else FULL for flag in stated[:layers]]
        if len(default) != layers:
            sparse.refuse("sparse_attention_freq", f"must be a list of {layers} of 0 and 1")
            default = [FULL] * layers
    return mixers, kinds(config, "layer_types", default, mixers, "as the sparse attention says")


def llama4(config: Config) -> Fields:
    """Layers with RoPE attend inside chunks; every fourth has no RoPE and attends to all tokens."""
    fields = gqa(config, shape(config, tied=False), kv_heads=8, head_dim=128) | RMSNORM_GATED
    layers = range(fields["num_layers"])
    ffn = config.count("intermediate_size", most=WIDTH)
    fields |= attention_bias(config, False) | {
        "ffn_hidden_size": config.count("intermediate_size_mlp", most=WIDTH, default=16_384),
        "attention_dropout": config.probability("attention_dropout", 0.0),
    }
    sparse = numbered(config, "moe_layers")
    if sparse is None:
        step = config.count("interleave_moe_layer_step", most=LAYERS, default=1)
        sparse = set(layers[step - 1 :: step])
    mixers = _llama4_mixers(config, len(layers))
    feeds = [EXPERTS if i in sparse else MLP for i in layers]
    if EXPERTS in feeds:
        fields["moe"] = {
            **routed(config, experts=("num_local_experts",), number=16, chosen=1),
            "expert_ffn_hidden_size": ffn,
            "shared_expert_ffn_hidden_size": ffn,
        }
    return fields | pattern([list(pair) for pair in zip(mixers, feeds, strict=True)])


def _llama4_mixers(config: Config, layers: int) -> Layer:
    rotary = rotary_layers(config, layers)
    chunk = config.optional("attention_chunk_size", most=TOKENS, default=8192)
    local, every_token = "chunked_attention", FULL
    default = [local if flag else every_token for flag in rotary]
    listed = kinds(config, "layer_types", default, {local, every_token}, "chunks where rotary")
    mixers = []
    for kind, flag in zip(listed, rotary, strict=True):
        mixer: Fields = {"kind": "attention"}
        if kind == local and chunk is not None:
            mixer["chunk"] = chunk
        if not flag:
            mixer["rope"] = False
        mixers.append(mixer)
    return mixers


def mimo_v2_flash(config: Config) -> Fields:
    """Layers with a window have attention sinks and twice the key/value heads."""
    fields = gqa(config, shape(config, tied=False), kv_heads=4, head_dim=192) | RMSNORM_GATED
    layers, groups_ = fields["num_layers"], fields["num_query_groups"]
    value = config.count("v_head_dim", most=WIDTH, default=128)
    size = config.count("sliding_window", "sliding_window_size", most=TOKENS, default=129)
    window = size + config.states("sliding_window_size")
    wide = config.count("swa_num_key_value_heads", most=HEADS, default=2 * groups_,
                        because="twice num_key_value_heads")  # fmt: skip
    local: Fields = {"kind": "attention", "window": window, "value_head_dim": value, "sinks": True}
    local["num_query_groups"] = wide
    mixers = {SLIDING: local, FULL: {"kind": "attention", "value_head_dim": value}}
    default = full_attention_every(layers, 6)
    default[0] = FULL
    stated = config.data.get("hybrid_layer_pattern")
    if isinstance(stated, list) and len(stated) == layers:
        default = [SLIDING if flag else FULL for flag in stated]
    listed = kinds(config, "layer_types", default, mixers, "full in the first and every 6th layer")
    feeds = dense_or_sparse(config, layers, 1)
    if EXPERTS in feeds:
        fields["moe"] = latent_experts(config, shared=0) | groups(config, 1, 1)
    return (
        fields
        | {
            "ffn_hidden_size": config.count("intermediate_size", most=WIDTH),
            "qkv_bias": config.flag("attention_bias", False),
            "attention_dropout": config.probability("attention_dropout", 0.0),
        }
        | pattern([[mixers[k], feed] for k, feed in zip(listed, feeds, strict=True)])
    )
