"""Sliding windows in Megatron-LM's options: their width, and the layers that have one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from cost_models.blocks.attention import Attention
from cost_models.spec import ModelSpec
from planner.frameworks.arguments import Arguments
from planner.frameworks.base import Row
from planner.frameworks.megatron import layer_lists, patterns

WIDTH, SPARED = "--window-size", "--window-attn-skip-freq"


def options(model: ModelSpec) -> Iterator[Row]:
    """The options for the windows of a model, or of the blocks of its pattern."""
    windows = [block.window for block in patterns.blocks_of(model, Attention)]
    width = model.sliding_window or max(filter(None, windows), default=None)
    if width is None:
        return
    yield WIDTH, f"{width - 1},0", "sliding window: tokens to the left, to the right"
    if model.full_attention_period is not None:
        yield SPARED, model.full_attention_period, "full attention in every n-th layer"
    elif not all(windows):
        layers = patterns.megatron_layers(model)
        kinds = [
            int(patterns.has(layer, lambda block: block.window is not None)) for layer in layers
        ]
        yield SPARED, layer_lists.list_expression(kinds), "0: a layer with full attention"


def fields(args: Arguments, layers: int) -> dict[str, Any]:
    """The fields of a model whose windows follow a period."""
    text = args.text(WIDTH)
    if not text:
        return {}
    match = re.fullmatch(r"\(?\s*(\d{1,8})\s*,\s*(?:0|-1)\s*\)?", text)
    if match is None:
        args.assume(f"{WIDTH} {text} is not modelled: full attention assumed")
        return {}
    skip = args.text(SPARED)
    pattern = None
    if skip:
        try:
            kinds = layer_lists.listed(skip, layers)
        except ValueError as error:
            args.refuse(f"{SPARED} {skip}: {error}", SPARED)
            return {"sliding_window": int(match[1]) + 1}
        if re.fullmatch(r"\d+", skip):
            pattern = int(skip)
        else:
            full = kinds.count(0)
            pattern = max(round(layers / full), 1) if full else None
            args.assume(
                f"the {full} of {layers} layers with full attention are costed as evenly spread"
            )
    return {"sliding_window": int(match[1]) + 1, "full_attention_period": pattern or None}


def uneven(args: Arguments, layers: int) -> bool:
    """Whether the layers with windows follow no period."""
    kinds = layer_lists.digits_of(args, SPARED, layers, 0)
    if not kinds or not args.has(WIDTH):
        return False
    return not any(
        kinds == [int((i + 1) % n > 0) for i in range(layers)] for n in range(1, layers + 2)
    )


def slides(args: Arguments, layers: int) -> list[int]:
    """1 for each layer that a window would bound, 0 for the others."""
    return layer_lists.digits_of(args, SPARED, layers, 0) or [1] * layers
