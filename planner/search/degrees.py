"""The best plan that a search saw, and the best that splits the work otherwise."""

from __future__ import annotations

import numpy as np

from cost_models.estimate import Estimates
from cost_models.plans import ParallelPlan, Plans

# Kinds of parallelism, and what a person writes before a degree.
DEGREES = {"tp": "TP ", "cp": "CP ", "pp": "PP ", "ep": "EP ", "zero_stage": "ZeRO-"}


def differing(one: ParallelPlan, other: ParallelPlan) -> list[str]:
    """The degrees that two plans do not share."""
    return [name for name in DEGREES if getattr(one, name) != getattr(other, name)]


class Rivals:
    """The fastest plan and the fastest of other degrees, seen chunk by chunk.

    Each chunk's two are enough: the best of other degrees than the fastest of all is the fastest
    of its chunk, or has other degrees than that.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[float, ParallelPlan]] = []

    def offer(self, plans: Plans, estimates: Estimates) -> None:
        """Take note of plans that fit; there is one at least."""
        seconds = estimates.iteration_time_s
        first = int(np.argmin(seconds))
        columns = [np.broadcast_to(getattr(plans, name), seconds.shape) for name in DEGREES]
        alike = np.logical_and.reduce([column == column[first] for column in columns])
        other = int(np.argmin(np.where(alike, np.inf, seconds)))
        found = [(float(seconds[row]), plans.row(row)) for row in {first, other}]
        ranked = sorted((*self._kept, *found), key=lambda one: one[0])
        rival = next((one for one in ranked if differing(ranked[0][1], one[1])), None)
        self._kept = [ranked[0], rival] if rival and np.isfinite(rival[0]) else ranked[:1]

    def of(self, best: ParallelPlan) -> ParallelPlan | None:
        """The fastest plan of other degrees than a given one's."""
        return next((plan for _, plan in self._kept if differing(plan, best)), None)
