"""The results of a search: the best plans, the Pareto front, and the nearest miss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cost_models.estimate import Estimates
from cost_models.plans import FloatArray, IntArray, ParallelPlan, Plans, joined
from planner.documents.answer import Counts

_PARETO_LIMIT = 200
# The best plans, whose layers are repartitioned by their own times.
SHORT_LIST = 32
# The first of them get a chance to be the fastest.
CONTENDERS = 10

Score = Callable[[Plans, Estimates], FloatArray]


@dataclass(frozen=True)
class Priced:
    """A plan and the seconds of its iteration by part."""

    plan: ParallelPlan
    parts_s: dict[str, float]

    @property
    def iteration_time_s(self) -> float:
        return sum(self.parts_s.values())


@dataclass
class Outcome:
    """The results of a search: the best plans, the front, the nearest miss, and the counts.

    score: of the best plan; lower is better.  contenders: the first CONTENDERS plans, even if fewer
    were requested.  simple: plans with few kinds of parallelism that are almost as fast, the
    simplest first.  rival: the fastest plan of other degrees.
    """

    best: list[ParallelPlan] = field(default_factory=list)
    score: float = np.inf
    contenders: list[Priced] = field(default_factory=list)
    simple: list[ParallelPlan] = field(default_factory=list)
    rival: ParallelPlan | None = None
    pareto: list[ParallelPlan] = field(default_factory=list)
    nearest: list[ParallelPlan] = field(default_factory=list)
    counts: Counts | None = None
    search_time_s: float = 0.0


@dataclass(frozen=True)
class _Entry:
    """A row of plans and of the seconds of their parts."""

    plans: Plans
    row: int
    parts_s: dict[str, FloatArray]

    @property
    def plan(self) -> ParallelPlan:
        return self.plans.row(self.row)

    @property
    def priced(self) -> Priced:
        return Priced(self.plan, {name: float(s[self.row]) for name, s in self.parts_s.items()})


class Keeper:
    """The best rows seen so far, the running Pareto front and the nearest miss."""

    def __init__(self, score: Score, top_k: int) -> None:
        self._score, self._top_k = score, top_k
        self._max_kept = max(top_k, SHORT_LIST)
        self._best: list[tuple[tuple[float, ...], _Entry]] = []
        self._front: list[tuple[float, float, ParallelPlan]] = []
        self._miss: tuple[float, ParallelPlan] | None = None

    def best(self) -> dict[str, Any] | None:
        """The best plan so far, its time and its memory."""
        if not self._best:
            return None
        (_, seconds, peak, *_), first = self._best[0]
        return {
            "plan": first.plan.model_dump(mode="json"),
            "iteration_time_s": seconds,
            "peak_bytes": peak,
        }

    @property
    def score(self) -> float:
        """The score of the best plan so far."""
        return self._best[0][0][0] if self._best else np.inf

    def bound(self) -> float:
        """The score that none of the best exceeds."""
        return self._best[-1][0][0] if len(self._best) == self._max_kept else np.inf

    def offer(self, plans: Plans, estimates: Estimates) -> None:
        """Plans that fit."""
        self.offer_best(plans, estimates, np.arange(len(plans)))
        self._extend_front(plans, estimates)

    def offer_best(self, plans: Plans, estimates: Estimates, rows: IntArray) -> None:
        """The plans of these rows, which fit, without those for the front."""
        scores = self._score(plans, estimates)
        bound = self.bound()
        if len(rows) > self._max_kept:
            lowest = np.partition(scores[rows], self._max_kept - 1)
            bound = min(bound, float(lowest[self._max_kept - 1]))
        close = rows[scores[rows] <= bound]
        if not len(close):
            return
        # Ties are broken by time, memory and fields.
        ranked = (scores, estimates.iteration_time_s, estimates.peak_bytes)
        keys = np.stack([column[close] for column in ranked])
        few = plans.take(close)
        # What all of them have alike breaks no tie.
        columns = [column for _, column in few.columns() if column.ndim]
        order = np.lexsort((*columns[::-1], *keys[::-1]))[: self._max_kept]
        close, keys, few = close[order], keys[:, order], few.take(order)
        count = len(order)
        fields = (c.tolist() if c.ndim else [int(c)] * count for _, c in few.columns())
        parts_s = {name: column[close] for name, column in estimates.time_parts_s.items()}
        self._best += [
            ((*key, *field_key), _Entry(few, i, parts_s))
            for i, (key, field_key) in enumerate(
                zip(keys.T.tolist(), zip(*fields, strict=True), strict=True)
            )
        ]
        self._best.sort(key=lambda pair: pair[0])
        del self._best[self._max_kept :]

    def _extend_front(self, plans: Plans, estimates: Estimates) -> None:
        """Merge the plans that no other plan beats in both time and peak memory."""
        seconds, peaks = estimates.iteration_time_s, estimates.peak_bytes
        order = np.lexsort((peaks, seconds))
        running = np.minimum.accumulate(peaks[order])
        first = np.r_[True, running[1:] < running[:-1]]
        candidates = order[first]
        fresh = [(float(seconds[i]), float(peaks[i]), int(i)) for i in candidates]
        beaten_by = [(t, p) for t, p, _ in self._front]
        rows = [
            (t, p, plans.row(i))
            for t, p, i in fresh
            if not any(bt <= t and bp <= p for bt, bp in beaten_by)
        ]
        merged = sorted(self._front + rows, key=lambda r: (r[0], r[1]))
        front: list[tuple[float, float, ParallelPlan]] = []
        for row in merged:
            if not front or row[1] < front[-1][1]:
                front.append(row)
        self._front = front

    def keep_nearest(self, plans: Plans, needed: FloatArray) -> None:
        """Remember the plan that needs the least memory, in case nothing fits."""
        if self._best:
            return
        i = int(np.argmin(needed))
        if self._miss is None or needed[i] < self._miss[0]:
            self._miss = (float(needed[i]), plans.row(i))

    def short_list(self) -> tuple[Plans, FloatArray]:
        """The best plans and their seconds; if none fits, the nearest miss and infinity."""
        best = self._best[:SHORT_LIST]
        if not best:
            misses = [] if self._miss is None else [self._miss[1]]
            return Plans.from_rows(misses), np.full(len(misses), np.inf)
        batches: dict[int, list[int]] = {}
        for rank, (_, entry) in enumerate(best):
            batches.setdefault(id(entry.plans), []).append(rank)
        rows = [
            best[ranks[0]][1].plans.take(np.array([best[rank][1].row for rank in ranks]))
            for ranks in batches.values()
        ]
        order = np.argsort([rank for ranks in batches.values() for rank in ranks])
        return joined(rows).take(order), np.array([key[1] for key, _ in best])

    def first(self) -> Outcome:
        """The best plan and its score alone."""
        return Outcome(best=[row.plan for _, row in self._best[:1]], score=self.score)

    def outcome(self) -> Outcome:
        """The outcome without the counts, which the search adds."""
        front = [row for _, _, row in self._front]
        step = max(1, -(-len(front) // _PARETO_LIMIT))
        return Outcome(
            best=[row.plan for _, row in self._best[: self._top_k]],
            score=self.score,
            contenders=[row.priced for _, row in self._best[:CONTENDERS]],
            pareto=front[::step],
            nearest=[] if self._best or self._miss is None else [self._miss[1]],
        )
