"""The complexity of a plan (its kinds of parallelism), and the fastest plans of each complexity."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

from cost_models.estimate import Estimates
from cost_models.plans import IntArray, ParallelPlan, Plans, code
from planner.constraints import BoolArray
from planner.evidence.uncertainty.record import Pairs

# Limits of plans that may be recommended: slower than the fastest by this, full to this share.
MOST_SLOWER = 0.02
MOST_FULL = 0.95
COMMON = tuple(code("schedule", name) for name in ("1f1b", "interleaved-1f1b"))


# Of 162 published runs with expert parallelism, 160 have at most this degree.
MAX_USUAL_EP = 64
# Of 167 published interleaved runs, 163 have at most this many chunks on a rank.
MAX_USUAL_VPP = 12
UNUSUAL_EP = f"EP over more than {MAX_USUAL_EP} ranks"


def steps(plans: Plans) -> dict[str, BoolArray]:
    """The features of plans that somebody must set up and debug, by name: which plans have them."""
    uneven = (plans.first_stage_layers > 0) | (plans.last_stage_layers > 0)
    return {
        "TP": plans.tp > 1,
        "CP": plans.cp > 1,
        "PP": plans.pp > 1,
        "VPP": plans.vpp > 1,
        f"more than {MAX_USUAL_VPP} chunks": plans.vpp > MAX_USUAL_VPP,
        "EP": plans.ep > 1,
        UNUSUAL_EP: plans.ep > MAX_USUAL_EP,
        "ZeRO-2 or 3": plans.zero_stage >= 2,
        "recompute": plans.recompute > 0,
        "uneven stages": uneven | (plans.stage_layers > 0),
        "a rare schedule": ~np.isin(plans.schedule, COMMON),
    }


def kinds(plans: Plans) -> IntArray:
    """The number of these features; an unusual EP outweighs all others.  Shape (plans,)."""
    by_step = steps(plans)
    each = (np.asarray(mask, dtype=np.int64) for mask in by_step.values())
    return np.broadcast_to(sum(each) + len(by_step) * by_step[UNUSUAL_EP], (len(plans),))


def used(plan: ParallelPlan) -> list[str]:
    """The features of one plan."""
    return [name for name, needed in steps(Plans.of(plan)).items() if needed]


def unproven_features(plan: ParallelPlan, seen: Pairs) -> tuple[str, ...]:
    """The first one or two features of a plan that no published run has together; () for none."""
    pairs = combinations_with_replacement(used(plan), 2)
    return next((tuple(dict.fromkeys(pair)) for pair in pairs if frozenset(pair) not in seen), ())


class Simplest:
    """The fastest plan of each complexity, over chunks of plans, of those that runs have shown.

    seen: the features of plans that published runs have together.
    """

    def __init__(self, most_bytes: float, seen: Pairs) -> None:
        self._most_bytes = most_bytes
        pairs = combinations_with_replacement(steps(Plans.of(ParallelPlan())), 2)
        self._unseen = [pair for pair in pairs if frozenset(pair) not in seen]
        self._best: dict[int, tuple[float, ParallelPlan]] = {}
        self._fastest_s = self._shown_s = np.inf
        self._shown: ParallelPlan | None = None

    def offer(self, plans: Plans, estimates: Estimates) -> None:
        """Take note of plans that fit."""
        seconds = estimates.iteration_time_s
        self._fastest_s = min(self._fastest_s, float(seconds.min()))
        close = seconds <= self._fastest_s * (1.0 + MOST_SLOWER)
        roomy = estimates.peak_bytes <= self._most_bytes
        rows = np.flatnonzero((close | (seconds < self._shown_s)) & roomy)
        if len(rows):
            rows = rows[self._are_published(plans.take(rows))]
        if not len(rows):
            return
        first = int(rows[np.argmin(seconds[rows])])
        if seconds[first] < self._shown_s:
            self._shown_s, self._shown = float(seconds[first]), plans.row(first)
        rows = rows[close[rows]]
        counts = kinds(plans.take(rows))
        for count in np.unique(counts).tolist():
            kind = rows[np.broadcast_to(counts == count, rows.shape)]
            row = int(kind[np.argmin(seconds[kind])])
            best = float(seconds[row]), plans.row(row)
            self._best[count] = min(self._best.get(count, best), best, key=lambda pair: pair[0])

    def _are_published(self, plans: Plans) -> BoolArray:
        """Whether published runs have each two features of a plan together."""
        by_step = steps(plans)
        shown = np.ones(len(plans), dtype=bool)
        for step, other in self._unseen:
            shown &= ~(by_step[step] & by_step[other])
        return shown

    def plans(self) -> list[ParallelPlan]:
        """The plans within MOST_SLOWER of the fastest, the simplest first; else the fastest."""
        bound = self._fastest_s * (1.0 + MOST_SLOWER)
        near = [plan for _, (seconds, plan) in sorted(self._best.items()) if seconds <= bound]
        return near or ([self._shown] if self._shown is not None else [])
