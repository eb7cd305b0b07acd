"""Shared by families with several kinds of layers: lists of kinds, experts, recurrent mixers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from planner.huggingface.config import HEADS, LAYERS, TOKENS, WIDTH, Config
from planner.huggingface.families.shared_fields import Fields

Layer = list[Fields]

ATTENTION: Fields = {"kind": "attention"}
LATENT: Fields = {"kind": "latent_attention"}
MLP: Fields = {"kind": "mlp"}
EXPERTS: Fields = {"kind": "experts"}
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


def pattern(layers: Sequence[Layer]) -> Fields:
    """The shortest list of layers whose repetition gives these."""
    places: dict[str, int] = {}
    order = [places.setdefault(repr(layer), len(places)) for layer in layers]
    # For each prefix, the length of its longest proper suffix that is a prefix too (Knuth, Morris
    # and Pratt).
    borders = [0] * len(order)
    for i in range(1, len(order)):
        length = borders[i - 1]
        while length and order[i] != order[length]:
            length = borders[length - 1]
        borders[i] = length + (order[i] == order[length])
    return {"layer_pattern": list(layers[: len(order) - borders[-1]])}


def numbered(config: Config, name: str) -> set[int] | None:
    """The layer numbers that the file lists under `name`; None if it has no such list."""
    stated = config.data.get(name)
    if stated is None:
        return None
    if not isinstance(stated, list | tuple) or any(type(layer) is not int for layer in stated):
        config.refuse(name, "must be a list of layer numbers")
        return set()
    return set(stated)


def kinds(
    config: Config,
    name: str,
    default: Sequence[str],
    allowed: Collection[str],
    because: str,
) -> list[str]:
    """The kind of each layer, as listed in the file or else in `default`.

    because: where the default comes from.
    """
    stated = config.data.get(name)
    if stated is None:
        config.guess(name, because, "by default")
        return list(default)
    if not isinstance(stated, list) or len(stated) != len(default):
        config.refuse(name, f"must be a list of {len(default)}, one for each layer")
        return list(default)
    if any(not isinstance(kind, str) or kind not in allowed for kind in stated):
        config.refuse(name, f"may hold only {', '.join(sorted(allowed))}")
        return list(default)
    return stated


def full_attention_every(layers: int, period: int, *, first: int | None = None) -> list[str]:
    """Full attention in every period-th layer, starting with `first`; a window in the others."""
    start = period - 1 if first is None else first
    return [FULL if i % period == start % period else SLIDING for i in range(layers)]


def every_full(config: Config, layers: int) -> list[str]:
    """Linear attention, with full attention in every full_attention_interval-th layer."""
    period = 4
    if not config.states("layer_types"):
        period = config.count("full_attention_interval", most=LAYERS, default=4)
    default = [LINEAR if kind == SLIDING else kind for kind in full_attention_every(layers, period)]
    return kinds(
        config, "layer_types", default, {LINEAR, FULL}, f"full attention in every {period}th layer"
    )


def rotary_layers(config: Config, layers: int) -> list[bool]:
    """Whether each layer has rotary positions; a 1 in no_rope_layers means that it has."""
    stated = config.data.get("no_rope_layers")
    if isinstance(stated, list) and stated:
        if len(stated) != layers or any(flag not in (0, 1) for flag in stated):
            config.refuse("no_rope_layers", f"must be a list of {layers} of 0 and 1")
            return [True] * layers
        return [bool(flag) for flag in stated]
    period = config.count("no_rope_layer_interval", most=LAYERS, default=4)
    return [(i + 1) % period != 0 for i in range(layers)]


def dense_or_sparse(
    config: Config, layers: int, dense: int, name: str = "first_k_dense_replace"
) -> list[Fields]:
    """Feed-forward of each layer: as listed, or experts after the first `dense` layers."""
    frequency = config.data.get("moe_layer_freq")
    if isinstance(frequency, list) and not config.states("mlp_layer_types"):
        if len(frequency) < layers or any(flag not in (0, 1) for flag in frequency):
            config.refuse("moe_layer_freq", f"must be a list of {layers} of 0 and 1")
            return [EXPERTS] * layers
        return [EXPERTS if flag else MLP for flag in frequency[:layers]]
    config.require("moe_layer_freq", 1, "every layer after the dense ones has experts")
    if not config.states("mlp_layer_types"):
        dense = config.count(name, least=0, most=LAYERS, default=dense)
    dense = min(dense, layers)
    default = ["dense"] * dense + ["sparse"] * (layers - dense)
    listed = kinds(
        config, "mlp_layer_types", default, {"dense", "sparse"}, f"the first {dense} are dense"
    )
    return [MLP if kind == "dense" else EXPERTS for kind in listed]


def routed(
    config: Config,
    *,
    experts: tuple[str, ...],
    number: int | None,
    top_k: tuple[str, ...] = ("num_experts_per_tok",),
    chosen: int | None,
) -> Fields:
    """Number of experts and top-k, with the family's defaults."""
    return {
        "num_experts": config.count(*experts, least=2, most=HEADS, default=number),
        "top_k": config.count(*top_k, most=LAYERS, default=chosen),
    }


def expert_width(config: Config, default: int, *names: str) -> int:
    """Width of one routed expert."""
    return config.count(*(names or ("moe_intermediate_size",)), most=WIDTH, default=default)


def latent_experts(
    config: Config,
    *,
    number: int | None = 256,
    chosen: int | None = 8,
    width: int = 2048,
    shared: int | None = 1,
) -> Fields:
    """The expert keys of DeepSeek-V3, with the defaults of a family that uses them too."""
    ffn = expert_width(config, width)
    count = config.count("n_shared_experts", "num_shared_experts", least=0, most=1000,
                         default=shared)  # fmt: skip
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    return {
        **routed(config, experts=names, number=number, chosen=chosen),
        "expert_ffn_hidden_size": ffn,
        "shared_expert_ffn_hidden_size": count * ffn,
        "score_correction_bias": True,
    }


def prediction(config: Config, *names: str) -> Fields:
    """Multi-token prediction, where the file states it."""
    keys = names or ("num_nextn_predict_layers", "num_mtp_layers")
    depth = config.count(*keys, least=0, most=16, default=0, because="no multi-token prediction")
    return {"mtp_num_layers": depth}


def delta_net(config: Config) -> Fields:
    """Gated delta net under the keys of Qwen3-Next."""
    return {
        "kind": "gated_delta_net",
        "num_key_heads": config.count("linear_num_key_heads", most=HEADS, default=16),
        "num_value_heads": config.count("linear_num_value_heads", most=HEADS, default=32),
        "key_head_dim": config.count("linear_key_head_dim", most=WIDTH, default=128),
        "value_head_dim": config.count("linear_value_head_dim", most=WIDTH, default=128),
        "convolution": config.count("linear_conv_kernel_dim", most=TOKENS, default=4),
    }


def mamba2(config: Config, hidden: int, *, own_width: int | None = None) -> Fields:
    """Mamba-2 under the keys of Bamba, which Granite and Falcon use too.

    own_width: of all heads together; None: mamba_expand times the hidden size.
    """
    heads = config.count("mamba_n_heads", most=HEADS, default=128)
    inner = own_width or hidden * config.count("mamba_expand", most=1000, default=2)
    stated = config.data.get("mamba_d_head", "auto")
    if stated == "auto":
        head_dim = max(inner // heads, 1)
        config.guess("mamba_d_head", head_dim, "width of the mixer / mamba_n_heads")
    else:
        head_dim = config.count("mamba_d_head", most=WIDTH)
    if heads * head_dim != inner and not config.problems:
        config.refuse("mamba_n_heads", f"times mamba_d_head {head_dim} is not {inner}")
    return {
        "kind": "mamba2",
        "num_heads": heads,
        "head_dim": head_dim,
        "state_size": config.count("mamba_d_state", most=WIDTH, default=256),
        "num_groups": config.count("mamba_n_groups", most=HEADS, default=1),
        "convolution": config.count("mamba_d_conv", most=TOKENS, default=4),
        "convolution_bias": config.flag("mamba_conv_bias", True),
        "bias": config.flag("mamba_proj_bias", False),
        "chunk_size": config.count("mamba_chunk_size", most=TOKENS, default=256),
    }
