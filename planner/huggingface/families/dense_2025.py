"""Dense families of 2025 and 2026."""

from __future__ import annotations

from planner.huggingface.config import LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families.dense import llama, qwen_window
from planner.huggingface.families.mixtures import latent
from planner.huggingface.families.pattern_fields import (
    ATTENTION,
    FULL,
    MLP,
    SLIDING,
    full_attention_every,
    kinds,
    pattern,
    rotary_layers,
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


def seed_oss(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=8, head_dim=128) | RMSNORM_GATED
    return fields | {
        "qkv_bias": config.flag("attention_bias", True),
        "attention_output_bias": config.flag("attention_out_bias", False),
        "mlp_bias": config.flag("mlp_bias", False),
        "attention_dropout": config.probability("attention_dropout", 0.1),
        "hidden_dropout": config.probability("residual_dropout", 0.1),
    }


def smollm3(config: Config) -> Fields:
    """Every fourth layer has no positions; only those may have a window."""
    fields = llama_shape(config, tied=True, kv_heads=4) | RMSNORM_GATED
    fields |= attention_bias(config, False) | {"mlp_bias": config.flag("mlp_bias", False)}
    rotary = rotary_layers(config, fields["num_layers"])
    size = None
    if config.flag("use_sliding_window", False):
        size = config.optional("sliding_window", most=TOKENS, default=None)
    default = [SLIDING if size and not flag else FULL for flag in rotary]
    listed = kinds(config, "layer_types", default, {SLIDING, FULL}, "as the positions say")
    layers = []
    for kind, flag in zip(listed, rotary, strict=True):
        mixer = dict(ATTENTION) if flag else {**ATTENTION, "rope": False}
        if kind == SLIDING and size:
            mixer["window"] = size
        layers.append([mixer, MLP])
    return fields | pattern(layers)


def olmo(config: Config) -> Fields:
    """Its norms have no parameters."""
    fields = llama_shape(config, tied=False) | attention_bias(config, False)
    return fields | {
        "gated_mlp": True,
        "norm_bias": False,
        "norms_per_layer": 0,
        "final_norm": False,
    }


def olmo3(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    fields["qk_norm"] = "full"
    return fields | window(config, fields["num_layers"], size=4096, period=4)


def exaone4(config: Config) -> Fields:
    """If some layers have a window, the other layers have no positions."""
    fields = llama_shape(config, tied=False, kv_heads=32) | RMSNORM_GATED | {"qk_norm": "head"}
    layers = exaone_mixers(config, fields["num_layers"])
    return fields | pattern([[mixer, MLP] for mixer in layers])


def exaone_mixers(config: Config, layers: int) -> list[Fields]:
    size = config.optional("sliding_window", most=TOKENS, default=4096)
    period = 4
    if size is not None and not config.states("layer_types"):
        stated = config.data.get("sliding_window_pattern")
        if isinstance(stated, str):  # "LLLG": letters of one period
            period = max(len(stated), 1)
        else:
            period = config.count("sliding_window_pattern", most=LAYERS, default=4)
    default = full_attention_every(layers, period) if size is not None else [FULL] * layers
    listed = kinds(config, "layer_types", default, {SLIDING, FULL}, f"full every {period}th layer")
    if size is None:
        return [ATTENTION] * layers
    mixers = {SLIDING: {**ATTENTION, "window": size}, FULL: {**ATTENTION, "rope": False}}
    return [mixers[kind] for kind in listed]


def apertus(config: Config) -> Fields:
    """The activation of each MLP, xIELU, has two parameters."""
    fields = llama_shape(config, tied=False) | attention_bias(config, False)
    fields |= {"norm": "rmsnorm", "qk_norm": "head"}
    learned = config.data.get("hidden_act") in (None, "xielu")
    if not learned:
        return fields
    return fields | pattern([[ATTENTION, MLP, {"kind": "products", "parameters": 2}]])


def hunyuan(config: Config) -> Fields:
    fields = llama_shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    return fields | {"qk_norm": "head"}


def ernie4_5(config: Config) -> Fields:
    fields = llama_shape(config, tied=True, kv_heads=2, head_dim=128) | RMSNORM_GATED
    return fields | linear_biases(config.flag("use_bias", False))


def internlm3(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=2, head_dim=128) | RMSNORM_GATED
    attention = "attention_bias" if config.states("attention_bias") else "qkv_bias"
    bias = config.flag(attention, False)
    other = "mlp_bias" if config.states("mlp_bias") else "bias"
    config.require(other, bias, "all projections have biases or none")
    return fields | linear_biases(bias)


def arcee(config: Config) -> Fields:
    return llama(config) | {"gated_mlp": False}


def helium(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=20, head_dim=128) | RMSNORM_GATED
    config.require("mlp_bias", False, "its MLPs have no bias")
    width = fields["hidden_size"] // fields["num_attention_heads"]
    config.require("head_dim", width, "its output projection is as wide as hidden_size")
    return fields | {"qkv_bias": config.flag("attention_bias", False)}


def ministral(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=8) | RMSNORM_GATED
    return fields | window(config, fields["num_layers"], size=4096)


def ministral3(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=8, head_dim=128) | RMSNORM_GATED
    size = config.optional("sliding_window", most=TOKENS, default=None)
    return fields | ({"sliding_window": size} if size else {})


def cwm(config: Config) -> Fields:
    fields = llama_shape(config, tied=False, kv_heads=8, head_dim=128) | RMSNORM_GATED
    config.require("mlp_bias", False, "its MLPs have no bias")
    size = config.count("sliding_window", most=TOKENS, default=8192)
    default = full_attention_every(fields["num_layers"], 4, first=0)
    listed = kinds(config, "layer_types", default, {SLIDING, FULL}, "full every 4th from the first")
    mixers = {SLIDING: {**ATTENTION, "window": size}, FULL: ATTENTION}
    return fields | pattern([[mixers[kind], MLP] for kind in listed])


def vaultgemma(config: Config) -> Fields:
    fields = llama_shape(config, tied=True, kv_heads=4, head_dim=256) | RMSNORM_GATED
    fields |= attention_bias(config, False)
    return fields | window(config, fields["num_layers"], size=4096, period=2, always=True)


def minicpm3(config: Config) -> Fields:
    """Latent attention with a dense MLP."""
    heads = config.count("num_attention_heads", most=LAYERS)
    value = max(config.count("hidden_size", most=WIDTH) // heads, 1)
    stated = latent(config, q_rank=768, kv_rank=256, nope=64, rope=32, value=value)
    return stated | {"tied_embeddings": config.flag("tie_word_embeddings", True)}


def youtu(config: Config) -> Fields:
    config.require("mlp_bias", False, "its MLPs have no bias")
    fields = latent(config)
    return fields | {"tied_embeddings": config.flag("tie_word_embeddings", True)}


def mimo(config: Config) -> Fields:
    """Qwen2 with layers of multi-token prediction."""
    fields = gqa(config, shape(config, tied=False), kv_heads=8) | RMSNORM_GATED
    fields["ffn_hidden_size"] = config.count("intermediate_size", most=WIDTH)
    fields["qkv_bias"] = config.flag("attention_bias", True)
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    depth = config.count(
        "num_nextn_predict_layers", least=0, most=16, default=0,
        because="no multi-token prediction",
    )  # fmt: skip
    return fields | qwen_window(config, fields["num_layers"]) | {"mtp_num_layers": depth}


def internlm2(config: Config) -> Fields:
    """InternLM2, and the first InternLM; their single bias flag is for attention."""
    fields = llama_shape(config, tied=False) | RMSNORM_GATED
    bias = config.flag("bias", False)
    return fields | {"qkv_bias": bias, "attention_output_bias": bias}


def phi_msft(config: Config) -> Fields:
    """Phi-1.5 and Phi-2 as first published, with the key names of GPT-2."""
    fields = shape(
        config, tied=False, hidden=("n_embd",), layers=("n_layer",), heads=("n_head",)
    )  # fmt: skip
    heads = fields["num_attention_heads"]
    groups = config.optional("n_head_kv", most=heads, default=None) or heads
    width = config.optional("n_inner", most=WIDTH, default=None) or 4 * fields["hidden_size"]
    return (
        fields
        | linear_biases(True)
        | {
            "num_query_groups": groups,
            "head_dim": max(fields["hidden_size"] // heads, 1),
            "ffn_hidden_size": width,
            "lm_head_bias": True,
            "norms_per_layer": 1,
            "parallel_residual": True,
            "hidden_dropout": config.probability("resid_pdrop", 0.0),
            "attention_dropout": config.probability("attn_pdrop", 0.0),
        }
    )


def nemotron_nas(config: Config) -> Fields:
    """Llama with attention and MLP of each layer chosen by architecture search, or left out."""
    fields = shape(config, tied=False) | RMSNORM_GATED | attention_bias(config, False)
    fields["mlp_bias"] = config.flag("mlp_bias", False)
    fields["attention_dropout"] = config.probability("attention_dropout", 0.0)
    blocks = config.data.get("block_configs")
    layers, hidden = fields["num_layers"], fields["hidden_size"]
    if not isinstance(blocks, list) or len(blocks) != layers:
        config.refuse("block_configs", f"must be a list of {layers}, one for each layer")
        return fields
    stack: list[list[Fields]] = []
    for i in range(layers):
        block = config.nested_in("block_configs", i)
        mixer, feed = block.nested("attention"), block.nested("ffn")
        attention = _nas_attention(mixer, fields["num_attention_heads"])
        first = _searched(mixer, hidden, attention)
        stack.append([*first, *_searched(feed, hidden, _nas_mlp(feed, hidden))])
    if empty := [i for i, layer in enumerate(stack) if not layer]:
        config.refuse("block_configs", f"layer {empty[0]} has neither attention nor MLP")
    return fields | pattern(stack)


def _searched(part: Config, hidden: int, block: Fields) -> list[Fields]:
    """The block, or one matrix and a norm in its place, or nothing."""
    if part.data.get("no_op"):
        return []
    if part.data.get("replace_with_linear"):
        one = {"inputs": hidden, "outputs": hidden}
        return [{"kind": "products", "products": [one], "parameters": hidden}]
    return [block]


def _nas_attention(part: Config, heads: int) -> Fields:
    shared = part.data.get("n_heads_in_group")
    if shared is None:
        return ATTENTION
    each = part.count("n_heads_in_group", most=heads)
    window = part.optional("window_length", most=TOKENS, default=None)
    return {**ATTENTION, "num_query_groups": max(heads // each, 1), "window": window}


def _nas_mlp(part: Config, hidden: int) -> Fields:
    """An MLP of width 2/3 ffn_mult hidden_size, rounded up to a multiple of 256."""
    factor = part.data.get("ffn_mult")
    if factor is None:
        return MLP
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1000:
        part.refuse("ffn_mult", "must be a number above 0")
        return MLP
    return {**MLP, "width": -(-int(2 * factor * hidden / 3) // 256) * 256}
