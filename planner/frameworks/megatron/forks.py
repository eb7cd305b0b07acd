"""Options of Megatron-LM's forks that shape the model: BigCode's, and FlagScale's for Aquila."""

from __future__ import annotations

from math import ceil
from typing import Any

from cost_models.package_files import table
from planner.frameworks.arguments import Arguments

OPTIONS: dict[str, dict[str, Any]] = table("planner.frameworks.megatron", "forks.json")["flags"]


def one_query_group(args: Arguments) -> bool:
    """Whether all query heads share one key/value head."""
    return args.text("--attention-head-type") == "multiquery"


def ffn_width(args: Arguments, hidden: int) -> int | None:
    """The MLP's width by Llama's formula with --multiple-of; None if that does not apply."""
    step = args.integer("--multiple-of")
    if step < 1 or args.has("--ffn-hidden-size"):
        return None
    width = int(args.number("--hidden-dim-multiplier", 1.0) * int(4 * hidden * 2 / 3))
    return step * ceil(width / step)
