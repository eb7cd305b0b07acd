"""Options of Megatron-LM's forks that say what is trained: BigCode's, and FlagScale's of Aquila."""

from __future__ import annotations

from math import ceil
from typing import Any

from planner.frameworks.arguments import Arguments

OPTIONS: dict[str, dict[str, Any]] = {
    "--attention-head-type": {
        "kind": "store",
        "type": "str",
        "choices": ["multihead", "multiquery"],
    },
    "--multiple-of": {"kind": "store", "type": "int"},
    "--hidden-dim-multiplier": {"kind": "store", "type": "float"},
}


def one_query_group(args: Arguments) -> bool:
    """Whether all heads share one key and value."""
    return args.text("--attention-head-type") == "multiquery"


def ffn_width(args: Arguments, hidden: int) -> int | None:
    """The inner width as Llama's authors say it; None where it is said otherwise."""
    step = args.integer("--multiple-of")
    if step < 1 or args.has("--ffn-hidden-size"):
        return None
    width = int(args.number("--hidden-dim-multiplier", 1.0) * int(4 * hidden * 2 / 3))
    return step * ceil(width / step)
