"""Families with Mamba, other recurrences or short convolutions in most of their layers."""

from __future__ import annotations

from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families.pattern_fields import (
    ATTENTION,
    EXPERTS,
    FULL,
    LINEAR,
    MLP,
    Layer,
    expert_width,
    kinds,
    mamba2,
    numbered,
    pattern,
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


def _alone(config: Config, heads: int = 1) -> Fields:
    """The fields of a model without attention."""
    return {
        "num_layers": config.count("num_hidden_layers", most=LAYERS),
        "hidden_size": config.count("hidden_size", most=WIDTH),
        "num_attention_heads": heads,
        "vocab_size": config.count("vocab_size", most=TOKENS),
        "position": "none",
    }


def _time_step_rank(config: Config, name: str, hidden: int) -> int:
    """A sixteenth of the hidden size unless a number is stated."""
    if config.data.get(name, "auto") == "auto":
        rank = -(-hidden // 16)
        config.guess(name, rank, "hidden_size / 16")
        return rank
    return config.count(name, most=WIDTH)


def mamba(config: Config) -> Fields:
    """Mamba, and Falcon Mamba, whose norms of step, B and C have no parameters."""
    fields = _alone(config)
    hidden = fields["hidden_size"]
    block = {
        "kind": "mamba",
        "inner_size": hidden * config.count("expand", most=1000, default=2),
        "state_size": config.count("state_size", most=WIDTH, default=16),
        "time_step_rank": _time_step_rank(config, "time_step_rank", hidden),
        "convolution": config.count("conv_kernel", most=TOKENS, default=4),
        "convolution_bias": config.flag("use_conv_bias", True),
        "bias": config.flag("use_bias", False),
    }
    tied = config.flag("tie_word_embeddings", True)
    return (
        fields
        | {"head_dim": hidden, "norm": "rmsnorm", "tied_embeddings": tied}
        | pattern([[block]])
    )


def mamba2_alone(config: Config) -> Fields:
    heads = config.count("num_heads", most=HEADS, default=128)
    fields = _alone(config, heads)
    head_dim = config.count("head_dim", most=WIDTH, default=64)
    inner = fields["hidden_size"] * config.count("expand", most=1000, default=2)
    if heads * head_dim != inner and not config.problems:
        config.refuse("num_heads", f"times head_dim {head_dim} is not {inner}")
    block = {
        "kind": "mamba2",
        "num_heads": heads,
        "head_dim": head_dim,
        "state_size": config.count("state_size", most=WIDTH, default=128),
        "num_groups": config.count("n_groups", most=HEADS, default=8),
        "convolution": config.count("conv_kernel", most=TOKENS, default=4),
        "convolution_bias": config.flag("use_conv_bias", True),
        "bias": config.flag("use_bias", False),
        "chunk_size": config.count("chunk_size", most=TOKENS, default=256),
    }
    tied = config.flag("tie_word_embeddings", False)
    return (
        fields
        | {"head_dim": head_dim, "norm": "rmsnorm", "tied_embeddings": tied}
        | pattern([[block]])
    )


def jamba(config: Config) -> Fields:
    """Attention without positions in one layer of each period, experts in every second."""
    fields = llama_shape(config, tied=False, kv_heads=8) | RMSNORM_GATED | {"position": "none"}
    hidden, layers = fields["hidden_size"], range(fields["num_layers"])
    period = config.count("attn_layer_period", most=LAYERS, default=8)
    offset = config.count("attn_layer_offset", least=0, most=LAYERS, default=4)
    expert_period = config.count("expert_layer_period", most=LAYERS, default=2)
    expert_offset = config.count("expert_layer_offset", least=0, most=LAYERS, default=1)
    experts = config.count("num_experts", "num_local_experts", most=HEADS, default=16)
    block = {
        "kind": "mamba",
        "inner_size": hidden * config.count("mamba_expand", most=1000, default=2),
        "state_size": config.count("mamba_d_state", most=WIDTH, default=16),
        "time_step_rank": _time_step_rank(config, "mamba_dt_rank", hidden),
        "convolution": config.count("mamba_d_conv", most=TOKENS, default=4),
        "convolution_bias": config.flag("mamba_conv_bias", True),
        "bias": config.flag("mamba_proj_bias", False),
        "selection_norms": True,
    }
    mixers = [ATTENTION if i % period == offset else block for i in layers]
    sparse = [experts > 1 and i % expert_period == expert_offset for i in layers]
    if any(sparse):
        fields["moe"] = {
            "num_experts": experts,
            "top_k": config.count("num_experts_per_tok", most=LAYERS, default=2),
            "expert_ffn_hidden_size": fields["ffn_hidden_size"],
        }
    feeds = [EXPERTS if flag else MLP for flag in sparse]
    return fields | pattern([list(pair) for pair in zip(mixers, feeds, strict=True)])


def bamba(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=8) | RMSNORM_GATED
    fields |= attention_bias(config, False) | {"mlp_bias": config.flag("mlp_bias", False)}
    full = numbered(config, "attn_layer_indices") or set()
    block = mamba2(config, fields["hidden_size"])
    mixers = [ATTENTION if i in full else block for i in range(fields["num_layers"])]
    return fields | pattern([[mixer, MLP] for mixer in mixers])


def falcon_h1(config: Config) -> Fields:
    """Attention parallel to Mamba-2 in every layer."""
    fields = llama_shape(config, tied=False, kv_heads=8) | RMSNORM_GATED
    config.require("projectors_bias", False, "its projections have no bias")
    fields |= {
        "qkv_bias": config.flag("attention_bias", False),
        "mlp_bias": config.flag("mlp_bias", False),
    }
    width = config.optional("mamba_d_ssm", most=WIDTH, default=1024)
    block = mamba2(config, fields["hidden_size"], own_width=width)
    block["gated_norm"] = config.flag("mamba_rms_norm", False)
    return fields | pattern([[{"kind": "parallel", "branches": [block, ATTENTION]}, MLP]])


def granite_hybrid(config: Config) -> Fields:
    """A shared MLP in every layer, parallel to the experts if there are any."""
    fields = gqa(config, shape(config, tied=False)) | RMSNORM_GATED | attention_bias(config, False)
    rope = config.data.get("position_embedding_type") == "rope"
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    fields["position"] = "rope" if rope else "none"
    names = {"mamba": LINEAR, "attention": FULL, LINEAR: LINEAR, FULL: FULL}
    name = "layers_block_type" if config.states("layers_block_type") else "layer_types"
    default = [LINEAR] * fields["num_layers"]
    listed = [names[kind] for kind in kinds(config, name, default, names, "Mamba in every layer")]
    mixers = {FULL: ATTENTION}
    if LINEAR in listed:
        mixers[LINEAR] = mamba2(config, fields["hidden_size"])
    ffn = config.count("intermediate_size", most=WIDTH)
    fields["ffn_hidden_size"] = config.count("shared_intermediate_size", most=WIDTH, default=1024)
    feed = MLP
    if config.count("num_local_experts", least=0, most=HEADS, default=8):
        moe = routed(config, experts=("num_local_experts",), number=8, chosen=2)
        fields["moe"] = moe | {"expert_ffn_hidden_size": ffn}
        feed = {"kind": "parallel", "branches": [MLP, EXPERTS]}
    return fields | pattern([[mixers[kind], feed] for kind in listed])


def _lfm2_mixers(config: Config, fields: Fields) -> Layer:
    """Short convolutions, and attention in the layers that are listed."""
    layers = fields["num_layers"]
    bias = config.flag("conv_bias", False)
    taps = config.count("conv_L_cache", most=TOKENS, default=3)
    mixers = {"conv": {"kind": "short_convolution", "taps": taps, "bias": bias}, FULL: ATTENTION}
    full = numbered(config, "full_attn_idxs")
    default = [FULL if full is None or i in full else "conv" for i in range(layers)]
    return [mixers[kind] for kind in kinds(config, "layer_types", default, mixers, "attention")]


def _lfm2_shape(config: Config) -> Fields:
    name = "tie_embedding" if config.states("tie_embedding") else "tie_word_embeddings"
    fields = gqa(config, shape(config, tied=True), kv_heads=8)
    fields["tied_embeddings"] = config.flag(name, True)
    return fields | RMSNORM_GATED | {"qk_norm": "head"}


def lfm2(config: Config) -> Fields:
    """Its MLPs are two thirds of the stated width, rounded up, unless the file says otherwise."""
    fields = _lfm2_shape(config)
    name = "block_ff_dim" if config.states("block_ff_dim") else "intermediate_size"
    width = config.count(name, most=WIDTH)
    multiple = config.count("block_multiple_of", most=WIDTH, default=256)
    factor = config.data.get("block_ffn_dim_multiplier", 1.0)
    if factor is not None and not (type(factor) in (int, float) and 0 < factor < WIDTH):
        config.refuse("block_ffn_dim_multiplier", "must be a number above 0, or null")
        factor = None
    if config.flag("block_auto_adjust_ff_dim", True):
        width = int(2 * width / 3)
        if factor is not None:
            width = -(-int(factor * width) // multiple) * multiple
    layers = [[mixer, MLP] for mixer in _lfm2_mixers(config, fields)]
    return fields | {"ffn_hidden_size": width} | pattern(layers)


def lfm2_moe(config: Config) -> Fields:
    fields = _lfm2_shape(config)
    fields["ffn_hidden_size"] = config.count("intermediate_size", most=WIDTH)
    dense = config.count("num_dense_layers", least=0, most=LAYERS, default=2)
    moe = routed(config, experts=("num_experts",), number=32, chosen=4)
    moe["expert_ffn_hidden_size"] = expert_width(config, 1792)
    moe["score_correction_bias"] = config.flag("use_expert_bias", True)
    if dense < fields["num_layers"]:
        fields["moe"] = moe
    mixers = _lfm2_mixers(config, fields)
    layers = [[mixer, MLP if i < dense else EXPERTS] for i, mixer in enumerate(mixers)]
    return fields | pattern(layers)


def minimax(config: Config) -> Fields:
    """MiniMax-Text-01: lightning attention, and full attention in some layers."""
    fields = llama_shape(config, tied=False, kv_heads=8) | RMSNORM_GATED
    moe = routed(config, experts=("num_local_experts", "num_experts"), number=8, chosen=2)
    fields["moe"] = moe | {"expert_ffn_hidden_size": fields["ffn_hidden_size"]}
    layers = fields["num_layers"]
    full: Fields = dict(ATTENTION)
    size = config.optional("sliding_window", most=TOKENS, default=None)
    if size is not None:
        full["window"] = size
    mixers: dict[str, Fields] = {LINEAR: {"kind": "lightning_attention"}, FULL: full}
    stated = config.data.get("attn_type_list")
    default = [LINEAR if i % 2 else FULL for i in range(layers)]
    if isinstance(stated, list) and len(stated) == layers:
        default = [FULL if flag else LINEAR for flag in stated]
    listed = kinds(config, "layer_types", default, mixers, "both take turns")
    return fields | pattern([[mixers[kind], EXPERTS] for kind in listed])


def rwkv(config: Config) -> Fields:
    """RWKV-4, with an additional norm before the first layer."""
    fields = _alone(config)
    hidden = fields["hidden_size"]
    own = config.optional("attention_hidden_size", most=WIDTH, default=None) or hidden
    width = config.optional("intermediate_size", most=WIDTH, default=None) or 4 * hidden
    blocks: Layer = [
        {"kind": "rwkv_time_mix", "width": own},
        {"kind": "rwkv_channel_mix", "width": width},
    ]
    first: Fields = {"kind": "products", "parameters": 2 * hidden}
    rest = [blocks] * (fields["num_layers"] - 1)
    return (
        fields
        | {"head_dim": hidden, "tied_embeddings": config.flag("tie_word_embeddings", False)}
        | pattern([[*blocks, first], *rest])
    )


def recurrent_gemma(config: Config) -> Fields:
    """Griffin: recurrent units, and sliding-window attention in every third layer."""
    fields = gqa(config, shape(config, tied=True)) | RMSNORM_GATED
    config.require("attention_bias", False, "its projections in have no bias")
    hidden, layers = fields["hidden_size"], fields["num_layers"]
    width = config.optional("lru_width", most=WIDTH, default=None) or hidden
    window = config.count("attention_window_size", "sliding_window", most=TOKENS, default=2048)
    taps = config.count("conv1d_width", most=TOKENS, default=4)
    recurrent = {
        "kind": "linear_recurrent_unit",
        "width": width,
        "num_blocks": fields["num_attention_heads"],
        "convolution": taps,
    }
    mixers = {"recurrent": recurrent, "attention": {**ATTENTION, "window": window}}
    listed = config.data.get("block_types") or ["recurrent", "recurrent", "attention"]
    known = isinstance(listed, list | tuple) and all(isinstance(kind, str) for kind in listed)
    if not known or any(kind not in mixers for kind in listed):
        config.refuse("block_types", "may hold only recurrent and attention")
        listed = ["attention"]
    repeated = [listed[i % len(listed)] for i in range(layers)]
    return (
        fields
        | {
            "ffn_hidden_size": max(config.count("intermediate_size", most=WIDTH) // 2, 1),
            "attention_dropout": config.probability("attention_dropout", 0.0),
            "attention_output_bias": True,
            "mlp_bias": True,
        }
        | pattern([[mixers[kind], MLP] for kind in repeated])
    )


def olmo_hybrid(config: Config) -> Fields:
    """Gated delta nets, and full attention in every fourth layer."""
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    heads, layers = fields["num_attention_heads"], fields["num_layers"]
    default = [FULL if i % 4 == 3 else LINEAR for i in range(layers)]
    if FULL not in default:
        default[-1] = FULL
    listed = kinds(config, "layer_types", default, {LINEAR, FULL}, "full in every 4th layer")
    key_heads = config.optional("linear_num_key_heads", most=HEADS, default=None) or heads
    value_heads = config.optional("linear_num_value_heads", most=HEADS, default=None) or heads
    usual = max(int(0.75 * fields["hidden_size"] / key_heads), 1)
    key = config.optional("linear_key_head_dim", most=WIDTH, default=None) or usual
    value = config.optional("linear_value_head_dim", most=WIDTH, default=None) or 2 * key
    delta = {
        "kind": "gated_delta_net",
        "num_key_heads": key_heads,
        "num_value_heads": value_heads,
        "key_head_dim": key,
        "value_head_dim": value,
        "convolution": config.count("linear_conv_kernel_dim", most=TOKENS, default=4),
    }
    mixers = {LINEAR: delta, FULL: ATTENTION}
    return fields | {"qk_norm": "full"} | pattern([[mixers[kind], MLP] for kind in listed])
