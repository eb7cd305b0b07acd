"""The mapping of a plan to MaxText's mesh: axes inside a slice and between slices."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np

from cost_models.plans import IntArray, ParallelPlan, Plans
from cost_models.spec import ClusterSpec

TPU = "Google"


class Mesh(NamedTuple):
    """Sizes of the axes; only data and fsdp extend over several slices."""

    data: int
    fsdp: int
    context: int
    tensor: int
    expert: int
    slices: int

    @property
    def between(self) -> tuple[int, int]:
        """Sizes of data and fsdp between slices; data takes as many slices as it can."""
        data = gcd(self.data, self.slices)
        return data, self.slices // data


def on_tpus(cluster: ClusterSpec) -> bool:
    return all(group.accelerator.vendor == TPU for group in cluster.groups)


def slices(cluster: ClusterSpec) -> int:
    """Number of TPU slices; MaxText treats GPUs as one slice, on any number of nodes."""
    domain = cluster.groups[0].network[0].domain_accelerators
    if not on_tpus(cluster) or not domain:
        return 1
    return max(cluster.accelerators // domain, 1)


def shard_ranks(p: Plans) -> IntArray:
    """Data-parallel ranks of one shard group; 0 if it is not made of whole cp and ep groups."""
    spanned = np.where(p.dp_shard > 0, p.dp_shard, p.dp * p.cp)
    whole = (spanned % p.cp == 0) & (spanned // p.cp % p.ep == 0)
    return np.asarray(np.where(p.zero_stage == 3, np.where(whole, spanned // p.cp, 0), 1))


def mesh(cluster: ClusterSpec, plan: ParallelPlan) -> Mesh:
    """The mesh of a plan that satisfies the rules."""
    ranks = int(shard_ranks(Plans.of(plan)).item())
    return Mesh(
        data=plan.dp // ranks, fsdp=max(ranks // plan.ep, 1), context=plan.cp, tensor=plan.tp,
        expert=plan.ep, slices=slices(cluster),
    )  # fmt: skip
