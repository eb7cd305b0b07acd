"""How many kinds of parallelism a plan has, and the fastest plans with few of them."""

from __future__ import annotations

import numpy as np

from cost_models.estimate import Estimates
from cost_models.plans import IntArray, ParallelPlan, Plans, code

# Plans that may be recommended: so little slower than the fastest, and so full at most.
MOST_SLOWER = 0.02
MOST_FULL = 0.95
COMMON = tuple(code("schedule", name) for name in ("1f1b", "interleaved-1f1b"))


def kinds(plans: Plans) -> IntArray:
    """What there is to set up and to debug, each counted once; shape (plans,)."""
    uneven = (plans.first_stage_layers > 0) | (plans.last_stage_layers > 0)
    each = (
        plans.tp > 1,
        plans.cp > 1,
        plans.pp > 1,
        plans.vpp > 1,
        plans.ep > 1,
        plans.zero_stage >= 2,
        plans.recompute > 0,
        uneven | (plans.stage_layers > 0),
        ~np.isin(plans.schedule, COMMON),
    )
    return np.broadcast_to(sum(np.asarray(one, dtype=np.int64) for one in each), (len(plans),))


class Simplest:
    """The fastest plan of each number of kinds, seen chunk by chunk."""

    def __init__(self, most_bytes: float) -> None:
        self._most_bytes = most_bytes
        self._best: dict[int, tuple[float, ParallelPlan]] = {}
        self._fastest_s = np.inf

    def offer(self, plans: Plans, estimates: Estimates) -> None:
        """Take note of plans that fit."""
        seconds = estimates.iteration_time_s
        self._fastest_s = min(self._fastest_s, float(seconds.min()))
        close = seconds <= self._fastest_s * (1.0 + MOST_SLOWER)
        rows = np.flatnonzero(close & (estimates.peak_bytes <= self._most_bytes))
        if not len(rows):
            return
        counts = kinds(plans.take(rows))
        for count in np.unique(counts).tolist():
            own = rows[np.broadcast_to(counts == count, rows.shape)]
            row = int(own[np.argmin(seconds[own])])
            found = float(seconds[row]), plans.row(row)
            self._best[count] = min(self._best.get(count, found), found, key=lambda one: one[0])

    def plans(self) -> list[ParallelPlan]:
        """Those near the fastest, the simplest first."""
        bound = self._fastest_s * (1.0 + MOST_SLOWER)
        return [plan for _, (seconds, plan) in sorted(self._best.items()) if seconds <= bound]
