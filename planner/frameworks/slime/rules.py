"""slime's rules beyond Megatron-LM's, from backends/megatron_utils of 624b824."""

from __future__ import annotations

from planner.constraints import Rule
from planner.frameworks.base import unsupported
from planner.frameworks.megatron.rules import RULES as CORE
from planner.frameworks.rules import is_named

OWN: tuple[Rule, ...] = (
    unsupported(
        lambda c, p: (c.model.moe is None) | ~is_named(p, "moe_dispatcher", "allgather"),
        "it replaces the allgather dispatcher by alltoall, as sequences vary in length",
    ),
    unsupported(
        lambda c, p: c.model.position != "learned",
        "its packed samples have no positions for learned position embeddings",
        "degrees",
    ),
)
RULES: tuple[Rule, ...] = (*CORE, *OWN)
