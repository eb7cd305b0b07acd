"""The best plan that a search saw, and the best one with other degrees of parallelism."""

from __future__ import annotations

import numpy as np

from cost_models.estimate import Estimates
from cost_models.plans import ParallelPlan, Plans

# Kinds of parallelism, and the text that stands before a degree.
DEGREES = {"tp": "TP ", "cp": "CP ", "pp": "PP ", "ep": "EP ", "zero_stage": "ZeRO-"}


def differing(plan: ParallelPlan, other: ParallelPlan) -> list[str]:
    """The names of the degrees in which two plans differ."""
    return [name for name in DEGREES if getattr(plan, name) != getattr(other, name)]


class Rivals:
    """The fastest plan and the fastest plan with other degrees, over chunks of plans.

    Two plans of each chunk are enough: the rival of the fastest plan of all is either the fastest
    of its chunk, or differs in degrees from the fastest of its chunk.
    """

    def __init__(self) -> None:
        self._best: list[tuple[float, ParallelPlan]] = []

    def offer(self, plans: Plans, estimates: Estimates) -> None:
        """Take note of plans that fit; there is one at least."""
        seconds = estimates.iteration_time_s
        first = int(np.argmin(seconds))
        columns = [np.broadcast_to(getattr(plans, name), seconds.shape) for name in DEGREES]
        same_degrees = np.logical_and.reduce([column == column[first] for column in columns])
        other = int(np.argmin(np.where(same_degrees, np.inf, seconds)))
        candidates = [(float(seconds[row]), plans.row(row)) for row in {first, other}]
        ranked = sorted((*self._best, *candidates), key=lambda pair: pair[0])
        rival = next((pair for pair in ranked if differing(ranked[0][1], pair[1])), None)
        self._best = [ranked[0], rival] if rival and np.isfinite(rival[0]) else ranked[:1]

    def of(self, best: ParallelPlan) -> ParallelPlan | None:
        """The fastest plan of other degrees than a given one's."""
        return next((plan for _, plan in self._best if differing(plan, best)), None)
