"""Rows of the shape of a model, its heads, their biases and windows, and latent attention."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.blocks.attention import Attention
from cost_models.layers import layers_of
from cost_models.spec import ModelSpec
from planner.huggingface.config import HEADS, TOKENS, WIDTH, Config, short_text
from planner.huggingface.families.rows import Block, Fields, FixedKey, Hook, Key, Keys, Table

FULL, SLIDING = "full_attention", "sliding_attention"
RMSNORM_GATED: Fields = {"norm": "rmsnorm", "gated_mlp": True, "position": "rope"}
QK_NORM_HEAD: Fields = {"qk_norm": "head"}
QK_NORM_FULL: Fields = {"qk_norm": "full"}
FOUR_NORMS: Fields = {"norms_per_layer": 4}
PARALLEL: Fields = {"norms_per_layer": 1, "parallel_residual": True}
BIASED: Fields = {"qkv_bias": True, "attention_output_bias": True, "mlp_bias": True}


def _split(config: Config, fields: Fields, even: bool = True) -> Fields:
    """Heads of hidden_size / num_attention_heads, rounded down; even: a remainder is refused."""
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    if even and hidden % heads and not config.problems:
        config.refuse("num_attention_heads", f"hidden_size {hidden} is not a multiple of it")
    return {"head_dim": max(hidden // heads, 1)}


@dataclass(frozen=True)
class Heads:
    """Key/value heads and head width, each with a default only where the family has one.

    Null means one key/value head per head, even if the family has another default.
    even: without a stated head_dim, hidden_size must be a multiple of the number of heads.
    own: whether the class looks at head_dim.
    """

    even: bool = True
    own: bool = True

    def __call__(self, config: Config, fields: Fields) -> Fields:
        groups = self._groups(config, fields["num_attention_heads"])
        stated = config.states("head_dim")
        usual = "head_dim" in config.defaults and "head_dim" not in config.data
        if self.own and (stated or usual):
            return {"num_query_groups": groups, "head_dim": config.count("head_dim", most=WIDTH)}
        if stated:
            return {"num_query_groups": groups, **shared_width(config, fields)}
        found = _split(config, fields, self.even)
        config.guess("head_dim", found["head_dim"], "hidden_size / num_attention_heads")
        return {"num_query_groups": groups, **found}

    def _groups(self, config: Config, heads: int) -> int:
        name = "num_key_value_heads"
        if name in config.data and config.data[name] is None:
            config.guess(name, heads, "num_attention_heads")
            return heads
        groups = config.count(name, most=HEADS, default=heads, because="num_attention_heads")
        if heads % groups and not config.problems:
            default = "" if config.states(name) else ", the default"
            config.refuse(name, f"{heads} heads are not a multiple of {groups}{default}")
        return groups

    def keys(self, model: ModelSpec) -> Keys:
        return {"num_key_value_heads": model.num_query_groups, "head_dim": model.head_dim}


def shared_width(config: Config, fields: Fields) -> Fields:
    """Heads of hidden_size / num_attention_heads, in families that ignore head_dim."""
    found = _split(config, fields)
    if config.data.get("head_dim") not in (None, found["head_dim"]):
        stated, used = short_text(config.data["head_dim"]), found["head_dim"]
        config.left_out.append(
            f"head_dim: {stated} is ignored by {config.family}, heads are {used} wide"
        )
    return found


def even_width(fields: Fields) -> int:
    """The width of heads that are as wide as the hidden state together."""
    return int(fields["hidden_size"] // fields["num_attention_heads"])


def one_head(config: Config, fields: Fields) -> Fields:
    """Without attention, heads are counted as one that is as wide as the hidden state."""
    return {"num_attention_heads": 1, "head_dim": fields["hidden_size"]}


def mha(config: Config, fields: Fields) -> Fields:
    """As many key/value heads as heads, each hidden_size / num_attention_heads wide."""
    return {"num_query_groups": fields["num_attention_heads"], **shared_width(config, fields)}


LAYERS = Key("num_hidden_layers", "num_layers")
HIDDEN = Key("hidden_size", "hidden_size")
VOCABULARY = Key("vocab_size", "vocab_size")
TIED = Key("tie_word_embeddings", "tied_embeddings", False)
SHAPE = Table(
    LAYERS, HIDDEN, Key("num_attention_heads", "num_attention_heads"), VOCABULARY, TIED
)  # fmt: skip
NO_ATTENTION = Table(LAYERS, HIDDEN, VOCABULARY, TIED, {"position": "none"})
FFN = Key("intermediate_size", "ffn_hidden_size")
DROPOUT = Key("attention_dropout", "attention_dropout", 0.0)
HIDDEN_DROPOUT = Key("hidden_dropout", "hidden_dropout", 0.0)
RESIDUAL_DROPOUT = Key("resid_pdrop", "hidden_dropout", 0.0)
# The keys that Llama introduced and most later families use; GATED: with its norms and MLP.
USUAL = Table(SHAPE, Heads(), FFN, DROPOUT)
GATED = Table(USUAL, RMSNORM_GATED)
# The same without the width of a dense MLP.
ROUTED = Table(SHAPE, Heads(), DROPOUT, RMSNORM_GATED)

ATTENTION_BIAS = Key("attention_bias", "qkv_bias attention_output_bias", False)
QKV_BIAS = Key("attention_bias", "qkv_bias", False)
MLP_BIAS = Key("mlp_bias", "mlp_bias", False)
NO_MLP_BIAS = FixedKey("mlp_bias", False, "its MLPs have no bias")
CAUSAL = FixedKey("use_bidirectional_attention", False, "attention here is causal")
EVERY_BIAS = "qkv_bias attention_output_bias mlp_bias"


@dataclass(frozen=True)
class Window:
    """Sliding-window attention: `size` is the family's default window.

    period: every n-th layer attends fully unless `layer_types` says otherwise; None: no layer.
    stated: a key for the period.  always: null counts as the default (the family cannot be without
    a window).
    """

    size: int | None = None
    period: int | None = None
    stated: str = ""
    always: bool = False

    def __call__(self, config: Config, fields: Fields) -> Fields:
        period = self.period
        if self.stated and not config.states("layer_types"):
            period = config.count(self.stated, most=TOKENS, default=period)
        tokens = config.optional("sliding_window", most=TOKENS, default=self.size)
        if tokens is None and self.always:
            tokens = self.size
        if tokens is None:
            return {}
        types = config.data.get("layer_types")
        if types is None:
            return {"sliding_window": tokens, "full_attention_period": period}
        return _layer_types(config, types, fields["num_layers"], tokens)

    def keys(self, model: ModelSpec) -> Keys:
        """The window, and the kind of every layer where it differs between layers."""
        kinds = [SLIDING if size else FULL for size in windows(model)]
        size = max((size or 0 for size in windows(model)), default=0) or None
        return {"sliding_window": size} | ({"layer_types": kinds} if self.period else {})


def windows(model: ModelSpec) -> list[int | None]:
    """The window of each layer's attention; none where it attends fully or has no attention."""
    layers = layers_of(model)
    own = [
        next((one.window for one in kind.sublayers if isinstance(one, Attention)), None)
        for kind in layers.kinds
    ]
    return [own[place] for place in layers.order]


def _layer_types(config: Config, types: object, layers: int, tokens: int) -> Fields:
    """A list of attention types, as window and period, or as a window for each layer."""
    if not isinstance(types, list) or len(types) != layers:
        config.refuse("layer_types", f"must be a list of {layers}, one for each layer")
        return {}
    full = [kind == FULL for kind in types]
    if any(kind not in (FULL, SLIDING) for kind in types):
        config.refuse("layer_types", f"may hold only {FULL} and {SLIDING}")
        return {}
    if all(full):
        return {}
    period = full.index(True) + 1 if any(full) else None
    if period and full != [(i + 1) % period == 0 for i in range(layers)]:
        return {"windows": [None if is_full else tokens for is_full in full]}
    return {"sliding_window": tokens, "full_attention_period": period}


@dataclass(frozen=True)
class QwenWindow:
    """Qwen's window: off unless use_sliding_window.

    first: the first max_window_layers layers stay full.
    """

    first: bool = True

    def __call__(self, config: Config, fields: Fields) -> Fields:
        if not config.flag("use_sliding_window", False):
            return {}
        if self.first and not config.states("layer_types"):
            full = config.count("max_window_layers", most=TOKENS, least=0, default=28)
            if full >= fields["num_layers"]:
                return {}
            if full:
                config.refuse("max_window_layers", "only 0 or all layers can be planned")
        return Window(4096)(config, fields)

    def keys(self, model: ModelSpec) -> Keys:
        if not any(windows(model)):
            return {"use_sliding_window": False}
        return {"use_sliding_window": True, **Window(period=1).keys(model)}


def _latent_heads(config: Config, fields: Fields) -> Fields:
    width = fields["mla.qk_nope_head_dim"] + fields["mla.qk_rope_head_dim"]
    return {"num_query_groups": fields["num_attention_heads"], "head_dim": width}


def _latent_keys(model: ModelSpec) -> Keys:
    """Classes of transformers call the rotary part of a head its width."""
    rotary = model.mla and model.mla.qk_rope_head_dim
    return {"num_key_value_heads": model.num_query_groups, "head_dim": rotary}


# DeepSeek's attention: every head has its own keys and values, from one latent vector.
LATENT_KEYS = Table(
    Key("kv_lora_rank", "mla.kv_lora_rank", 512),
    Key("q_lora_rank", "mla.q_lora_rank", 1536),
    Key("qk_nope_head_dim", "mla.qk_nope_head_dim", 128),
    Key("qk_rope_head_dim", "mla.qk_rope_head_dim", 64),
    Key("v_head_dim", "mla.v_head_dim", 128),
    Hook(_latent_heads, _latent_keys),
)
MLA = Table(SHAPE, FFN, DROPOUT, RMSNORM_GATED, ATTENTION_BIAS, LATENT_KEYS)


def indexer(heads: int, top_k: int = 2048, field: str = "indexer") -> Table:
    """The lightning indexer of DeepSeek-V3.2."""
    return Table(
        Key("index_n_heads", f"{field}.num_heads", heads),
        Key("index_head_dim", f"{field}.head_dim", 128),
        Key("index_topk", f"{field}.top_k", top_k),
    )


def attention(*rows: Key | Fields) -> Block:
    """A block of attention with these rows."""
    return Block("attention", *rows)


def local(size: int | None, *rows: Fields, null: bool = True) -> Block:
    """Attention to a window, of `size` by default; null: whether there may be none."""
    return Block("attention", *rows, Key("sliding_window", "window", size, null=null))
