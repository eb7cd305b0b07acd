"""Where ranks sit: strides of the process groups and how many members share a domain.

Ranks are laid out with the fastest axis first.  An axis of size n and stride s forms groups
r, r+s, ..., r+(n-1)s; the experts have a grid of their own over the same ranks
(etp, ep, expert-data, pp), as in Megatron-LM.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.plans import IntArray, Plans, code


@dataclass(frozen=True)
class Axis:
    """A process group: ranks `stride` apart, `size` of them; name: its place in Placement."""

    size: IntArray
    stride: IntArray
    name: str = ""


@dataclass(frozen=True)
class Placement:
    """The process groups of plans, by parallel dimension."""

    tp: Axis
    cp: Axis
    pp: Axis
    etp: Axis
    ep: Axis
    data: Axis
    shard: Axis
    replicate: Axis
    expert_data: Axis
    expert_shard: Axis
    expert_replicate: Axis


def members(axis: Axis, domain_accelerators: int | None) -> IntArray:
    """The fewest members of a group that share one domain of consecutive ranks.

    A group covers blocks of stride x size ranks, domains are blocks of domain_accelerators;
    every overlap of the two is a multiple of their greatest common divisor, and one overlap has
    exactly that length.  None means one domain for all.
    """
    if domain_accelerators is None:
        return axis.size
    overlap = np.gcd(axis.stride * axis.size, domain_accelerators)
    fewest: IntArray = np.maximum(1, overlap // axis.stride)
    return fewest


def placement(plans: Plans) -> Placement:
    """The groups of each plan under its rank order.

    `data` holds the same weights (dp x cp); `shard` is the part of it ZeRO shards over (all of it
    unless dp_shard is set), `replicate` the ranks with the same shard; expert_* likewise.  In the
    order tp-cp-ep-pp-dp the dp x cp group is not one block when cp > 1: its stride is that of dp
    and its cp members count as far apart, the pessimistic reading.
    """
    one = np.ones_like(plans.tp)
    dp_last = plans.rank_order == code("rank_order", "tp-cp-ep-pp-dp")
    ranks = plans.dp * plans.cp
    shard = np.where(plans.dp_shard > 0, np.minimum(plans.dp_shard, ranks), ranks)
    expert_ranks = np.maximum(plans.tp * ranks // np.maximum(plans.etp * plans.ep, 1), 1)
    # Hybrid sharding replicates experts as often as everything else (megatron-core).
    expert_shard = np.maximum(expert_ranks * shard // ranks, 1)
    pipeline = np.where(dp_last, plans.pp, one)
    stride = plans.tp * np.where(dp_last, plans.cp * plans.pp, one)
    expert_stride = plans.etp * plans.ep * pipeline
    groups = {
        "tp": (plans.tp, one),
        "cp": (plans.cp, plans.tp),
        "pp": (plans.pp, plans.tp * plans.cp * np.where(dp_last, one, plans.dp)),
        "etp": (plans.etp, one),
        "ep": (plans.ep, plans.etp),
        "data": (ranks, stride),
        "shard": (shard, stride),
        "replicate": (ranks // shard, stride * shard),
        "expert_data": (expert_ranks, expert_stride),
        "expert_shard": (expert_shard, expert_stride),
        "expert_replicate": (expert_ranks // expert_shard, expert_stride * expert_shard),
    }
    return Placement(**{name: Axis(*group, name) for name, group in groups.items()})
