"""Candidates before they have a layout: what may be told of them without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cost_models.estimate import CostModel
from cost_models.plans import FloatArray, IntArray, Plans
from planner.search.constraints import BoolArray, Rule
from planner.uncertainty.memory_risk import Room

# Sums of the same terms in another order differ by less.
ROUNDING = 1.0 - 1e-9


class Reach(NamedTuple):
    """What candidates may be good for.

    model: tells seconds and bytes that no layout undercuts; room: bytes that plans may need;
    most_s: seconds that are still of use, None where every plan that fits is wanted.
    """

    model: CostModel
    room: Room
    most_s: Callable[[], float] | None = None

    def fits(self, plans: Plans) -> BoolArray:
        """Which plans may fit in some layout."""
        return np.asarray(ROUNDING * self.model.least_bytes(plans) <= self.room.of(plans))


# A rule (None: a dominance rule), a plan that it refuses, and how many by group.
Refused = tuple[Rule | None, Plans, IntArray]


@dataclass(frozen=True)
class Cells:
    """Plans but for their layout: several of each row, beside each other.

    group, counts: of each row.  early: dominated ones are left out; rules: those that must see the
    layout; refused: what the others left out.  least_s: of each row, rising, where somebody asked.
    """

    plans: Plans
    group: IntArray
    counts: IntArray
    early: bool
    rules: tuple[Rule, ...]
    refused: tuple[Refused, ...]
    least_s: FloatArray

    def where(self, chosen: BoolArray) -> Cells:
        """The chosen cells."""
        row = np.repeat(np.arange(len(self.counts)), self.counts)
        counts = np.bincount(row[chosen], minlength=len(self.counts))
        return replace(self, plans=self.plans.take(chosen), counts=counts)

    def by_promise(self, model: CostModel) -> Cells:
        """One row for each cell, in the order of their least step time."""
        least_s = ROUNDING * model.least_s(self.plans) if len(self.plans.tp) else np.zeros(0)
        order = np.argsort(least_s, kind="stable")
        group = np.repeat(self.group, self.counts)[order]
        return replace(
            self, plans=self.plans.take(order), group=group, counts=np.ones_like(group),
            least_s=least_s[order],
        )  # fmt: skip
