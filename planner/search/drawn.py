"""Plans drawn from one space or several, to be priced together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.plans import IntArray, Plans, concatenate, joined
from planner.constraints import BoolArray
from planner.search.partial_plans import fewer_layers
from planner.search.space import Space


@dataclass(frozen=True)
class Drawn:
    """Plans with the space of each, as its place among `spaces`."""

    plans: Plans
    spaces: Sequence[Space]
    owner: IntArray

    @classmethod
    def of(cls, chunks: Sequence[tuple[Space, Plans]]) -> Drawn:
        """Chunks of plans as one."""
        plans = joined([plans for _, plans in chunks])
        owner = np.repeat(np.arange(len(chunks)), [len(plans) for _, plans in chunks])
        return cls(plans, [space for space, _ in chunks], owner)

    def each(self, name: str) -> BoolArray:
        """What the space of each plan says."""
        return np.array([getattr(space, name) for space in self.spaces])[self.owner]

    def take(self, index: Any) -> Drawn:
        return Drawn(self.plans.take(index), self.spaces, self.owner[index])

    def with_columns(self, **columns: IntArray) -> Drawn:
        return Drawn(self.plans.with_columns(**columns), self.spaces, self.owner)

    def followed_by(self, other: Drawn) -> Drawn:
        """These plans, followed by others of the same spaces."""
        owner = np.concatenate([self.owner, other.owner])
        return Drawn(concatenate(self.plans, other.plans), self.spaces, owner)

    def accepted(self) -> BoolArray:
        """Which plans the rules of their own space accept too."""
        allowed = np.zeros(len(self.owner), dtype=np.bool_)
        for index in np.unique(self.owner).tolist():
            rows = np.flatnonzero(self.owner == index)
            allowed[rows] = self.spaces[index].accepts(self.plans.take(rows))
        return allowed

    def fewer_layers(self) -> int:
        """How many plans with full recompute of fewer layers are not drawn."""
        return int((fewer_layers(self.plans) * ~self.each("every_layer_count")).sum())
