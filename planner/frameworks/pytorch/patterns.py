"""The layers of the training script: the usual ones, or those of a model's pattern.

The script holds the classes of the blocks that its model has; each kind is a file of modules/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from cost_models.blocks import Sublayer
from cost_models.blocks.attention import Attention
from cost_models.blocks.compressed_attention import CompressedAttention
from cost_models.layers import layers_of
from cost_models.spec import ModelSpec

KINDS = (
    "attention", "compressed_attention", "cross_attention", "experts", "gated_delta_net",
    "latent_attention", "lightning_attention", "linear_recurrent_unit", "mamba", "mamba2", "mlp",
    "parallel", "per_layer_input", "rwkv_channel_mix", "rwkv_time_mix", "short_convolution",
)  # fmt: skip
PARTS = ("expert_latents", "per_layer_inputs", "residual_streams", "zero_experts")
# Kinds that take all tokens of a sequence at once; the others take them in order.
ATTENTION = {"attention", "compressed_attention", "latent_attention"}
AT_ONCE = {*ATTENTION, "cross_attention", "experts", "mlp", "parallel", "per_layer_input"}
_SPLIT = "    plan |= split_blocks(module, gather, columns, rows, by_head)\n"


def layers(model: ModelSpec) -> tuple[tuple[Sublayer, ...], ...]:
    """The pattern of a model; of one without, where its layers are not the script's usual ones."""
    window = model.sliding_window is not None or model.attention_sinks
    if model.layer_pattern or not (window or model.mla or model.residual_streams > 1):
        return model.layer_pattern
    found = layers_of(model)
    return tuple(found.kinds[place].sublayers for place in found.order)


def each(model: ModelSpec) -> tuple[Sublayer, ...]:
    """Every block of the pattern once, branches of others before them."""

    def parts(block: Sublayer) -> Iterator[Sublayer]:
        for branch in getattr(block, "branches", ()):
            yield from parts(branch)
        yield block

    blocks = (block for layer in layers(model) for block in layer)
    return tuple(dict.fromkeys(one for block in blocks for one in parts(block)))


def passes_on(model: ModelSpec) -> str:
    """What a layer gets from an earlier one beside the hidden state; empty where nothing."""
    if model.per_layer_input_size is not None:
        return "embeddings of their own"
    earlier = (getattr(block, "key_values", "own") == "earlier" for block in each(model))
    indexers = (getattr(block, "indexer", None) for block in each(model))
    if any(indexer is not None and indexer.shared for indexer in indexers):
        return "the choice of an earlier indexer"
    return "keys and values of an earlier layer" if any(earlier) else ""


def has_indexer(model: ModelSpec) -> bool:
    """Whether attention is to keys that an indexer picks."""
    blocks = each(model)
    return any(getattr(b, "indexer", None) or getattr(b, "choice", None) for b in blocks)


def in_order(model: ModelSpec) -> str:
    """The first block that takes the tokens of a sequence in order; empty where none does."""
    return next((block.label for block in each(model) if block.kind not in AT_ONCE), "")


def picks_blocks(model: ModelSpec) -> bool:
    """Whether an indexer picks blocks of keys."""
    indexers = (getattr(block, "indexer", None) for block in each(model))
    return any(indexer is not None and indexer.block_size for indexer in indexers)


def compresses(model: ModelSpec) -> bool:
    """Whether attention is to compressed tokens too."""
    return any(isinstance(block, CompressedAttention) for block in each(model))


def has_sinks(model: ModelSpec) -> bool:
    """Whether attention has a score of its own for no token."""
    blocks = (block for block in each(model) if isinstance(block, Attention))
    sinks = any(model.attention_sinks if b.sinks is None else b.sinks for b in blocks)
    return sinks or (model.attention_sinks and compresses(model))


def classes(model: ModelSpec) -> dict[str, str]:
    """What stands for the script's marks: the classes of its layers, and how tp splits them."""
    if not layers(model):
        usual = {"@LAYER@": _text("usual_layer"), "@SPLIT@": ""}
        return usual | _stage(model)
    kinds = [kind for kind in KINDS if kind in {block.kind for block in each(model)}]
    shared = {
        "kept": True,
        "shared": passes_on(model) != "",
        "recurrence": not set(kinds) <= AT_ONCE,
        "streams": model.residual_streams > 1,
        "fused_attention": has_sinks(model) or has_indexer(model) or compresses(model),
        "indexer": has_indexer(model),
        "block_indexer": picks_blocks(model),
        "compressed_indexer": any(getattr(block, "choice", None) for block in each(model)),
        "local_attention": not ATTENTION.isdisjoint(kinds),
    }
    texts = map(_text, ("pattern_layer", *(name for name in shared if shared[name]), *kinds))
    marks = {"@LAYER@": "\n\n\n".join(texts), "@SPLIT@": _SPLIT}
    return marks | _stage(model)


def _stage(model: ModelSpec) -> dict[str, str]:
    """A stage with more than layers between embedding and head, and layers with several streams."""
    streams = model.residual_streams > 1
    name = "streams_stage" if streams else "per_layer_stage"
    special = streams or model.per_layer_input_size is not None
    made = name.title().replace("_", "") if special else "Stage"
    return {
        "@STAGE@\n": f"\n{_text(name)}\n\n" if special else "",
        "@STAGE CLASS@": made,
        "@BLOCK CLASS@": "StreamsBlock" if streams else "Block",
    }


def _text(name: str) -> str:
    path = files(__package__).joinpath("modules", f"{name}.py.txt")
    return path.read_text(encoding="utf-8").rstrip()


def entries(model: ModelSpec) -> tuple[dict[str, Any], list[list[str]]]:
    """The blocks by a name for each, and the names of every layer's."""
    names: dict[Sublayer, str] = {}
    count = Counter[str]()
    for block in dict.fromkeys(block for layer in layers(model) for block in layer):
        count[block.kind] += 1
        many = f"_{count[block.kind]}" if count[block.kind] > 1 else ""
        names[block] = f"{block.kind}{many}"
    blocks = {name: _options(block, model) for block, name in names.items()}
    return blocks, [[names[block] for block in layer] for layer in layers(model)]


def _options(block: Sublayer, model: ModelSpec) -> dict[str, Any]:
    """What the script is told of a block, sinks as the model has them."""
    options = block.model_dump(mode="json")
    for one in (options, *options.get("branches", ())):
        if one["kind"] == "attention" and one["sinks"] is None and model.attention_sinks:
            one["sinks"] = True
    return options


def pattern(config: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """The layer pattern that a CONFIG block says; raises ValueError where a name is not there."""
    blocks, layers = config.get("blocks", {}), config.get("layer_pattern", [])
    named = isinstance(blocks, dict) and isinstance(layers, list)
    if not named or not all(isinstance(layer, list) for layer in layers):
        raise ValueError("blocks holds options by name, layer_pattern lists of names")
    missing = [str(name) for layer in layers for name in layer if name not in blocks]
    if missing:
        raise ValueError(f"layer_pattern names {missing[0]}, which blocks does not hold")
    return tuple(tuple(blocks[name] for name in layer) for layer in layers)
