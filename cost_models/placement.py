"""Where ranks sit: strides of the process groups and how many members share a domain.

Ranks are laid out with the fastest axis first.  An axis of size n and stride s forms groups
r, r+s, ..., r+(n-1)s; the experts have a grid of their own over the same ranks
(etp, ep, expert-data, pp), as in Megatron-LM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cost_models.arrays import maximum, minimum, where
from cost_models.plans import IntArray, Plans, code

_ONE = np.int64(1)  # as a number of a plan's column is one


@dataclass(frozen=True)
class Axis:
    """A process group: ranks `stride` apart, `size` of them; name: its place in Placement."""

    size: IntArray
    stride: IntArray
    name: str = ""


def members(axis: Axis, domain_accelerators: int | None) -> IntArray:
    """The fewest members of a group that share one domain of consecutive ranks.

    A group covers blocks of stride x size ranks, domains are blocks of domain_accelerators;
    every overlap of the two is a multiple of their greatest common divisor, and one overlap has
    exactly that length.  None means one domain for all.
    """
    if domain_accelerators is None:
        return axis.size
    overlap = np.gcd(axis.stride * axis.size, domain_accelerators)
    fewest: IntArray = maximum(overlap // axis.stride, _ONE)
    return fewest


class Placement:
    """The process groups of plans under their rank order, each by its parallel dimension.

    `data` holds the same weights (dp x cp); `shard` is the part of it ZeRO shards over (all of it
    unless dp_shard is set), `replicate` the ranks with the same shard; expert_* likewise.  In the
    order tp-cp-ep-pp-dp the dp x cp group is not one block when cp > 1 and pp > 1: its stride is
    that of dp and its cp members count as far apart, the pessimistic reading.

    Each group reads only the plan fields that it depends on.
    """

    def __init__(self, plans: Plans) -> None:
        self._plans = plans

    @cached_property
    def tp(self) -> Axis:
        return Axis(self._plans.tp, np.ones_like(self._plans.tp), "tp")

    @cached_property
    def cp(self) -> Axis:
        return Axis(self._plans.cp, self._plans.tp, "cp")

    @cached_property
    def pp(self) -> Axis:
        plans = self._plans
        return Axis(plans.pp, plans.tp * plans.cp * where(self._dp_last, _ONE, plans.dp), "pp")

    @cached_property
    def etp(self) -> Axis:
        return Axis(self._plans.etp, np.ones_like(self._plans.etp), "etp")

    @cached_property
    def ep(self) -> Axis:
        return Axis(self._plans.ep, self._plans.etp, "ep")

    @cached_property
    def data(self) -> Axis:
        plans = self._plans
        split = self._dp_last & (plans.pp > 1)
        stride = plans.tp * where(split, plans.cp * plans.pp, _ONE)
        return Axis(plans.dp * plans.cp, stride, "data")

    @cached_property
    def shard(self) -> Axis:
        ranks, requested = self.data.size, self._plans.dp_shard
        size = where(requested > 0, minimum(requested, ranks), ranks)
        return Axis(size, self.data.stride, "shard")

    @cached_property
    def replicate(self) -> Axis:
        shard = self.shard
        return Axis(self.data.size // shard.size, shard.stride * shard.size, "replicate")

    @cached_property
    def expert_data(self) -> Axis:
        plans = self._plans
        grid = plans.etp * plans.ep
        size = maximum(plans.tp * self.data.size // maximum(grid, _ONE), _ONE)
        return Axis(size, grid * where(self._dp_last, plans.pp, _ONE), "expert_data")

    @cached_property
    def expert_shard(self) -> Axis:
        # Hybrid sharding replicates experts as often as everything else (megatron-core).
        data = self.expert_data
        size = maximum(data.size * self.shard.size // self.data.size, _ONE)
        return Axis(size, data.stride, "expert_shard")

    @cached_property
    def expert_replicate(self) -> Axis:
        shard = self.expert_shard
        size = self.expert_data.size // shard.size
        return Axis(size, shard.stride * shard.size, "expert_replicate")

    @property
    def _dp_last(self) -> NDArray[np.bool_]:
        return np.asarray(self._plans.rank_order == code("rank_order", "tp-cp-ep-pp-dp"))


# The kinds of groups, and the plan fields they depend on.
AXES = tuple(name for name, it in vars(Placement).items() if isinstance(it, cached_property))
GROUP_FIELDS = ("tp", "cp", "pp", "dp", "dp_shard", "ep", "etp", "rank_order")
