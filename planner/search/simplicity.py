"""The complexity of a plan (its kinds of parallelism), and the fastest plans of each complexity."""

from __future__ import annotations

import numpy as np

from cost_models.estimate import Estimates
from cost_models.plans import IntArray, ParallelPlan, Plans, code
from planner.constraints import BoolArray

# Limits of plans that may be recommended: slower than the fastest by this, full to this share.
MOST_SLOWER = 0.02
MOST_FULL = 0.95
COMMON = tuple(code("schedule", name) for name in ("1f1b", "interleaved-1f1b"))


# Of 162 published runs with expert parallelism, 160 have at most this degree.
MOST_USUAL_EP = 64
# Of 167 published interleaved runs, 163 have at most this many chunks on a rank.
MOST_USUAL_VPP = 12
UNUSUAL_EP = f"EP over more than {MOST_USUAL_EP} ranks"


def steps(plans: Plans) -> dict[str, BoolArray]:
    """The features of plans that somebody must set up and debug, by name: which plans have them."""
    uneven = (plans.first_stage_layers > 0) | (plans.last_stage_layers > 0)
    return {
        "TP": plans.tp > 1,
        "CP": plans.cp > 1,
        "PP": plans.pp > 1,
        "VPP": plans.vpp > 1,
        f"more than {MOST_USUAL_VPP} chunks": plans.vpp > MOST_USUAL_VPP,
        "EP": plans.ep > 1,
        UNUSUAL_EP: plans.ep > MOST_USUAL_EP,
        "ZeRO-2 or 3": plans.zero_stage >= 2,
        "recompute": plans.recompute > 0,
        "uneven stages": uneven | (plans.stage_layers > 0),
        "a rare schedule": ~np.isin(plans.schedule, COMMON),
    }


def kinds(plans: Plans) -> IntArray:
    """The number of these features; an unusual EP outweighs all others.  Shape (plans,)."""
    found = steps(plans)
    each = (np.asarray(one, dtype=np.int64) for one in found.values())
    return np.broadcast_to(sum(each) + len(found) * found[UNUSUAL_EP], (len(plans),))


class Simplest:
    """The fastest plan of each complexity, over chunks of plans."""

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
        """The plans within MOST_SLOWER of the fastest, the simplest first."""
        bound = self._fastest_s * (1.0 + MOST_SLOWER)
        return [plan for _, (seconds, plan) in sorted(self._best.items()) if seconds <= bound]
