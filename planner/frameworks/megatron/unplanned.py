"""Megatron-LM's options that change time or memory but are no field of a plan, with reasons.

A launch with one of them is read and costed without it, with a note.
"""

from __future__ import annotations

from cost_models.package_files import table
from planner.frameworks.arguments import Arguments

# Option -> why; unplanned.json has the options by the reason.
UNPLANNED: dict[str, str] = {
    option: why
    for why, options in table("planner.frameworks.megatron", "unplanned.json")["reasons"].items()
    for option in options
}


def note(args: Arguments) -> None:
    """Adds an assumption to the reading for each of these options that is given."""
    for name in sorted(args.given.keys() & UNPLANNED.keys()):
        args.assume(f"{name} is not costed: {UNPLANNED[name]}")
