"""Gemma 3n and Gemma 4: per-layer embeddings, keys shared between layers, two head widths."""

from __future__ import annotations

from cost_models.blocks import Sublayer, mlp
from cost_models.blocks.attention import Attention
from cost_models.blocks.per_layer_input import PerLayerInput
from cost_models.spec import ModelSpec
from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families import attention, experts, layers
from planner.huggingface.families.attention import FULL, SLIDING
from planner.huggingface.families.layers import ATTENTION, MLP
from planner.huggingface.families.rows import (
    Family,
    Fields,
    Hook,
    Key,
    Keys,
    NotWritten,
    Table,
    family,
)

COMMON = Table(
    attention.SHAPE,
    attention.Heads(),
    attention.RMSNORM_GATED,
    attention.ATTENTION_BIAS,
    attention.FOUR_NORMS,
    attention.QK_NORM_HEAD,
    attention.DROPOUT,
)
GEMMA4_EXPERTS = Table(
    Key("num_experts", "moe.num_experts", 128), Key("top_k_experts", "moe.top_k", 8), experts.WIDTH
)


def _shared(config: Config, depth: int, default: int) -> int:
    """The first layer that uses an earlier layer's keys and values."""
    return depth - config.count("num_kv_shared_layers", least=0, most=depth, default=default)


def _per_layer(config: Config, size: int) -> Fields:
    rows = config.count("vocab_size_per_layer_input", most=TOKENS, default=262_144)
    return {"per_layer_input_size": size, "per_layer_input_vocab_size": rows}


def _gemma4(config: Config, fields: Fields) -> Fields:
    """Full attention has wider heads, fewer key/value heads, and may use its keys as values."""
    depth = fields["num_layers"]
    if config.data.get("use_bidirectional_attention") == "all":
        config.refuse("use_bidirectional_attention", "attention here is causal")
    default, because = layers.every(6)(config, depth)
    listed = layers.kinds(config, "layer_types", default, {SLIDING, FULL}, because)
    if listed[-1] != FULL:
        listed = [*listed[:-1], FULL]
    local = {**ATTENTION, "window": config.count("sliding_window", most=TOKENS, default=512)}
    mixers = {SLIDING: local, FULL: _gemma4_full(config, fields, listed)}
    shared = _shared(config, depth, 0)
    width = config.count("intermediate_size", most=WIDTH)
    wide = {**MLP, "width": 2 * width} if config.flag("use_double_wide_mlp", False) else MLP
    size = config.count("hidden_size_per_layer_input", least=0, most=WIDTH, default=256)
    more: layers.Layer = []
    found: Fields = {}
    if config.flag("enable_moe_block", False):
        found = GEMMA4_EXPERTS(config, fields)
        # With experts come three more norms and the scales of the router.
        rest = 4 * fields["hidden_size"] + found["moe.num_experts"]
        more = [{"kind": "products", "parameters": rest}]
    own: layers.Layer = [{"kind": "per_layer_input", "size": size}] if size else []
    stack = []
    for i, kind in enumerate(listed):
        mixer, feed = mixers[kind], MLP
        if i >= shared:
            mixer = {**mixer, "key_values": "earlier"}
            feed = wide
        if more:
            feed = {"kind": "parallel", "branches": [feed, layers.EXPERTS]}
        stack.append([mixer, feed, *more, *own])
    found |= _per_layer(config, size) if size else {}
    return found | {"ffn_hidden_size": width} | layers.pattern(stack)


def _gemma4_keys(model: ModelSpec) -> Keys:
    """The keys of Gemma 4 for a model whose mixers are attention with and without a window."""
    stack = layers.each_layer(model)
    mixers = [blocks[0] for blocks in stack if isinstance(blocks[0], Attention)]
    local, whole = ([one for one in mixers if bool(one.window) == far] for far in (True, False))
    if not local or not whole or len(mixers) < len(stack):
        raise NotWritten
    return {
        "layer_types": [SLIDING if one.window else FULL for one in mixers],
        "sliding_window": local[0].window,
        "num_kv_shared_layers": sum(one.key_values == "earlier" for one in mixers),
        **_gemma4_full_keys(model, whole[0]),
        **_feed_forward_keys(model, stack),
        **_per_layer_keys(model, stack[0]),
    }


def _feed_forward_keys(model: ModelSpec, stack: list[tuple[Sublayer, ...]]) -> Keys:
    feeds = (block for blocks in stack for block in blocks if isinstance(block, mlp.MLP))
    experts = GEMMA4_EXPERTS.keys(model) if model.moe is not None else {}
    return {
        "intermediate_size": model.ffn_hidden_size,
        "use_double_wide_mlp": any(one.width for one in feeds),
        "enable_moe_block": bool(experts),
        **experts,
    }


def _gemma4_full_keys(model: ModelSpec, whole: Attention) -> Keys:
    keys: Keys = {"global_head_dim": whole.head_dim or model.head_dim}
    if whole.key_values == "keys":
        keys["attention_k_eq_v"] = True
        keys["num_global_key_value_heads"] = whole.num_query_groups or model.num_query_groups
    return keys


def _per_layer_keys(model: ModelSpec, layer: tuple[Sublayer, ...]) -> Keys:
    size = next((block.size for block in layer if isinstance(block, PerLayerInput)), 0)
    rows = {"vocab_size_per_layer_input": model.per_layer_input_vocab_size} if size else {}
    return {"hidden_size_per_layer_input": size, **rows}


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


def _gemma3n(config: Config, fields: Fields) -> Fields:
    """Four copies of the hidden state (AltUp): each layer works on one and corrects the others."""
    depth, hidden = fields["num_layers"], fields["hidden_size"]
    default, because = layers.every(5)(config, depth)
    listed = layers.kinds(config, "layer_types", default, {SLIDING, FULL}, because)
    local = {**ATTENTION, "window": config.count("sliding_window", most=TOKENS, default=512)}
    mixers = {SLIDING: local, FULL: ATTENTION}
    shared = _shared(config, depth, 15)
    widths = _widths(config, depth)
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
    return {"ffn_hidden_size": widths[0]} | _per_layer(config, size) | layers.pattern(stack)


def _widths(config: Config, depth: int) -> list[int]:
    """The width of each MLP; the file may state one for all."""
    stated = config.data.get("intermediate_size")
    if not isinstance(stated, list):
        return [config.count("intermediate_size", most=WIDTH)] * depth
    fits = all(type(width) is int and 1 <= width <= WIDTH for width in stated)
    if len(stated) != depth or not fits:
        config.refuse("intermediate_size", f"must be a width, or a list of {depth}")
        return [1] * depth
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


FAMILIES: dict[str, Family] = {
    "gemma3n_text": family(
        "Gemma3nForCausalLM", COMMON, _gemma3n,
        tie_word_embeddings=True, num_key_value_heads=2, head_dim=256,
    ),
    "gemma4_text": family(
        "Gemma4ForCausalLM", COMMON, Hook(_gemma4, _gemma4_keys),
        tie_word_embeddings=True, num_key_value_heads=4, head_dim=256,
    ),
}  # fmt: skip
