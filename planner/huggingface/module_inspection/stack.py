"""The layers of a stack as one document: common fields, and a pattern of blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from torch import nn

from cost_models.blocks import AnySublayer
from cost_models.blocks.base import Sublayer
from cost_models.blocks.records import Split
from cost_models.spec import StackSpec
from planner.huggingface.module_inspection.feed_forwards import Fields
from planner.huggingface.module_inspection.layer import Layer, Part, products_of, read_layer
from planner.huggingface.module_inspection.module import elements

_BLOCK: TypeAdapter[Sublayer] = TypeAdapter(AnySublayer)


@dataclass(frozen=True)
class Stack:
    """A stack as it was read.

    fields: of a StackSpec.  exact, approximate: names of layers' modules by the kind of match.
    """

    fields: Fields
    exact: tuple[str, ...]
    approximate: tuple[str, ...]


def read_stack(layers: nn.ModuleList, config: Any, hidden: int, tokens: int) -> Stack:
    """The stack of these layers; tokens: of the encoder that cross-attention attends to."""
    read = [read_layer(layer, config, i, hidden) for i, layer in enumerate(layers)]
    fields = _common(read, config, hidden)
    draft = StackSpec.model_validate(fields)
    exact: dict[str, None] = {}
    approximate: dict[str, None] = {}
    pattern = []
    for layer in read:
        blocks: list[Fields] = []
        others: list[Fields | None] = []
        for part in layer.parts:
            block, left = _fitted(part, fields, draft, tokens)
            if block is not None:
                blocks.append(block)
            (approximate if left else exact)[part.name] = None
            others.append(products_of(left))
        others.append(products_of(layer.loose))
        pattern.append(_parallel_branches(blocks, len(layer.norms)) + [o for o in others if o])
    fields |= _norms_of_layers(read, pattern, hidden * (1 + fields["norm_bias"]))
    if not any(each["kind"] == "experts" for blocks in pattern for each in _flat(blocks)):
        fields.pop("moe", None)
    fields["layer_pattern"] = _period(pattern)
    return Stack(fields, tuple(exact), tuple(approximate))


def _fitted(
    part: Part, fields: Fields, draft: StackSpec, tokens: int
) -> tuple[Fields | None, dict[str, tuple[int, ...]]]:
    """A part's block, if it accounts for all that the part does not leave, and the rest."""
    block = _own_options(part, fields, tokens)
    if block is not None and _elements(block, draft) == part.total - _sum(part.left):
        return block, part.left
    return None, part.shapes


def _norms_of_layers(read: Sequence[Layer], pattern: list[list[Fields]], each: int) -> Fields:
    """Fields of the norms; layers get a block for what they have beyond it.

    each: parameters of one norm.
    """
    sublayers = [sum(b["kind"] != "products" for b in blocks) for blocks in pattern]
    norms = [2 * len(layer.norms) // n for layer, n in zip(read, sublayers, strict=True) if n]
    per_layer = min(norms, default=0)
    for layer, blocks, count in zip(read, pattern, sublayers, strict=True):
        rest = sum(n for n, _ in layer.norms) - round(count * per_layer * each / 2)
        if rest > 0 or not blocks:
            blocks.append({"kind": "products", "parameters": max(rest, 0)})
    if all(len(layer.norms) == 1 and len(b) == 2 for layer, b in zip(read, pattern, strict=True)):
        return {"norms_per_layer": 1, "parallel_residual": True}
    return {"norms_per_layer": per_layer}


def _flat(blocks: list[Fields]) -> Iterator[Fields]:
    for block in blocks:
        yield block
        yield from block.get("branches", ())


def _sum(left: dict[str, tuple[int, ...]]) -> int:
    return sum(map(elements, left.values()))


def _elements(block: Fields, draft: StackSpec) -> int:
    """Parameters of a block; -1 if it does not fit the stack."""
    sublayer = _BLOCK.validate_python(block)
    if sublayer.missing(draft):
        return -1
    return round(float(sum(w.elements for w in sublayer.weights(draft, Split()))))


def _common(read: Sequence[Layer], config: Any, hidden: int) -> Fields:
    """Heads, widths, biases and norms that the layers share, by majority."""
    blocks = [part.block for layer in read for part in layer.parts if part.block]
    return {
        "num_layers": len(read),
        "hidden_size": hidden,
        "position": "rope",
        "residual_streams": _streams(read, config, hidden),
        **_attention(blocks, config, hidden),
        **_feed_forward(blocks, hidden),
        **_norm([norm for layer in read for norm in layer.norms], hidden),
    }


def _attention(blocks: Sequence[Fields], config: Any, hidden: int) -> Fields:
    plain = [b for b in blocks if b["kind"] == "attention" and not b.get("_cross")]
    heads, groups, head_dim = _most_common(
        (b["num_attention_heads"], b["num_query_groups"], b["head_dim"]) for b in plain
    ) or _heads(blocks, config, hidden)
    mla = next((b["_mla"] for b in blocks if "_mla" in b), None)
    if mla is not None:
        groups, head_dim = heads, mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"]
    return {
        "num_attention_heads": heads,
        "num_query_groups": groups,
        "head_dim": head_dim,
        **({"mla": mla} if mla else {}),
        "qkv_bias": _always_set(blocks, "_bias"),
        "attention_output_bias": _always_set(blocks, "_out_bias"),
        "qk_norm": _most_common(b["qk_norm"] for b in plain) or "none",
        "attention_sinks": any(b.get("_sinks") for b in blocks),
    }


def _feed_forward(blocks: Sequence[Fields], hidden: int) -> Fields:
    dense = [b for b in blocks if b["kind"] == "mlp"]
    fields: Fields = {
        "ffn_hidden_size": _most_common(b["width"] for b in dense) or 4 * hidden,
        "gated_mlp": _most_common(b["gated"] for b in dense) or False,
        "mlp_bias": _always_set(dense, "bias"),
    }
    moe = next((b["_moe"] for b in blocks if b["kind"] == "experts"), None)
    if moe is not None:
        fields["gated_mlp"] = moe["_gated"]
        fields["moe"] = {k: v for k, v in moe.items() if not k.startswith("_")}
    return fields


def _norm(norms: Sequence[tuple[int, str]], hidden: int) -> Fields:
    bias = bool(norms) and all(count == 2 * hidden for count, _ in norms)
    rms = not bias and any("RMS" in name for _, name in norms)
    return {"norm": "rmsnorm" if rms else "layernorm", "norm_bias": bias}


def _always_set(blocks: Sequence[Fields], option: str) -> bool:
    """Whether some block has an option, and each that has it sets it."""
    said = [block[option] for block in blocks if option in block]
    return bool(said) and all(said)


def _streams(read: Sequence[Layer], config: Any, hidden: int) -> int:
    """Number of residual streams; 1 unless every layer's mixtures have their exact size."""
    count = int(getattr(config, "hc_mult", 1))
    own = count * (2 + count) * (count * hidden + 1) + 3
    if all(layer.streams and set(layer.streams) == {own} for layer in read):
        return count
    for layer in read:
        layer.loose |= {f"streams.{i}": (each,) for i, each in enumerate(layer.streams)}
    return 1


def _heads(blocks: Sequence[Fields], config: Any, hidden: int) -> tuple[int, int, int]:
    """(heads, key/value heads, head width) of a stack without plain attention."""
    for block in blocks:
        heads = block.get("_heads") or block.get("num_heads") or block.get("num_value_heads")
        if heads:
            head_dim = block.get("_head_dim") or block.get("head_dim") or max(hidden // heads, 1)
            return heads, 1 if "_head_dim" in block else heads, head_dim
    heads = int(getattr(config, "num_attention_heads", None) or 1)
    return heads, heads, max(hidden // heads, 1)


def _most_common(values: Iterable[Any]) -> Any:
    return next((value for value, _ in Counter(values).most_common(1)), None)


def _own_options(part: Part, fields: Fields, tokens: int) -> Fields | None:
    """A part's block without the options that it shares with the stack."""
    if part.block is None:
        return None
    block = {k: v for k, v in part.block.items() if not k.startswith("_")}
    if part.block.get("_cross"):
        source = part.block["_source"]
        cross: Fields = {"kind": "cross_attention", "tokens": tokens}
        if source != fields["hidden_size"]:
            cross["source_width"] = source
        if block["num_query_groups"] != fields["num_query_groups"]:
            cross["num_query_groups"] = block["num_query_groups"]
        return cross
    shared = {"sinks": "attention_sinks", "width": "ffn_hidden_size", "gated": "gated_mlp",
              "bias": "mlp_bias"}  # fmt: skip
    names = {"attention": (*block, "sinks"), "mlp": ("width", "gated", "bias")}
    for name in names.get(block["kind"], ()):
        if name in block and block[name] == fields.get(shared.get(name, name)):
            del block[name]
    return block


def _parallel_branches(blocks: list[Fields], norms: int) -> list[Fields]:
    """The blocks of a layer, with those that share a norm joined as parallel branches."""
    feeds = ("mlp", "experts", "rwkv_channel_mix", "per_layer_input")
    mixers = [b for b in blocks if b["kind"] not in feeds]
    rest = [b for b in blocks if b["kind"] in feeds]
    if len(rest) > 1 and norms < len(blocks):
        rest = [{"kind": "parallel", "branches": rest}]
    own = [b for b in mixers if b["kind"] != "cross_attention"]
    if len(own) > 1 and norms < len(mixers) + len(rest):
        mixers = [{"kind": "parallel", "branches": own}]
    return mixers + rest


def _period(pattern: list[list[Fields]]) -> list[list[Fields]]:
    """The shortest pattern whose repetition gives this one."""
    for length in range(1, len(pattern)):
        if all(pattern[i] == pattern[i % length] for i in range(len(pattern))):
            return pattern[:length]
    return pattern
