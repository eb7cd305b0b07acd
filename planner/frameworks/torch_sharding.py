"""Sharding of torch's FSDP 2 over data and context parallelism, for all frameworks that use it."""

from __future__ import annotations

import numpy as np

from cost_models.plans import IntArray, ParallelPlan, Plans
from planner.frameworks.base import rule


def shard_degree(plan: ParallelPlan) -> int:
    """Data-parallel ranks in a shard group, which has cp times as many ranks; 1 without ZeRO."""
    return 1 if plan.zero_stage == 0 else (plan.dp_shard or plan.dp * plan.cp) // plan.cp


def shard_degrees(p: Plans) -> IntArray:
    """The shard degree of each plan; 0 where cp does not divide the shard group."""
    spanned = np.where(p.dp_shard > 0, p.dp_shard, p.dp * p.cp)
    whole = np.where(spanned % p.cp == 0, spanned // p.cp, 0)
    return np.where(p.zero_stage == 0, 1, whole)


GROUPS = rule(
    "zero_stage",
    lambda c, p: (shard_degrees(p) > 0) & (p.dp % np.maximum(shard_degrees(p), 1) == 0),
    "a shard group of {p.dp_shard} ranks must hold whole groups of cp {p.cp} and divide "
    "dp {p.dp} x cp {p.cp}",
)
