"""slime's rules beyond Megatron-LM's, from backends/megatron_utils of 624b824."""

from __future__ import annotations

import numpy as np

from planner.frameworks.base import unsupported
from planner.frameworks.megatron.rules import RULES as CORE
from planner.frameworks.rules import is_named
from planner.search.constraints import Rule

OWN: tuple[Rule, ...] = (
    unsupported(
        lambda c, p: np.equal(p.zero_stage, 1),
        lambda c, p: (
            f"it turns the distributed optimizer on whatever is said, and hands no weights of "
            f"Megatron's FSDP to its engines: ZeRO 1, not {p.zero_stage}"
        ),
    ),
    unsupported(
        lambda c, p: (c.model.moe is None) | ~is_named(p, "moe_dispatcher", "allgather"),
        "sequences vary in length, and it puts alltoall in the place of the allgather dispatcher",
    ),
    unsupported(
        lambda c, p: c.model.position != "learned",
        "its packed samples come without the positions that a learned table asks for",
        "degrees",
    ),
)
RULES: tuple[Rule, ...] = (*CORE, *OWN)
