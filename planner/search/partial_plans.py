"""Candidates whose layout is not chosen yet, and the bounds that rule some of them out early."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cost_models.estimate import CostModel
from cost_models.plans import FloatArray, IntArray, Plans
from planner.constraints import BoolArray, Rule
from planner.evidence.uncertainty.memory_risk import Room

# Sums of the same terms in another order differ by less.
ROUNDING = 1.0 - 1e-9


class Memory(NamedTuple):
    """What candidates must fit into in some layout, else they are left out.

    model: gives lower bounds over all layouts; room: bytes that plans may need.
    """

    model: CostModel
    room: Room

    def fits(self, plans: Plans) -> BoolArray:
        """Which plans may fit in some layout."""
        return np.asarray(ROUNDING * self.model.least_bytes(plans) <= self.room.of(plans))


# A rule (None: a dominance rule), one plan that it refuses, and how many it refuses by group.
Refused = tuple[Rule | None, Plans, IntArray]


@dataclass(frozen=True)
class PartialPlans:
    """Plans without their layout; those of one row are adjacent.

    group, counts: the process group and the number of plans of each row.  drawn: the number of
    each group before any was left out.  early: whether dominated plans are already left out.
    rules: the rules that need the layout.  refused: plans that the other rules refused.  least_s:
    lower bounds of the step time, after by_least_time.
    """

    plans: Plans
    group: IntArray
    counts: IntArray
    drawn: IntArray
    early: bool
    rules: tuple[Rule, ...]
    refused: tuple[Refused, ...]
    least_s: FloatArray

    def where(self, chosen: BoolArray) -> PartialPlans:
        """The chosen partial."""
        row = np.repeat(np.arange(len(self.counts)), self.counts)
        counts = np.bincount(row[chosen], minlength=len(self.counts))
        return replace(self, plans=self.plans.take(chosen), counts=counts)

    def by_least_time(self, least_s: FloatArray, shares: FloatArray) -> PartialPlans:
        """One row for each cell, in the order of shares; least_s: its least step time."""
        order = np.argsort(shares, kind="stable")
        group = np.repeat(self.group, self.counts)[order]
        return replace(
            self, plans=self.plans.take(order), group=group, counts=np.ones_like(group),
            least_s=least_s[order],
        )  # fmt: skip
