"""Schedules of torch.distributed.pipelining (torch 2.13), for all frameworks that use it."""

from __future__ import annotations

from cost_models.plans import Plans
from cost_models.schedules import SCHEDULES as KNOWN
from planner.constraints import BoolArray, Rule
from planner.frameworks.base import unsupported
from planner.frameworks.rules import is_named

# Our name of a schedule -> torch's.
SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved-1f1b": "Interleaved1F1B",
    "looped-bfs": "LoopedBFS",
    "interleaved-zero-bubble": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
_SPLIT_BACKWARD = tuple(name for name in SCHEDULES if KNOWN[name].splits_backward)


def splits_backward(plans: Plans) -> BoolArray:
    """Whether the schedule runs the backward passes of inputs and of weights apart."""
    return is_named(plans, "schedule", *_SPLIT_BACKWARD)


RULES: tuple[Rule, ...] = (
    unsupported(
        lambda c, p: (p.pp == 1) | (p.compile == 0) | ~splits_backward(p),
        "{p.schedule} splits the backward pass, which torch cannot do with compiled blocks",
    ),
)
