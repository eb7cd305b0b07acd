"""Gemma 3n and Gemma 4: per-layer embeddings, keys shared between layers, two head widths."""

from __future__ import annotations

from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families.pattern_fields import (
    ATTENTION,
    EXPERTS,
    FULL,
    MLP,
    SLIDING,
    Layer,
    full_attention_every,
    kinds,
    pattern,
    routed,
)
from planner.huggingface.families.shared_fields import (
    RMSNORM_GATED,
    Fields,
    attention_bias,
    gqa,
    shape,
)


def _common(config: Config, kv_heads: int) -> Fields:
    fields = gqa(config, shape(config, tied=True), kv_heads=kv_heads, head_dim=256)
    return (
        fields
        | RMSNORM_GATED
        | attention_bias(config, False)
        | {
            "norms_per_layer": 4,
            "qk_norm": "head",
            "attention_dropout": config.probability("attention_dropout", 0.0),
        }
    )


def _shared(config: Config, layers: int, default: int) -> int:
    """The first layer that uses an earlier layer's keys and values."""
    return layers - config.count("num_kv_shared_layers", least=0, most=layers, default=default)


def _per_layer(config: Config, size: int) -> Fields:
    rows = config.count("vocab_size_per_layer_input", most=TOKENS, default=262_144)
    return {"per_layer_input_size": size, "per_layer_input_vocab_size": rows}


def gemma4(config: Config) -> Fields:
    """Full attention has wider heads, fewer key/value heads, and may use its keys as values."""
    fields = _common(config, 4)
    layers = fields["num_layers"]
    if config.data.get("use_bidirectional_attention") == "all":
        config.refuse("use_bidirectional_attention", "attention here is causal")
    default = full_attention_every(layers, 6)
    default[-1] = FULL
    listed = kinds(config, "layer_types", default, {SLIDING, FULL}, "full in every 6th layer")
    if listed[-1] != FULL:
        listed = [*listed[:-1], FULL]
    local = {**ATTENTION, "window": config.count("sliding_window", most=TOKENS, default=512)}
    mixers = {SLIDING: local, FULL: _gemma4_full(config, fields, listed)}
    shared = _shared(config, layers, 0)
    width = config.count("intermediate_size", most=WIDTH)
    wide = {**MLP, "width": 2 * width} if config.flag("use_double_wide_mlp", False) else MLP
    size = config.count("hidden_size_per_layer_input", least=0, most=WIDTH, default=256)
    more: Layer = []
    if config.flag("enable_moe_block", False):
        fields["moe"], more = _gemma4_experts(config, fields["hidden_size"])
    own: Layer = [{"kind": "per_layer_input", "size": size}] if size else []
    stack = []
    for i, kind in enumerate(listed):
        mixer, feed = mixers[kind], MLP
        if i >= shared:
            mixer = {**mixer, "key_values": "earlier"}
            feed = wide
        if more:
            feed = {"kind": "parallel", "branches": [feed, EXPERTS]}
        stack.append([mixer, feed, *more, *own])
    fields |= _per_layer(config, size) if size else {}
    return fields | {"ffn_hidden_size": width} | pattern(stack)


def _gemma4_full(config: Config, fields: Fields, listed: list[str]) -> Fields:
    """The mixer with full attention, stated once for all such layers or by layer number."""
    head_dim, kv_heads = "global_head_dim", "num_global_key_value_heads"
    each = config.data.get("per_layer_config")
    source, default = config, 512
    if isinstance(each, dict) and each:
        full = [i for i, kind in enumerate(listed) if kind == FULL]
        values = list(each.values())
        if any(v != values[0] for v in values) or {str(k).lstrip("0") for k in each} != {
            str(i).lstrip("0") for i in full
        }:
            config.refuse("per_layer_config", "only full attention may differ, and in one way")
        source = config.nested("per_layer_config").nested(next(iter(each)))
        head_dim, kv_heads, default = "head_dim", "num_key_value_heads", fields["head_dim"]
    mixer = {**ATTENTION, "head_dim": source.count(head_dim, most=WIDTH, default=default)}
    if config.flag("attention_k_eq_v", False):
        mixer["key_values"] = "keys"
        if source.states(kv_heads):
            mixer["num_query_groups"] = source.count(kv_heads, most=HEADS)
    return mixer


def _gemma4_experts(config: Config, hidden: int) -> tuple[Fields, Layer]:
    """Experts parallel to the MLP, with three more norms and the scales of the router."""
    moe = routed(config, experts=("num_experts",), number=128, top_k=("top_k_experts",), chosen=8)
    moe["expert_ffn_hidden_size"] = config.count("moe_intermediate_size", most=WIDTH)
    rest = 4 * hidden + moe["num_experts"]
    return moe, [{"kind": "products", "parameters": rest}]


def gemma3n(config: Config) -> Fields:
    """Four copies of the hidden state (AltUp): each layer works on one and corrects the others."""
    fields = _common(config, 2)
    layers, hidden = fields["num_layers"], fields["hidden_size"]
    listed = kinds(
        config,
        "layer_types",
        full_attention_every(layers, 5),
        {SLIDING, FULL},
        "full in every 5th layer",
    )
    local = {**ATTENTION, "window": config.count("sliding_window", most=TOKENS, default=512)}
    mixers = {SLIDING: local, FULL: ATTENTION}
    shared = _shared(config, layers, 15)
    widths = _widths(config, layers)
    size = config.count("hidden_size_per_layer_input", most=WIDTH, default=256)
    copies = config.count("altup_num_inputs", least=2, most=LAYERS, default=4)
    beside = _altup(config, hidden, copies)
    own: Fields = {"kind": "per_layer_input", "size": size}
    stack = []
    for i, kind in enumerate(listed):
        mixer = {**mixers[kind], "key_values": "earlier"} if i >= shared else mixers[kind]
        feed = MLP if widths[i] == widths[0] else {**MLP, "width": widths[i]}
        stack.append([mixer, feed, beside, own])
    ends: Fields = {
        "kind": "products",
        "products": [{"inputs": hidden, "outputs": hidden, "times": copies - 1}],
    }
    stack[0] = [*stack[0], ends]
    stack[-1] = [*stack[-1], ends]
    fields |= {"ffn_hidden_size": widths[0]} | _per_layer(config, size)
    return fields | pattern(stack)


def _widths(config: Config, layers: int) -> list[int]:
    """The width of each MLP; the file may state one for all."""
    stated = config.data.get("intermediate_size")
    if not isinstance(stated, list):
        return [config.count("intermediate_size", most=WIDTH)] * layers
    fits = all(type(width) is int and 1 <= width <= WIDTH for width in stated)
    if len(stated) != layers or not fits:
        config.refuse("intermediate_size", f"must be a width, or a list of {layers}")
        return [1] * layers
    return stated


def _altup(config: Config, hidden: int, copies: int) -> Fields:
    """The rest of a layer: a low-rank residual (LAuReL), and the mixtures of copies (AltUp)."""
    rank = config.count("laurel_rank", most=WIDTH, default=64)
    return {
        "kind": "products",
        "products": [
            {"inputs": hidden, "outputs": rank},
            {"inputs": rank, "outputs": hidden},
            {"inputs": hidden, "outputs": copies},
        ],
        "parameters": copies**2 + copies**3 + 3 * hidden,
    }
