"""The layers of the training script: standard ones, or those of a model's layer pattern.

The script contains a class for each kind of block in the model, from a file of modules/.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cost_models.blocks import Sublayer
from cost_models.blocks.attention import Attention
from cost_models.blocks.compressed_attention import CompressedAttention
from cost_models.blocks.indexer import Indexer
from cost_models.layers import layers_of
from cost_models.package_files import text
from cost_models.spec import ModelSpec, StackSpec

KINDS = (
    "attention", "compressed_attention", "cross_attention", "experts", "gated_delta_net",
    "latent_attention", "lightning_attention", "linear_recurrent_unit", "mamba", "mamba2", "mlp",
    "parallel", "per_layer_input", "rwkv_channel_mix", "rwkv_time_mix", "short_convolution",
)  # fmt: skip
PARTS = ("encoders", "expert_latents", "per_layer_inputs", "residual_streams", "zero_experts")
# Kinds that process the tokens of a sequence in parallel; the others process them in order.
ATTENTION = {"attention", "compressed_attention", "latent_attention"}
AT_ONCE = {*ATTENTION, "cross_attention", "experts", "mlp", "parallel", "per_layer_input"}
_SPLIT = "    plan |= split_blocks(module, gather, columns, rows, by_head)\n"
_SPLIT_ENCODERS = "    for encoder in stage.encoders:\n        encoder.split()\n"


def layers(model: StackSpec) -> tuple[tuple[Sublayer, ...], ...]:
    """The layer pattern of a model; empty if its layers are the script's standard ones.

    If an encoder has a pattern, the model gets one too.
    """
    encoders = (layers(encoder) for encoder in getattr(model, "encoders", ()))
    window = model.sliding_window is not None or model.attention_sinks
    own = window or model.mla or model.residual_streams > 1 or any(encoders)
    return _in_full(model) if own and not model.layer_pattern else model.layer_pattern


def _in_full(model: StackSpec) -> tuple[tuple[Sublayer, ...], ...]:
    """The blocks of every layer."""
    found = layers_of(model)
    return tuple(found.kinds[place].sublayers for place in found.order)


def each(model: StackSpec) -> tuple[Sublayer, ...]:
    """Every distinct block of the pattern, after the branches that it contains.

    Kept with the model, as its layers are: a dozen rules ask for it.
    """
    found: tuple[Sublayer, ...] | None = vars(model).get("_script_blocks")
    if found is None:
        found = vars(model)["_script_blocks"] = _each(model)
    return found


def _each(model: StackSpec) -> tuple[Sublayer, ...]:
    def parts(block: Sublayer) -> Iterator[Sublayer]:
        for branch in getattr(block, "branches", ()):
            yield from parts(branch)
        yield block

    blocks = (block for layer in layers(model) for block in layer)
    return tuple(dict.fromkeys(one for block in blocks for one in parts(block)))


def indexers(model: ModelSpec) -> list[Indexer]:
    """The indexers of its blocks."""
    found = (getattr(block, "indexer", None) for block in each(model))
    return [indexer for indexer in found if indexer is not None]


def cross_layer_state(model: ModelSpec) -> str:
    """What a layer receives from an earlier one besides the hidden state; empty if nothing."""
    if model.per_layer_input_size is not None:
        return "per-layer embeddings"
    earlier = (getattr(block, "key_values", "own") == "earlier" for block in each(model))
    if any(indexer.shared for indexer in indexers(model)):
        return "keys selected by an earlier indexer"
    return "keys and values of an earlier layer" if any(earlier) else ""


def has_indexer(model: ModelSpec) -> bool:
    """Whether some attention is limited to keys that an indexer picks."""
    return bool(indexers(model)) or any(getattr(b, "choice", None) for b in each(model))


def in_order(model: ModelSpec) -> str:
    """The first block that processes the tokens in order; empty if there is none."""
    return next((block.label for block in each(model) if block.kind not in AT_ONCE), "")


def picks_blocks(model: ModelSpec) -> bool:
    """Whether an indexer picks blocks of keys."""
    return any(indexer.block_size for indexer in indexers(model))


def compresses(model: ModelSpec) -> bool:
    """Whether some attention includes compressed tokens."""
    return any(isinstance(block, CompressedAttention) for block in each(model))


def has_sinks(model: ModelSpec) -> bool:
    """Whether some attention has sinks, a learned score for no token."""
    blocks = (block for block in each(model) if isinstance(block, Attention))
    sinks = any(model.attention_sinks if b.sinks is None else b.sinks for b in blocks)
    return sinks or (model.attention_sinks and compresses(model))


def classes(model: ModelSpec) -> dict[str, str]:
    """Text for each @MARK@ of the template: classes of its layers, and their split over tp."""
    if not layers(model):
        usual = {"@LAYER@": _text("usual_layer"), "@SPLIT@": ""}
        return usual | _stage(model)
    there = {block.kind for stack in (model, *model.encoders) for block in each(stack)}
    kinds = [kind for kind in KINDS if kind in there]
    shared = {
        "kept": True,
        "shared": cross_layer_state(model) != "",
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
    """Text for the marks of stages with encoders, per-layer inputs or residual streams."""
    streams = model.residual_streams > 1
    special = {
        "encoder_stage": bool(model.encoders),
        "per_layer_stage": model.per_layer_input_size is not None,
        "streams_stage": streams,
    }
    made, texts = "Stage", [""]
    for name in (name for name in special if special[name]):
        texts.append(_text(name).replace("(Stage)", f"({made})"))
        made = name.title().replace("_", "")
    return {
        "@STAGE@\n": "\n\n".join(texts).removeprefix("\n") + "\n\n" if len(texts) > 1 else "",
        "@STAGE CLASS@": made,
        "@BLOCK CLASS@": "StreamsBlock" if streams else "Block",
        "@ENCODERS@": _SPLIT_ENCODERS if model.encoders else "",
        "@IMAGES@": " *images(mine)" if model.encoders else "",
    }


def _text(name: str) -> str:
    return text("planner.frameworks.pytorch", f"script_parts/{name}.py.txt").rstrip()


def entries(model: StackSpec) -> tuple[dict[str, Any], list[list[str]]]:
    """The options of each block by its name, and the block names of every layer."""
    names: dict[Sublayer, str] = {}
    count = Counter[str]()
    every = layers(model) or _in_full(model)
    for block in dict.fromkeys(block for layer in every for block in layer):
        count[block.kind] += 1
        many = f"_{count[block.kind]}" if count[block.kind] > 1 else ""
        names[block] = f"{block.kind}{many}"
    blocks = {name: _options(block, model) for block, name in names.items()}
    return blocks, [[names[block] for block in layer] for layer in every]


def _options(block: Sublayer, model: StackSpec) -> dict[str, Any]:
    """The options of a block, with sinks as in the model."""
    options = block.model_dump(mode="json")
    for one in (options, *options.get("branches", ())):
        if one["kind"] == "attention" and one["sinks"] is None and model.attention_sinks:
            one["sinks"] = True
    return options


def pattern(config: Mapping[str, Any]) -> tuple[tuple[Any, ...], ...]:
    """The layer pattern of a CONFIG block; raises ValueError if it names a missing block."""
    blocks, layers = config.get("blocks", {}), config.get("layer_pattern", [])
    named = isinstance(blocks, dict) and isinstance(layers, list)
    if not named or not all(isinstance(layer, list) for layer in layers):
        raise ValueError("blocks must be a dictionary, layer_pattern a list of lists")
    missing = [str(name) for layer in layers for name in layer if name not in blocks]
    if missing:
        raise ValueError(f"layer_pattern names {missing[0]}, which is not in blocks")
    return tuple(tuple(blocks[name] for name in layer) for layer in layers)
