"""The legality rules: functions over arrays of plans, each with a reason code.

A rule is a pure function from (model, cluster, training, plans) to a boolean per plan; the search
applies it to millions of plans, `why` and the parsers to one.  Frameworks add rules of the same
form (planner/frameworks).
"""

from __future__ import annotations

from planner.constraints import degrees, layout, step
from planner.constraints.degrees import TP_IN_DOMAIN, WORLD_SIZE
from planner.constraints.host_memory import HOST_MEMORY
from planner.constraints.rule import (
    BoolArray,
    Context,
    Level,
    Rule,
    judged,
    micro_batches,
    passing,
    violations,
)

__all__ = [
    "RULES", "TP_IN_DOMAIN", "WORLD_SIZE", "BoolArray", "Context", "Level", "Rule", "judged",
    "micro_batches", "passing", "violations",
]  # fmt: skip

# A plan is counted under the first rule that it breaks.
RULES: tuple[Rule, ...] = (
    degrees.ADAPTERS,
    WORLD_SIZE,
    step.BATCH,
    degrees.HEADS,
    degrees.KV_HEADS,
    degrees.FFN,
    degrees.SEQUENCE_PARALLEL,
    degrees.SEQUENCE,
    step.DYNAMIC_CP,
    degrees.EXPERTS,
    layout.LAYERS,
    layout.VPP,
    layout.SCHEDULE,
    step.ZERO,
    step.RECOMPUTE,
    step.OFFLOAD,
    HOST_MEMORY,
    step.OFFLOADED_LAYERS,
    step.OFFLOADS_ELEMENTWISE,
    step.STEPS_IN_BACKWARD,
    step.CHUNKED_LOSS,
)
