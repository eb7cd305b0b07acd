"""Fields that the families share: shape, biases, attention windows."""

from __future__ import annotations

from typing import Any

from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config, short_text

Fields = dict[str, Any]

RMSNORM_GATED: Fields = {"norm": "rmsnorm", "gated_mlp": True, "position": "rope"}


def shape(
    config: Config,
    *,
    tied: bool,
    hidden: tuple[str, ...] = ("hidden_size",),
    layers: tuple[str, ...] = ("num_hidden_layers",),
    heads: tuple[str, ...] = ("num_attention_heads",),
    vocabulary: tuple[str, ...] = ("vocab_size",),
    num_heads: int | None = None,
    vocab_size: int | None = None,
) -> Fields:
    """Depth, width, heads and vocabulary; `num_heads` and `vocab_size` are family defaults."""
    return {
        "num_layers": config.count(*layers, most=LAYERS),
        "hidden_size": config.count(*hidden, most=WIDTH),
        "num_attention_heads": config.count(*heads, most=HEADS, default=num_heads),
        "vocab_size": config.count(*vocabulary, most=TOKENS, default=vocab_size),
        "tied_embeddings": config.flag("tie_word_embeddings", tied),
    }


def mha(config: Config, fields: Fields) -> Fields:
    """As many key/value heads as heads, each hidden_size / num_attention_heads wide."""
    fields = {**fields, "num_query_groups": fields["num_attention_heads"]}
    return shared_width(config, fields)


def gqa(
    config: Config,
    fields: Fields,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    even: bool = True,
) -> Fields:
    """Key/value heads and head width; `kv_heads` and `head_dim` are family defaults.

    Null means one key/value head per head, even if the family has another default.
    even: without a stated head_dim, hidden_size must be a multiple of the number of heads.
    """
    heads = fields["num_attention_heads"]
    if kv_heads is None or config.data.get("num_key_value_heads", 0) is None:
        groups = config.count(
            "num_key_value_heads", most=HEADS, default=heads, because="num_attention_heads"
        )
    else:
        groups = config.count("num_key_value_heads", most=HEADS, default=kv_heads)
    if heads % groups and not config.problems:
        default = "" if config.states("num_key_value_heads") else ", the default"
        config.refuse(
            "num_key_value_heads", f"{heads} heads are not a multiple of {groups}{default}"
        )
    fields = {**fields, "num_query_groups": groups}
    if config.states("head_dim") or (head_dim is not None and "head_dim" not in config.data):
        return {**fields, "head_dim": config.count("head_dim", most=WIDTH, default=head_dim)}
    fields |= _split(config, fields, even)
    config.guess("head_dim", fields["head_dim"], "hidden_size / num_attention_heads")
    return fields


def shared_width(config: Config, fields: Fields) -> Fields:
    """Heads of hidden_size / num_attention_heads, in families that ignore head_dim."""
    fields = fields | _split(config, fields)
    if config.data.get("head_dim") not in (None, fields["head_dim"]):
        stated, used = short_text(config.data["head_dim"]), fields["head_dim"]
        config.left_out.append(
            f"head_dim: {stated} is ignored by {config.family}, heads are {used} wide"
        )
    return fields


def _split(config: Config, fields: Fields, even: bool = True) -> Fields:
    """Heads of hidden_size / num_attention_heads, rounded down; even: a remainder is refused."""
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    if even and hidden % heads and not config.problems:
        config.refuse("num_attention_heads", f"hidden_size {hidden} is not a multiple of it")
    return {"head_dim": max(hidden // heads, 1)}


def llama_shape(
    config: Config, *, tied: bool, kv_heads: int | None = None, head_dim: int | None = None
) -> Fields:
    """The keys that Llama introduced and most later families use."""
    fields = gqa(config, shape(config, tied=tied), kv_heads=kv_heads, head_dim=head_dim)
    fields["ffn_hidden_size"] = config.count("intermediate_size", most=WIDTH)
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    return fields


def linear_biases(bias: bool) -> Fields:
    """The same setting for the biases of all projections of a layer."""
    return {"qkv_bias": bias, "attention_output_bias": bias, "mlp_bias": bias}


def attention_bias(config: Config, default: bool) -> Fields:
    """One flag for the biases of the four projections of attention."""
    bias = config.flag("attention_bias", default)
    return {"qkv_bias": bias, "attention_output_bias": bias}


def window(
    config: Config,
    layers: int,
    *,
    size: int | None,
    period: int | None = None,
    always: bool = False,
) -> Fields:
    """Sliding-window attention: `size` is the family's default window.

    period: every n-th layer attends fully unless `layer_types` says otherwise; None: no layer.
    always: null counts as the default (the family cannot be without a window).
    """
    tokens = config.optional("sliding_window", most=TOKENS, default=size)
    if tokens is None and always:
        tokens = size
    if tokens is None:
        return {}
    types = config.data.get("layer_types")
    if types is None:
        return {"sliding_window": tokens, "full_attention_period": period}
    return _layer_types(config, types, layers, tokens)


def _layer_types(config: Config, types: object, layers: int, tokens: int) -> Fields:
    """A list of attention types, as window and period, or as a window for each layer."""
    if not isinstance(types, list) or len(types) != layers:
        config.refuse("layer_types", f"must be a list of {layers}, one for each layer")
        return {}
    full = [kind == "full_attention" for kind in types]
    if any(kind not in ("full_attention", "sliding_attention") for kind in types):
        config.refuse("layer_types", "may hold only full_attention and sliding_attention")
        return {}
    if all(full):
        return {}
    period = full.index(True) + 1 if any(full) else None
    if period and full != [(i + 1) % period == 0 for i in range(layers)]:
        return {"windows": [None if is_full else tokens for is_full in full]}
    return {"sliding_window": tokens, "full_attention_period": period}
