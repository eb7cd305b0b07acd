"""Exhaustive search: price every undominated legal plan in chunks, keep the best.

The answer is the best of the model, not of a heuristic.  Order: the objective, then time, then
peak memory, then the plan's fields in their order, smaller first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.estimate import CostModel, Estimates
from cost_models.plans import FIELDS, ParallelPlan, Plans
from cost_models.profiles import EfficiencyProfile
from planner.documents.answer import Counts
from planner.documents.request import PlanRequest
from planner.progress import current, step
from planner.search.axes import SpaceTooLarge
from planner.search.constraints import Rule
from planner.search.dealt_plans import dealt_plans
from planner.search.degrees import Rivals
from planner.search.fewest_layers import with_fewest_layers
from planner.search.simplicity import MOST_FULL, Simplest
from planner.search.space import Reach, Space
from planner.search.stage_recompute import with_own_counts
from planner.sites import kept as sites
from planner.sites import pricing
from planner.uncertainty.memory_risk import Room, room_of

__all__ = ["Outcome", "SpaceTooLarge", "changed_fields", "cost_model", "search"]

FloatArray = NDArray[np.float64]
# Rows priced at a time: enough to hide the cost of a NumPy call, few enough to bound memory.
CHUNK = 1 << 17
_PARETO_LIMIT = 200
# The best plans, whose layers are dealt out by their own times.
SHORT_LIST = 32
# Of them those whose chance to be the true best is told.
CONTENDERS = 10
# Stages of their own are worth a plan that takes so much of the best one's time: closed forms of
# the pipeline are not better than that.
FASTER = 0.995

Score = Callable[[Plans, Estimates], FloatArray]
Visit = Callable[[Plans, Estimates], None]


@dataclass(frozen=True)
class Priced:
    """A plan and the seconds of its iteration by part."""

    plan: ParallelPlan
    parts_s: dict[str, float]


@dataclass
class Outcome:
    """What a search keeps: the best rows, the front, the nearest miss, and the counts.

    score: of the first, the lower the better.  contenders: the first CONTENDERS, however many were
    asked for.  simple: those of few kinds of parallelism that are nearly as fast, the simplest
    first.  rival: the fastest of other degrees.
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


def cost_model(request: PlanRequest, profile: EfficiencyProfile | None = None) -> CostModel:
    """The cost model a request asks for; profile: instead of its own."""
    return pricing.cost_model(request, sites.named(request.site), profile)


def objective(request: PlanRequest) -> Score:
    """What the search minimises."""
    if request.search.objective == "memory_headroom":
        return lambda plans, estimates: estimates.peak_bytes
    # With one cluster and price the cheapest iteration is the fastest.
    return lambda plans, estimates: estimates.iteration_time_s


def search(
    request: PlanRequest,
    rules: Iterable[Rule] = (),
    score: Score | None = None,
    top_k: int | None = None,
    full: bool = False,
    own: ParallelPlan | None = None,
    visit: Visit | None = None,
    visit_misses: Visit | None = None,
    best_only: bool = False,
) -> Outcome:
    """The top_k feasible plans of the request's space by `score`, lowest first.

    full: price the whole space without dominance rules (slow; for tests).  own: a plan around
    which the space is widened (see Axes).  visit, visit_misses: are shown every plan that fits,
    and that does not.  best_only: plans that cannot be among the best are left out of all that
    the outcome says beside them, where any fits.
    """
    began = time.perf_counter()
    asked = request, rules, score, top_k, full, own, visit, visit_misses
    outcome = None
    if not full and visit_misses is None:
        outcome = _searched(*asked, best_only, bounded=True)
    outcome = outcome or _searched(*asked, best_only=False, bounded=False)
    assert outcome is not None
    outcome.search_time_s = time.perf_counter() - began
    return outcome


def _searched(
    request: PlanRequest,
    rules: Iterable[Rule],
    score: Score | None,
    top_k: int | None,
    full: bool,
    own: ParallelPlan | None,
    visit: Visit | None,
    visit_misses: Visit | None,
    best_only: bool,
    bounded: bool,
) -> Outcome | None:
    """See search.  bounded: plans that cannot fit are counted and not priced; None where nothing
    else fits either, so that the nearest of all is still to be told.
    """
    best_only &= request.search.objective != "memory_headroom" and request.site is None
    model = cost_model(request)
    space = Space(request, rules, full, own)
    capacity = min(group.accelerator.memory_bytes for group in request.cluster.groups)
    simplest = Simplest(MOST_FULL * capacity)
    rivals = Rivals()
    keep = _Keeper(score or objective(request), top_k or request.search.top_k)
    room = room_of(request)
    rejected: Counter[str] = Counter()
    table: tuple[tuple[int, ...], ...] = ()
    costed = feasible = fewer = 0
    cut_short = False

    reach = Reach(model, room, keep.bound if best_only else None)

    def price(plans: Plans, needed: FloatArray) -> None:
        """Times take longer to tell than memory, and most plans do not fit."""
        nonlocal costed, feasible
        fits = needed <= room.of(plans)
        costed += len(fits)
        count = int(np.count_nonzero(fits))
        feasible += count
        keep.miss(plans, needed)
        if count:
            fitting = plans if count == len(fits) else plans.take(fits)
            estimates = model.evaluate(fitting)
            space.seen(fitting, estimates.iteration_time_s)
            keep.offer(fitting, estimates)
            if not best_only:
                simplest.offer(fitting, estimates)
                rivals.offer(fitting, estimates)
            if visit is not None:
                visit(fitting, estimates)
        if visit_misses is not None and count < len(fits):
            misses = plans.take(~fits)
            visit_misses(misses, model.evaluate(misses))

    for drawn in space.chunks(CHUNK, reach if bounded else None):
        if len(drawn.tp):
            plans, needed, left_out = with_fewest_layers(drawn, model, space, room)
            fewer += left_out
            price(plans, needed)
        step(space.drawn, space.size, keep.best)
        if cut_short := current().enough():
            break
    nothing_fits = not (feasible or cut_short)
    if bounded and nothing_fits and space.hopeless and (costed or not best_only):
        return None
    if (
        not cut_short
        and score is None
        and request.search.objective != "memory_headroom"
        and space.deals
    ):
        dealt = _dealt(model, space, room, *keep.short_list())
        if dealt is not None:
            price(dealt, model.needed_bytes(dealt))
            table = dealt.stage_layers_table
    if "recompute_layers" in request.search.open:
        rows = list(with_own_counts(model, keep.short_list()[0], room))
        counted = space.legal(rows, table)
        if len(counted.tp):
            price(counted, model.needed_bytes(counted))
    if not best_only:
        costed += space.hopeless
    rejected.update(space.rejected)
    before = sum(rejected.values())
    rejected["memory"] = costed - feasible
    outcome = keep.outcome()
    outcome.simple = simplest.plans()
    outcome.rival = rivals.of(outcome.best[0]) if outcome.best else None
    outcome.counts = Counts(
        enumerated=before + space.dominated + fewer + costed,
        dominated=space.dominated + fewer,
        costed=costed,
        feasible=feasible,
        cut_short=cut_short,
        rejected={reason: n for reason, n in sorted(rejected.items()) if n},
        examples={reason: text for reason, text in sorted(space.examples.items()) if text},
    )
    return outcome


def _dealt(
    model: CostModel, space: Space, room: Room, rows: list[ParallelPlan], seconds: FloatArray
) -> Plans | None:
    """Plans of a short list with their layers dealt out by time, where that is worth it."""
    worth_s = FASTER * float(seconds.min(initial=np.inf))
    plans = space.legal([plan for _, plan in dealt_plans(model, rows, seconds, worth_s, room)])
    if not len(plans.tp):
        return None
    plans = plans.take(model.evaluate(plans).iteration_time_s < worth_s)
    return plans if len(plans.tp) else None


def best_of(model: CostModel, plans: Plans, score: Score) -> ParallelPlan:
    """The best of plans that all fit, by the order of a search."""
    keep = _Keeper(score, top_k=1)
    keep.offer(plans, model.evaluate(plans))
    return keep.outcome().best[0]


class _Keeper:
    """The best rows seen so far, the running Pareto front and the nearest miss."""

    def __init__(self, score: Score, top_k: int) -> None:
        self._score, self._top_k = score, top_k
        self._most = max(top_k, SHORT_LIST)
        self._best: list[tuple[tuple[float, ...], Priced]] = []
        self._front: list[tuple[float, float, ParallelPlan]] = []
        self._miss: tuple[float, ParallelPlan] | None = None

    def best(self) -> dict[str, Any] | None:
        """The best so far, its time and its memory."""
        if not self._best:
            return None
        (_, seconds, peak, *_), first = self._best[0]
        return {
            "plan": first.plan.model_dump(mode="json"),
            "iteration_time_s": seconds,
            "peak_bytes": peak,
        }

    def bound(self) -> float:
        """The score that none of the best exceeds."""
        return self._best[-1][0][0] if len(self._best) == self._most else np.inf

    def offer(self, plans: Plans, estimates: Estimates) -> None:
        """Plans that fit."""
        scores = self._score(plans, estimates)
        bound = self.bound()
        if len(scores) > self._most:
            bound = min(bound, float(np.partition(scores, self._most - 1)[self._most - 1]))
        close = np.flatnonzero(scores <= bound)
        # Equal scores are settled by time, memory and fields; only so many can survive.
        ranked = (scores, estimates.iteration_time_s, estimates.peak_bytes)
        close = close[np.lexsort(tuple(column[close] for column in reversed(ranked)))]
        if len(close) > 4 * self._most:
            columns = [np.broadcast_to(c, (len(plans),)) for _, c in plans.columns()]
            order = np.lexsort(
                tuple(column[close] for column in (*reversed(columns), *reversed(ranked)))
            )
            close = close[order[: self._most]]
        for i in close.tolist():
            key = tuple(float(column[i]) for column in ranked)
            parts = {name: float(column[i]) for name, column in estimates.time_parts_s.items()}
            self._best.append(((*key, *_field_key(plans, i)), Priced(plans.row(i), parts)))
        self._best.sort(key=lambda pair: pair[0])
        del self._best[self._most :]
        self._extend_front(plans, estimates)

    def _extend_front(self, plans: Plans, estimates: Estimates) -> None:
        """Merge the plans that no other beats in both time and peak memory."""
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

    def miss(self, plans: Plans, needed: FloatArray) -> None:
        """Remember the plan that needs the least memory, in case nothing fits."""
        if self._best:
            return
        i = int(np.argmin(needed))
        if self._miss is None or needed[i] < self._miss[0]:
            self._miss = (float(needed[i]), plans.row(i))

    def short_list(self) -> tuple[list[ParallelPlan], FloatArray]:
        """The best plans and their seconds; where none fits, the nearest miss and infinity."""
        best = self._best[:SHORT_LIST]
        if best or self._miss is None:
            return [row.plan for _, row in best], np.array([key[1] for key, _ in best])
        return [self._miss[1]], np.array([np.inf])

    def outcome(self) -> Outcome:
        front = [row for _, _, row in self._front]
        step = max(1, -(-len(front) // _PARETO_LIMIT))
        return Outcome(
            best=[row.plan for _, row in self._best[: self._top_k]],
            score=self._best[0][0][0] if self._best else np.inf,
            contenders=[row for _, row in self._best[:CONTENDERS]],
            pareto=front[::step],
            nearest=[] if self._best or self._miss is None else [self._miss[1]],
        )


def _field_key(plans: Plans, i: int) -> tuple[float, ...]:
    """Plan i's fields as numbers, in their order."""
    return tuple(float(c if c.ndim == 0 else c[i]) for _, c in plans.columns())


# Fields that make one choice together: changing any of them is one change.
CHOICES: tuple[tuple[str, ...], ...] = (
    (
        "recompute",
        "recompute_modules",
        "recompute_num_layers",
        "recompute_method",
        "recompute_layers",
    ),
    ("schedule", "vpp"),
    ("first_stage_layers", "last_stage_layers", "stage_layers"),
    ("zero_stage", "reshard_after_forward"),
)


def changed_fields(plan: ParallelPlan) -> Score:
    """Score by how many choices differ from a plan (dp aside, it follows), then by time.

    Times are squeezed into [0, 1), so a faster plan never outweighs a smaller change.
    """
    row = Plans.from_rows([plan])
    grouped = {name for choice in CHOICES for name in choice}
    singles = tuple((name,) for name in FIELDS if name not in grouped and name != "dp")

    def score(plans: Plans, estimates: Estimates) -> FloatArray:
        changed: FloatArray = np.zeros(len(plans))
        for choice in (*CHOICES, *singles):
            differs: NDArray[np.bool_] = np.zeros((), dtype=np.bool_)
            for name in choice:
                if name in ("stage_layers", "recompute_layers"):
                    table = ((), *plans.stage_layers_table)
                    same = np.array([split == getattr(plan, name) for split in table])
                    differs = differs | ~same[getattr(plans, name)]
                else:
                    differs = differs | (getattr(plans, name) != getattr(row, name)[0])
            changed = changed + differs
        seconds = estimates.iteration_time_s
        return changed + seconds / (1.0 + seconds)

    return score
