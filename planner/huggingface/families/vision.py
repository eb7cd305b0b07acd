"""Image encoders: each function reads the vision_config of a vision-language family.

By default, every sequence is planned with one image of the size in the file.
"""

from __future__ import annotations

from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families.layers import ATTENTION, MLP, numbered, pattern
from planner.huggingface.families.rows import Fields

SIDE = 100_000  # pixels, or patches
USUAL_PATCHES = 1024  # in an image whose size the file does not state

LAYER_NORMS: Fields = {
    "norm": "layernorm",
    "qkv_bias": True,
    "attention_output_bias": True,
    "mlp_bias": True,
}
RMS_GATED: Fields = {"norm": "rmsnorm", "gated_mlp": True}


def _tower(
    config: Config,
    *,
    layers: tuple[str, int],
    hidden: tuple[str, int],
    heads: tuple[str, int],
    ffn: tuple[str, int],
    patch: int,
) -> Fields:
    """Layers of a vision transformer; each key with the default of its class."""
    width = config.count(hidden[0], most=WIDTH, default=hidden[1])
    number = config.count(heads[0], most=HEADS, default=heads[1])
    if width % number and not config.problems:
        config.refuse(heads[0], f"{width} is not a multiple of it")
    side = _square(config, "patch_size", patch)
    channels = "num_channels" if config.states("num_channels") else "in_channels"
    return {
        "num_layers": config.count(layers[0], most=LAYERS, default=layers[1]),
        "hidden_size": width,
        "num_attention_heads": number,
        "ffn_hidden_size": config.count(ffn[0], most=WIDTH, default=ffn[1]),
        "attention_dropout": config.probability("attention_dropout", 0.0),
        "input_width": config.count(channels, most=1000, default=3) * side**2,
        "bidirectional": True,
    }


def _square(config: Config, name: str, default: int) -> int:
    """The side of a square, which may be given as a pair."""
    value = config.data.get(name)
    if isinstance(value, list | tuple) and value:
        if len(set(map(str, value))) > 1:
            config.refuse(name, "must be square")
        value = value[0]
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= SIDE:
            return value
    return config.count(name, most=SIDE, default=default)


def _image(config: Config, image: int, patch: int) -> int:
    """Patches of one image of image_size."""
    side = _square(config, "image_size", image) // _square(config, "patch_size", patch)
    return _one_image(config, max(side, 1) ** 2)


def _one_image(config: Config, tokens: int) -> int:
    config.guessed.append(f"images: one in each sequence, of {tokens} patches")
    return tokens


def _frames(config: Config) -> int:
    return _square(config, "temporal_patch_size", 2)


def _merge(config: Config) -> int:
    return config.count("spatial_merge_size", most=100, default=2) ** 2


def _products(*widths: tuple[int, int], times: int = 1) -> list[Fields]:
    return [{"inputs": one, "outputs": other, "times": times} for one, other in widths]


def _qwen_merger(fields: Fields, out: int, merge: int, mergers: int = 1) -> Fields:
    """A norm, and two matrices over adjacent patches; mergers after the first have wider norms."""
    wide = fields["hidden_size"] * merge
    biases = mergers * (wide + out) + (mergers - 1) * 2 * wide
    projector = _products((wide, wide), (wide, out), times=mergers)
    return {"merge": merge, "projector": projector, "other_parameters": biases}


def qwen2_vl(config: Config, whole: Config, text: int) -> Fields:
    """Its width is embed_dim; hidden_size is the language model's."""
    fields = _tower(
        config, layers=("depth", 32), hidden=("embed_dim", 1280), heads=("num_heads", 16),
        ffn=("embed_dim", 1280), patch=14,
    )  # fmt: skip
    fields["ffn_hidden_size"] *= config.count("mlp_ratio", most=100, default=4)
    fields["input_width"] *= _frames(config)
    out = config.count("hidden_size", most=WIDTH, default=3584)
    merger = _qwen_merger(fields, out, _merge(config))
    return fields | LAYER_NORMS | merger | {"tokens": _one_image(config, USUAL_PATCHES)}


def qwen2_5_vl(config: Config, whole: Config, text: int) -> Fields:
    """Most layers attend inside windows of window_size pixels."""
    fields = _tower(
        config, layers=("depth", 32), hidden=("hidden_size", 3584), heads=("num_heads", 16),
        ffn=("intermediate_size", 3420), patch=14,
    )  # fmt: skip
    fields["input_width"] *= _frames(config)
    side = config.count("window_size", most=SIDE, default=112) // _square(config, "patch_size", 14)
    full = numbered(config, "fullatt_block_indexes")
    if full is None:
        full = {7, 15, 23, 31}
    windowed: Fields = {"kind": "attention", "chunk": max(side, 1) ** 2}
    mixers = [ATTENTION if i in full else windowed for i in range(fields["num_layers"])]
    out = config.count("out_hidden_size", most=WIDTH, default=3584)
    merger = _qwen_merger(fields, out, _merge(config))
    fields |= LAYER_NORMS | RMS_GATED | merger | pattern([[mixer, MLP] for mixer in mixers])
    return fields | {"tokens": _one_image(config, USUAL_PATCHES)}


def qwen3_vl(config: Config, whole: Config, text: int) -> Fields:
    """Positions are both learned and rotary; outputs of deepstack layers have their own mergers."""
    fields = _qwen3_tower(config)
    deep = config.data.get("deepstack_visual_indexes", (8, 16, 24))
    if not isinstance(deep, list | tuple):
        config.refuse("deepstack_visual_indexes", "must be a list of layer numbers")
        deep = ()
    return _qwen3(config, fields, 1 + len(deep))


def qwen3_5(config: Config, whole: Config, text: int) -> Fields:
    return _qwen3(config, _qwen3_tower(config), 1)


def _qwen3_tower(config: Config) -> Fields:
    fields = _tower(
        config, layers=("depth", 27), hidden=("hidden_size", 1152), heads=("num_heads", 16),
        ffn=("intermediate_size", 4304), patch=16,
    )  # fmt: skip
    fields["input_width"] *= _frames(config)
    return fields | LAYER_NORMS


def _qwen3(config: Config, fields: Fields, mergers: int) -> Fields:
    rows = config.count("num_position_embeddings", most=TOKENS, default=2304)
    out = config.count("out_hidden_size", most=WIDTH, default=3584)
    fields |= _qwen_merger(fields, out, _merge(config), mergers)
    fields["other_parameters"] += (rows + 1) * fields["hidden_size"]  # and the patches' bias
    return fields | {"tokens": _one_image(config, rows)}


def glm4v(config: Config, whole: Config, text: int) -> Fields:
    """Its MLPs are as wide as its output; a convolution joins patches before the projector."""
    fields = _tower(
        config, layers=("depth", 24), hidden=("hidden_size", 1536), heads=("num_heads", 12),
        ffn=("out_hidden_size", 4096), patch=14,
    )  # fmt: skip
    fields["input_width"] *= _frames(config)
    hidden, out, merge = fields["hidden_size"], fields["ffn_hidden_size"], _merge(config)
    inner = config.count("intermediate_size", most=WIDTH, default=13696)
    tokens = _image(config, 336, 14)
    projector = _products((merge * hidden, out), (out, out), (out, inner), (out, inner))
    return (
        fields
        | RMS_GATED
        | {
            "qkv_bias": config.flag("attention_bias", False),
            "tokens": tokens,
            "merge": merge,
            "projector": projector + _products((inner, out)),
            "other_parameters": (tokens + 2) * hidden + 3 * out,
        }
    )


def kimi_k25(config: Config, whole: Config, text: int) -> Fields:
    """Published files and the class have different names for the same widths."""
    named = "vt_" if config.states("vt_hidden_size") else ""
    positions = "init_pos_emb_" if config.states("init_pos_emb_height") else "pos_emb_"
    fields = _tower(
        config, layers=(f"{named}num_hidden_layers", 27), hidden=(f"{named}hidden_size", 1152),
        heads=(f"{named}num_attention_heads", 16), ffn=(f"{named}intermediate_size", 4304),
        patch=14,
    )  # fmt: skip
    hidden, merge = fields["hidden_size"], _square(config, "merge_kernel_size", 2) ** 2
    rows = config.count(f"{positions}height", most=SIDE, default=64)
    rows *= config.count(f"{positions}width", most=SIDE, default=64)
    wide = hidden * merge
    return (
        fields
        | LAYER_NORMS
        | {
            "tokens": _one_image(config, rows),
            "merge": merge,
            "projector": _products((wide, wide), (wide, text)),
            "other_parameters": (rows + 3) * hidden + wide + text,
        }
    )


def llama4(config: Config, whole: Config, text: int) -> Fields:
    """Patches are joined four to one before its adapter."""
    fields = _tower(
        config, layers=("num_hidden_layers", 34), hidden=("hidden_size", 768),
        heads=("num_attention_heads", 16), ffn=("intermediate_size", 5632), patch=14,
    )  # fmt: skip
    config.require("pixel_shuffle_ratio", 0.5, "four patches become one vector")
    config.require("multi_modal_projector_bias", False, "its projector has no bias")
    inner = config.count("projector_input_dim", most=WIDTH, default=4096)
    outer = config.count("projector_output_dim", most=WIDTH, default=4096)
    output = config.count("vision_output_dim", most=WIDTH, default=7680)
    tokens = _image(config, 448, 14)
    projector = _products((fields["ffn_hidden_size"], inner), (outer, outer), (output, text))
    return (
        fields
        | LAYER_NORMS
        | {
            "tokens": tokens,
            "merge": 4,
            "projector": projector,
            # A class token, a row of positions for it and each patch, and a norm before the layers.
            "other_parameters": (tokens + 4) * fields["hidden_size"],
        }
    )


def gemma4(config: Config, whole: Config, text: int) -> Fields:
    """Positions are two tables, one for each side of the image."""
    fields = _tower(
        config, layers=("num_hidden_layers", 16), hidden=("hidden_size", 768),
        heads=("num_attention_heads", 12), ffn=("intermediate_size", 3072), patch=16,
    )  # fmt: skip
    rows = config.count("position_embedding_size", most=TOKENS, default=10_240)
    merge = config.count("pooling_kernel_size", most=100, default=3) ** 2
    vectors = whole.count("vision_soft_tokens_per_image", most=TOKENS, default=280)
    return (
        fields
        | RMS_GATED
        | {
            "num_query_groups": config.count("num_key_value_heads", most=HEADS, default=12),
            "head_dim": config.count("head_dim", most=WIDTH, default=64),
            "norms_per_layer": 4,
            "qk_norm": "head",
            "qkv_bias": config.flag("attention_bias", False),
            "final_norm": False,
            "tokens": _one_image(config, vectors * merge),
            "merge": merge,
            "projector": _products((fields["hidden_size"], text)),
            "other_parameters": 2 * rows * fields["hidden_size"],
        }
    )


def mistral3(config: Config, whole: Config, text: int) -> Fields:
    """Pixtral: a norm before the layers, none after; another one before the projector."""
    fields = _tower(
        config, layers=("num_hidden_layers", 24), hidden=("hidden_size", 1024),
        heads=("num_attention_heads", 16), ffn=("intermediate_size", 4096), patch=14,
    )  # fmt: skip
    whole.require("vision_feature_layer", -1, "the last layer's output is projected")
    hidden, merge = fields["hidden_size"], _merge(whole)
    bias = whole.flag("multimodal_projector_bias", False)
    return (
        fields
        | RMS_GATED
        | {
            "final_norm": False,
            "tokens": _image(config, 1540, 14),
            "merge": merge,
            "projector": _products((merge * hidden, hidden), (hidden, text), (text, text)),
            "other_parameters": 2 * hidden + 2 * text * bias,
        }
    )


def minimax_m3(config: Config, whole: Config, text: int) -> Fields:
    """Two matrices for each patch, then two more for adjacent patches together."""
    fields = _tower(
        config, layers=("num_hidden_layers", 32), hidden=("hidden_size", 1280),
        heads=("num_attention_heads", 16), ffn=("intermediate_size", 5120), patch=14,
    )  # fmt: skip
    fields["input_width"] *= _frames(config)
    hidden, merge = fields["hidden_size"], _merge(config)
    inner = whole.count("projector_hidden_size", most=WIDTH, default=text, because="hidden_size")
    # The first two work on each patch, before patches are joined.
    each: Fields = {"kind": "products", "products": _products((hidden, inner), (inner, text))}
    plain = [[ATTENTION, MLP]] * (fields["num_layers"] - 1)
    return (
        fields
        | LAYER_NORMS
        | pattern([*plain, [ATTENTION, MLP, each]])
        | {
            "final_norm": False,
            "tokens": _image(config, 2016, 14),
            "merge": merge,
            "projector": _products((merge * text, inner), (inner, text)),
            "other_parameters": 2 * hidden + 2 * (inner + text),
        }
    )


def step3p7(config: Config, whole: Config, text: int) -> Fields:
    """Layers scale their residual updates; two convolutions each halve the sides of the image."""
    fields = _tower(
        config, layers=("num_hidden_layers", 47), hidden=("hidden_size", 1536),
        heads=("num_attention_heads", 16), ffn=("intermediate_size", 8960), patch=14,
    )  # fmt: skip
    hidden, tokens = fields["hidden_size"], _image(config, 728, 14)
    scales: Fields = {"kind": "products", "parameters": 2 * hidden}
    wide = 2 * hidden
    return (
        fields
        | LAYER_NORMS
        | {
            "layer_pattern": [[ATTENTION, MLP, scales]],
            "final_norm": False,
            "tokens": tokens,
            "merge": 16,
            "projector": _products((9 * hidden, wide), (9 * wide, 2 * wide), (2 * wide, text)),
            "other_parameters": (tokens + 2) * hidden + wide + 2 * wide,
        }
    )
