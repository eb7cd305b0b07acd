"""Mixture-of-experts families of 2025 and 2026 with plain or latent attention to all tokens."""

from __future__ import annotations

from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families.dense_2025 import exaone_mixers
from planner.huggingface.families.mixtures import groups, latent
from planner.huggingface.families.pattern_fields import (
    ATTENTION,
    EXPERTS,
    FULL,
    LATENT,
    MLP,
    SLIDING,
    dense_or_sparse,
    expert_width,
    full_attention_every,
    kinds,
    latent_experts,
    pattern,
    prediction,
    routed,
)
from planner.huggingface.families.shared_fields import (
    RMSNORM_GATED,
    Fields,
    attention_bias,
    gqa,
    linear_biases,
    llama_shape,
    shape,
    window,
)


def _balanced(number: int) -> Fields:
    """Load-balancing biases that are parameters of the model, one for each expert."""
    return {"kind": "products", "parameters": number}


def granite_moe(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    moe = routed(config, experts=("num_local_experts",), number=8, chosen=2)
    return fields | {"moe": moe | {"expert_ffn_hidden_size": fields["ffn_hidden_size"]}}


def granite_moe_shared(config: Config) -> Fields:
    fields = granite_moe(config)
    shared = config.count("shared_intermediate_size", least=0, most=WIDTH, default=0)
    return fields | {"moe": {**fields["moe"], "shared_expert_ffn_hidden_size": shared}}


def phimoe(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=8) | attention_bias(config, False)
    fields |= window(config, fields["num_layers"], size=None)
    moe = routed(config, experts=("num_local_experts", "num_experts"), number=16, chosen=2)
    return fields | {
        "gated_mlp": True,
        "lm_head_bias": config.flag("lm_head_bias", False),
        "moe": moe | {"expert_ffn_hidden_size": fields["ffn_hidden_size"]},
    }


def flex_olmo(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    moe = routed(config, experts=("num_experts", "num_local_experts"), number=7, chosen=5)
    moe["expert_ffn_hidden_size"] = fields["ffn_hidden_size"]
    return fields | {"qk_norm": "full", "moe": moe}


def deepseek(config: Config) -> Fields:
    """The first DeepSeekMoE."""
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    moe = latent_experts(config, number=64, chosen=6, width=1408, shared=2)
    moe["score_correction_bias"] = False
    feeds = dense_or_sparse(config, fields["num_layers"], 0)
    return fields | {"moe": moe} | pattern([[ATTENTION, feed] for feed in feeds])


def dots1(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=32) | RMSNORM_GATED
    fields |= attention_bias(config, False) | {"qk_norm": "head"}
    layers = fields["num_layers"]
    feeds = dense_or_sparse(config, layers, 0)
    size = config.optional("sliding_window", most=TOKENS, default=4096)
    full = layers
    if not config.states("layer_types"):
        full = config.count("max_window_layers", least=0, most=LAYERS, default=62)
    default = [SLIDING if size and i >= full else FULL for i in range(layers)]
    listed = kinds(config, "layer_types", default, {SLIDING, FULL}, "full in the first layers")
    mixers = {SLIDING: {**ATTENTION, "window": size}, FULL: ATTENTION}
    if EXPERTS in feeds:
        moe = latent_experts(config, number=None, chosen=None, width=1408, shared=None)
        fields["moe"] = moe | groups(config, 1, 1)
    return fields | pattern([[mixers[k], feed] for k, feed in zip(listed, feeds, strict=True)])


def solar_open(config: Config) -> Fields:
    fields = gqa(config, shape(config, tied=False), kv_heads=8, head_dim=128) | RMSNORM_GATED
    fields |= attention_bias(config, False)
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    moe = latent_experts(config, number=128, chosen=8, width=1280)
    return fields | {"moe": moe | groups(config, 1, 1)} | prediction(config)


def mistral4(config: Config) -> Fields:
    fields = latent(config, q_rank=1024, kv_rank=256, nope=64)
    return _latent_layers(config, fields, dense=0, number=128, chosen=4, width=2048)


def glm4_moe_lite(config: Config) -> Fields:
    fields = latent(config, q_rank=768, nope=192, value=256)
    return _latent_layers(config, fields, dense=1, number=64, chosen=4, width=1536)


def _latent_layers(
    config: Config, fields: Fields, *, dense: int, number: int, chosen: int, width: int
) -> Fields:
    feeds = dense_or_sparse(config, fields["num_layers"], dense)
    if EXPERTS in feeds:
        moe = latent_experts(config, number=number, chosen=chosen, width=width)
        fields["moe"] = moe | groups(config, 1, 1)
    return fields | pattern([[LATENT, feed] for feed in feeds]) | prediction(config)


def longcat_flash(config: Config) -> Fields:
    """Two attentions and two MLPs in each layer; the experts are parallel to the first MLP."""
    fields = latent(config, layers=("num_layers",), ffn="ffn_hidden_size")
    config.require("router_bias", False, "its router has no bias")
    moe = routed(
        config, experts=("n_routed_experts",), number=512,
        top_k=("moe_topk", "num_experts_per_tok"), chosen=12,
    )  # fmt: skip
    moe |= {
        "expert_ffn_hidden_size": expert_width(config, 2048, "expert_ffn_hidden_size"),
        "zero_experts": config.count("zero_expert_num", least=0, most=HEADS, default=256),
        "score_correction_bias": True,
    }
    both: Fields = {"kind": "parallel", "branches": [MLP, EXPERTS]}
    return fields | {"moe": moe} | pattern([[LATENT, both, LATENT, MLP]])


def hunyuan_moe(config: Config) -> Fields:
    """A shared expert as wide as the routed ones."""
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    top_k = _alike(config, "moe_topk", 1)
    shared = _alike(config, "num_shared_expert", 1)
    ffn = fields["ffn_hidden_size"]
    if config.states("moe_intermediate_size"):
        ffn = _alike(config, "moe_intermediate_size", ffn)
    experts = config.count("num_experts", "num_local_experts", least=2, most=HEADS)
    return fields | {
        "qk_norm": "head",
        "moe": {
            "num_experts": experts,
            "top_k": top_k,
            "expert_ffn_hidden_size": ffn,
            "shared_expert_ffn_hidden_size": shared * ffn,
        },
    }


def _alike(config: Config, name: str, default: int) -> int:
    """A number for all layers, or a list of equal ones."""
    value = config.data.get(name)
    if not isinstance(value, list):
        return config.count(name, most=WIDTH, default=default)
    if not value or type(value[0]) is not int or len(set(map(str, value))) != 1:
        config.refuse(name, "only one number for all layers can be planned")
        return default
    return int(value[0])


def ernie4_5_moe(config: Config) -> Fields:
    """Experts in a range of layers; their load-balancing biases count as parameters."""
    fields = llama_shape(config, tied=True, kv_heads=4) | RMSNORM_GATED
    bias = config.flag("use_bias", False)
    config.require("use_bias", False, "its experts have no bias")
    layers = fields["num_layers"]
    first = _first(config, "moe_layer_start_index", 1)
    last = _first(config, "moe_layer_end_index", -1)
    last = layers - 1 if last == -1 else last
    step = config.count("moe_layer_interval", most=LAYERS, default=1)
    sparse = [(i + 1) % step == 0 and first <= i <= last for i in range(layers)]
    ffn = _first(config, "moe_intermediate_size", 1536)
    shared = config.count("moe_num_shared_experts", least=0, most=1000, default=2)
    experts = _first(config, "moe_num_experts", 64)
    moe = {
        "num_experts": experts,
        "top_k": config.count("moe_k", most=LAYERS, default=6),
        "expert_ffn_hidden_size": ffn,
        "shared_expert_ffn_hidden_size": shared * ffn,
    }
    own = [ATTENTION, EXPERTS, _balanced(experts)]
    layer = [own if flag else [ATTENTION, MLP] for flag in sparse]
    fields |= {"moe": moe} if any(sparse) else {}
    return fields | linear_biases(bias) | pattern(layer)


def _first(config: Config, name: str, default: int) -> int:
    """A number, which may be -1 for the last layer."""
    if config.data.get(name) == -1:
        return -1
    return config.count(name, least=0, most=WIDTH, default=default)


def exaone_moe(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=32) | RMSNORM_GATED | {"qk_norm": "head"}
    mixers = exaone_mixers(config, fields["num_layers"])
    feeds = dense_or_sparse(config, fields["num_layers"], 1)
    if EXPERTS in feeds:
        moe = latent_experts(config, number=64, chosen=8, width=1024)
        fields["moe"] = moe | groups(config, 1, 1)
    layers = [list(pair) for pair in zip(mixers, feeds, strict=True)]
    return fields | pattern(layers) | prediction(config)


def afmoe(config: Config) -> Fields:
    """Gated attention, with positions only in layers with a window; four norms in each layer."""
    fields = gqa(config, shape(config, tied=False), head_dim=128) | RMSNORM_GATED
    fields |= attention_bias(config, False) | {"norms_per_layer": 4, "qk_norm": "head"}
    fields["ffn_hidden_size"] = config.count("intermediate_size", most=WIDTH)
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    layers = fields["num_layers"]
    size = config.count("sliding_window", most=TOKENS, default=1024)
    period = 4
    if not config.states("layer_types"):
        period = config.count("global_attn_every_n_layers", most=LAYERS, default=4)
    listed = kinds(
        config,
        "layer_types",
        full_attention_every(layers, period),
        {SLIDING, FULL},
        f"full every {period}th",
    )
    gated = {**ATTENTION, "gate": "element"}
    mixers = {SLIDING: {**gated, "window": size}, FULL: {**gated, "rope": False}}
    dense = config.count("num_dense_layers", least=0, most=LAYERS, default=1)
    experts = config.count("num_experts", least=2, most=HEADS, default=64)
    ffn = expert_width(config, 1408)
    shared = config.count("num_shared_experts", least=0, most=1000, default=2)
    if dense < layers:
        fields["moe"] = {
            "num_experts": experts,
            "top_k": config.count("num_experts_per_tok", most=LAYERS, default=6),
            "expert_ffn_hidden_size": ffn,
            "shared_expert_ffn_hidden_size": shared * ffn,
        }
    sparse = [EXPERTS, _balanced(experts)]
    feeds = [[MLP] if i < dense else sparse for i in range(layers)]
    return fields | pattern([[mixers[k], *feed] for k, feed in zip(listed, feeds, strict=True)])


def step3p5(config: Config) -> Fields:
    """A gate for each head; layers with a window may have more heads."""
    fields = shape(config, tied=False)
    names = ("num_key_value_heads", "num_attention_groups")
    fields["num_query_groups"] = config.count(*names, most=HEADS, default=8)
    fields["head_dim"] = config.count("head_dim", most=WIDTH, default=128)
    fields |= RMSNORM_GATED | attention_bias(config, False) | {"qk_norm": "head"}
    config.require("mlp_bias", False, "its MLPs have no bias")
    layers, heads = fields["num_layers"], fields["num_attention_heads"]
    gate = "element" if config.data.get("gating", True) not in (True, "per-head") else "head"
    full: Fields = {**ATTENTION, "gate": gate}
    size = config.optional("sliding_window", most=TOKENS, default=None)
    local = full if size is None else {**full, "window": size}
    more = _sliding_heads(config, heads)
    if more != heads:
        local = {**local, "num_attention_heads": more,
                 "num_query_groups": fields["num_query_groups"]}  # fmt: skip
    mixers = {SLIDING: local, FULL: full}
    listed = kinds(_without_mtp(config, layers), "layer_types", [FULL] * layers, mixers, "all full")
    ffn = expert_width(config, 1280)
    shared = config.count("share_expert_dim", "share_expert_dims", most=WIDTH, default=1280)
    experts = ("n_routed_experts", "moe_num_experts")
    top_k = ("num_experts_per_tok", "moe_top_k")
    feeds = _step_feeds(config, layers)
    if EXPERTS in feeds:
        fields["moe"] = {
            **routed(config, experts=experts, number=288, top_k=top_k, chosen=8),
            "expert_ffn_hidden_size": ffn,
            "shared_expert_ffn_hidden_size": shared,
            "score_correction_bias": True,
        }
    fields["ffn_hidden_size"] = config.count("intermediate_size", most=WIDTH)
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    layer = [[mixers[kind], feed] for kind, feed in zip(listed, feeds, strict=True)]
    return fields | pattern(layer) | prediction(config)


def _without_mtp(config: Config, layers: int) -> Config:
    """The config with its lists cut to `layers`: they may include layers of MTP."""
    stated = config.data.get("num_nextn_predict_layers")
    extra = stated if type(stated) is int else 0
    data = {
        name: value[:layers] if isinstance(value, list) and len(value) == layers + extra else value
        for name, value in config.data.items()
    }
    inner = Config(data, config.family, config.pointer)
    inner.problems, inner.guessed = config.problems, config.guessed
    return inner


def _sliding_heads(config: Config, heads: int) -> int:
    other = config.nested("attention_other_setting")
    if other.states("num_attention_heads") and not config.states("num_sliding_attention_heads"):
        return other.count("num_attention_heads", most=HEADS)
    return config.count(
        "num_sliding_attention_heads", most=HEADS, default=heads, because="num_attention_heads"
    )


def _step_feeds(config: Config, layers: int) -> list[Fields]:
    """The feed-forward of each layer, listed by kind or by the numbers of layers with experts."""
    listed = config.data.get("moe_layers_enum")
    numbers = set(range(3, layers))
    if isinstance(listed, str) and not config.states("mlp_layer_types"):
        if not all(part.strip().isdecimal() for part in listed.split(",") if part.strip()):
            config.refuse("moe_layers_enum", "must be layer numbers with commas between")
            return [MLP] * layers
        numbers = {int(part) for part in listed.split(",") if part.strip()}
    default = ["sparse" if i in numbers else "dense" for i in range(layers)]
    inner = _without_mtp(config, layers)
    words = kinds(inner, "mlp_layer_types", default, {"sparse", "dense"}, "the first 3 are dense")
    return [EXPERTS if word == "sparse" else MLP for word in words]
