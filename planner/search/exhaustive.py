"""Exhaustive search: price every undominated legal plan in chunks, keep the best.

The answer is the best of the model, not of a heuristic.  Order: the objective, then time, then
peak memory, then the plan's fields in their order, smaller first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from cost_models.estimate import CostModel, Estimates
from cost_models.plans import FloatArray, ParallelPlan, Plans, joined
from cost_models.profiles import EfficiencyProfile
from planner.constraints import Rule
from planner.documents.answer import Counts
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_pricing as pricing
from planner.evidence.uncertainty import site_storage as sites
from planner.evidence.uncertainty.memory_risk import Room
from planner.evidence.uncertainty.record import seen_together
from planner.evidence.uncertainty.site_storage import room_of
from planner.progress import current, step
from planner.search.axes import SpaceTooLarge
from planner.search.best_other_degrees import Rivals
from planner.search.drawn import Drawn
from planner.search.fewest_layers import with_fewest_layers
from planner.search.outcome import Keeper, Outcome, Score
from planner.search.partial_plans import Memory
from planner.search.repartitioned_plans import ShortList, repartitioned_plans
from planner.search.simplicity import MOST_FULL, Simplest
from planner.search.space import Space
from planner.search.stage_recompute import with_own_counts

__all__ = ["SpaceTooLarge", "cost_model", "search"]

# Rows priced at a time: enough to hide the cost of a NumPy call, few enough to bound memory.
CHUNK = 1 << 17
# The same where the first plan that fits ends the search.
FEW = 1 << 12
# Stages of their own are worth a plan that takes so much of the best one's time: closed forms of
# the pipeline are not better than that.
FASTER = 0.995

Visit = Callable[[Plans, Estimates], None]


def cost_model(request: PlanRequest, profile: EfficiencyProfile | None = None) -> CostModel:
    """The cost model a request asks for; profile: instead of its own."""
    return pricing.cost_model(request, sites.site_of_request(request.site), profile)


def objective(request: PlanRequest) -> Score:
    """What the search minimises."""
    if request.search.objective == "memory_headroom":
        return lambda plans, estimates: estimates.peak_bytes
    # With one cluster and price the cheapest iteration is the fastest.
    return lambda plans, estimates: estimates.iteration_time_s


@dataclass(frozen=True)
class _Question:
    """What is searched for; see search."""

    request: PlanRequest
    rules: Iterable[Rule]
    score: Score | None
    top_k: int | None
    full: bool
    own: ParallelPlan | None
    visit: Visit | None
    visit_misses: Visit | None

    @property
    def by_time(self) -> bool:
        """Whether the fastest plan is the best one."""
        return self.score is None and self.request.search.objective != "memory_headroom"


def search(
    request: PlanRequest,
    rules: Iterable[Rule] = (),
    score: Score | None = None,
    top_k: int | None = None,
    full: bool = False,
    own: ParallelPlan | None = None,
    visit: Visit | None = None,
    visit_misses: Visit | None = None,
) -> Outcome:
    """The top_k feasible plans of the request's space by `score`, lowest first.

    full: price the whole space without dominance rules (slow; for tests).  own: a plan around
    which the space is widened (see Axes).  visit, visit_misses: are shown every plan that fits,
    and that does not.
    """
    began = time.perf_counter()
    question = _Question(request, tuple(rules), score, top_k, full, own, visit, visit_misses)
    outcome = None
    if not full and visit_misses is None:
        outcome = _Pass(question, bounded=True).outcome()
    outcome = outcome or _Pass(question, bounded=False).outcome()
    assert outcome is not None
    outcome.search_time_s = time.perf_counter() - began
    return outcome


class _Pass:
    """One pass over the space of a question.

    bounded: plans that cannot fit are counted and not priced.
    """

    def __init__(self, question: _Question, bounded: bool) -> None:
        request = question.request
        self._question, self._bounded = question, bounded
        self._model, self._room = cost_model(request), room_of(request)
        self._space = Space(request, question.rules, question.full, question.own)
        capacity = min(group.accelerator.memory_bytes for group in request.cluster.groups)
        chip, experts = request.cluster.groups[0].accelerator, request.model.moe is not None
        self._simplest = Simplest(MOST_FULL * capacity, seen_together(chip, experts))
        self._rivals = Rivals()
        score = question.score or objective(request)
        self._keep = Keeper(score, question.top_k or request.search.top_k)
        self._costed = self._feasible = 0

    def outcome(self) -> Outcome | None:
        """The outcome of this pass; None where nothing fits and some plans were not priced.

        The nearest miss may be among those, so a pass without bounds must find it.
        """
        space, question = self._space, self._question
        dominated, cut_short = self._price_space()
        if self._bounded and space.hopeless and not (self._feasible or cut_short):
            return None
        table: tuple[tuple[int, ...], ...] = ()
        if not cut_short and question.by_time and space.free_partition:
            (better,) = repartitioned(self._model, self._room, [(space, self._keep, np.inf)])
            if better is not None:
                table = better.stage_layers_table
                self._price(better, self._model.needed_bytes(better))
        if "recompute_layers" in question.request.search.open:
            counted = own_counts(self._model, space, self._room, self._keep, table)
            if len(counted.tp):
                self._price(counted, self._model.needed_bytes(counted))
        outcome = self._keep.outcome()
        outcome.simple = self._simplest.plans()
        outcome.rival = self._rivals.of(outcome.best[0]) if outcome.best else None
        costed = self._costed + space.hopeless
        dominated += space.dominated
        outcome.counts = counts(space, dominated, costed, self._feasible, cut_short)
        return outcome

    def _price_space(self) -> tuple[int, bool]:
        """Price all candidates; how many layer counts are dominated, and whether time ran out."""
        space, model = self._space, self._model
        memory = Memory(model, self._room) if self._bounded else None
        dominated = 0
        for plans in space.chunks(CHUNK, memory):
            if len(plans.tp):
                drawn, needed, left_out = with_fewest_layers(
                    Drawn.of([(space, plans)]), model, self._room
                )
                dominated += left_out
                self._price(drawn.plans, needed)
            step(space.drawn, space.size, self._keep.best)
            if current().enough():
                return dominated, True
        return dominated, False

    def _price(self, plans: Plans, needed: FloatArray) -> None:
        """Price plans: memory of all, time only of those that fit, since it takes longer."""
        fits = needed <= self._room.of(plans)
        count = int(np.count_nonzero(fits))
        self._costed += len(fits)
        self._feasible += count
        self._keep.keep_nearest(plans, needed)
        if count:
            fitting = plans if count == len(fits) else plans.take(fits)
            estimates = self._model.evaluate(fitting)
            self._space.seen(fitting, estimates.iteration_time_s)
            self._keep.offer(fitting, estimates)
            self._simplest.offer(fitting, estimates)
            self._rivals.offer(fitting, estimates)
            if self._question.visit is not None:
                self._question.visit(fitting, estimates)
        if self._question.visit_misses is not None and count < len(fits):
            misses = plans.take(~fits)
            self._question.visit_misses(misses, self._model.evaluate(misses))


def counts(space: Space, dominated: int, costed: int, feasible: int, cut_short: bool) -> Counts:
    """How many plans of a space there are, and what became of them."""
    refused = space.rejected
    rejected = {**refused, "memory": costed - feasible}
    return Counts(
        enumerated=refused.total() + dominated + costed,
        dominated=dominated,
        costed=costed,
        feasible=feasible,
        cut_short=cut_short,
        rejected={reason: n for reason, n in sorted(rejected.items()) if n},
        examples={reason: text for reason, text in sorted(space.examples.items()) if text},
    )


def repartitioned(
    model: CostModel, room: Room, each: Sequence[tuple[Space, Keeper, float]]
) -> list[Plans | None]:
    """Plans of each short list with their layers repartitioned by time, where that is faster.

    each: the space, its short list, and the time above which no plan is of interest.
    """
    short = []
    for _, keep, most_s in each:
        plans, seconds = keep.short_list()
        worth_s = min(FASTER * float(seconds.min(initial=np.inf)), most_s)
        short.append(ShortList(plans, seconds, worth_s))
    by_search = [
        space.legal(others)
        for (space, *_), others in zip(each, repartitioned_plans(model, short, room), strict=True)
    ]
    nonempty = [plans for plans in by_search if len(plans.tp)]
    if not nonempty:
        return [None] * len(by_search)
    ends = list(accumulate(len(plans) for plans in nonempty))[:-1]
    every = iter(np.split(model.evaluate(joined(nonempty)).iteration_time_s, ends))
    faster = [
        plans.take(next(every) < short_list.worth_s) if len(plans.tp) else plans
        for plans, short_list in zip(by_search, short, strict=True)
    ]
    return [plans if len(plans.tp) else None for plans in faster]


def own_counts(
    model: CostModel, space: Space, room: Room, keep: Keeper, table: tuple[tuple[int, ...], ...]
) -> Plans:
    """Plans of the short list with as many recomputed layers on each stage as its memory asks."""
    plans, _ = keep.short_list()
    rows = [plans.row(row) for row in range(len(plans))]
    return space.legal(list(with_own_counts(model, rows, room)), table)


def fits(request: PlanRequest, rules: Iterable[Rule] = ()) -> bool | None:
    """Whether `search` finds a plan that fits, told at the first one; None: only it can tell."""
    model, room, space = cost_model(request), room_of(request), Space(request, rules)
    keep = Keeper(objective(request), top_k=1)
    for plans in space.chunks(FEW, Memory(model, room)):
        if len(plans.tp):
            needed = model.needed_bytes(plans)
            if np.any(needed <= room.of(plans)):
                return True
            keep.keep_nearest(plans, needed)
        step(0, 1)
    if "recompute_layers" in request.search.open:
        return None
    # A search tries other partitions of the plan that needs the least memory.
    other = repartitioned(model, room, [(space, keep, np.inf)])[0] if space.free_partition else None
    tight = other is None or np.all(model.needed_bytes(other) > room.of(other))
    return False if tight else None


def best_of(model: CostModel, plans: Plans, score: Score) -> ParallelPlan:
    """The best of plans that all fit, by the order of a search."""
    keep = Keeper(score, top_k=1)
    keep.offer(plans, model.evaluate(plans))
    return keep.outcome().best[0]
