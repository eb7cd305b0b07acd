"""Candidates whose layout is not chosen yet, and the bounds that rule some of them out early."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from cost_models.estimate import CostModel
from cost_models.plans import FloatArray, IntArray, Plans, code
from planner.constraints import BoolArray, Rule
from planner.evidence.uncertainty.memory_risk import Room

# Sums of the same terms in another order differ by less.
ROUNDING = 1.0 - 1e-9
_FULL = code("recompute", "full")


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
    rules: the rules that need the layout.  refused: plans that the other rules refused.  work_s,
    least_s: after in_order, lower bounds of the step time without waiting for other stages and with
    it.
    """

    plans: Plans
    group: IntArray
    counts: IntArray
    drawn: IntArray
    early: bool
    rules: tuple[Rule, ...]
    refused: tuple[Refused, ...]
    work_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    least_s: FloatArray = field(default_factory=lambda: np.zeros(0))

    def where(self, chosen: BoolArray) -> PartialPlans:
        """The chosen partial."""
        row = np.repeat(np.arange(len(self.counts)), self.counts)
        counts = np.bincount(row[chosen], minlength=len(self.counts))
        return replace(self, plans=self.plans.take(chosen), counts=counts)

    @property
    def groups(self) -> IntArray:
        """The process group of each plan."""
        return np.repeat(self.group, self.counts)

    def in_order(self, work_s: FloatArray, least_s: FloatArray, order: IntArray) -> PartialPlans:
        """One row for each plan, in another order."""
        group = self.groups[order]
        return replace(
            self, plans=self.plans.take(order), group=group, counts=np.ones_like(group),
            work_s=work_s[order], least_s=least_s[order],
        )  # fmt: skip


def fewer_layers(plans: Plans) -> IntArray:
    """How many plans differ from each in recomputing fewer layers; they are not drawn."""
    full = plans.recompute == _FULL
    return np.where(full, np.maximum(plans.recompute_num_layers, 1) - 1, 0)
