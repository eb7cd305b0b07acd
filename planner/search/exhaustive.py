"""Exhaustive search: price every undominated legal plan in chunks, keep the best.

The answer is the best of the model, not of a heuristic.  Order: the objective, then time, then
peak memory, then the plan's fields in their order, smaller first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from cost_models.estimate import CostModel, Estimates
from cost_models.plans import FloatArray, ParallelPlan, Plans
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
from planner.search.fewest_layers import with_fewest_layers
from planner.search.outcome import Keeper, Outcome, Score
from planner.search.partial_plans import PruningBounds
from planner.search.repartitioned_plans import repartitioned_plans
from planner.search.simplicity import MOST_FULL, Simplest
from planner.search.space import Space
from planner.search.stage_recompute import with_own_counts

__all__ = ["SpaceTooLarge", "cost_model", "search"]

# Rows priced at a time: enough to hide the cost of a NumPy call, few enough to bound memory.
CHUNK = 1 << 17
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
    most_s: float

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
    best_only: bool = False,
    most_s: float = np.inf,
) -> Outcome:
    """The top_k feasible plans of the request's space by `score`, lowest first.

    full: price the whole space without dominance rules (slow; for tests).  own: a plan around
    which the space is widened (see Axes).  visit, visit_misses: are shown every plan that fits,
    and that does not.  best_only: plans that cannot be among the best are left out of all that
    the outcome says beside them, where any fits.  most_s: with best_only, slower plans than that
    are left out too; none may be left.
    """
    began = time.perf_counter()
    asked = _Question(request, tuple(rules), score, top_k, full, own, visit, visit_misses, most_s)
    outcome = None
    if not full and visit_misses is None:
        outcome = _Pass(asked, best_only, bounded=True).outcome()
    outcome = outcome or _Pass(asked, best_only=False, bounded=False).outcome()
    assert outcome is not None
    outcome.search_time_s = time.perf_counter() - began
    return outcome


class _Pass:
    """One pass over the space of a question.

    best_only: see search.  bounded: plans that cannot fit are counted and not priced.
    """

    def __init__(self, asked: _Question, best_only: bool, bounded: bool) -> None:
        request = asked.request
        self._asked, self._bounded = asked, bounded
        self._best_only = (
            best_only and request.search.objective != "memory_headroom" and request.site is None
        )
        self._model, self._room = cost_model(request), room_of(request)
        self._space = Space(request, asked.rules, asked.full, asked.own)
        capacity = min(group.accelerator.memory_bytes for group in request.cluster.groups)
        chip, experts = request.cluster.groups[0].accelerator, request.model.moe is not None
        self._simplest = Simplest(MOST_FULL * capacity, seen_together(chip, experts))
        self._rivals = Rivals()
        score = asked.score or objective(request)
        self._keep = Keeper(score, asked.top_k or request.search.top_k)
        self._costed = self._feasible = 0

    def outcome(self) -> Outcome | None:
        """The outcome of this pass; None where nothing fits and some plans were not priced.

        The nearest miss may be among those, so a pass without bounds must find it.
        """
        space, asked = self._space, self._asked
        dominated, cut_short = self._price_space()
        nothing_fits = not (self._feasible or cut_short) and asked.most_s == np.inf
        left_out = self._bounded and space.hopeless and (self._costed or not self._best_only)
        if nothing_fits and left_out:
            return None
        table: tuple[tuple[int, ...], ...] = ()
        if not cut_short and asked.by_time and space.free_partition:
            table = self._price_repartitioned()
        if "recompute_layers" in asked.request.search.open:
            rows = list(with_own_counts(self._model, self._keep.short_list()[0], self._room))
            counted = space.legal(rows, table)
            if len(counted.tp):
                self._price(counted, self._model.needed_bytes(counted))
        outcome = self._keep.outcome()
        outcome.simple = self._simplest.plans()
        outcome.rival = self._rivals.of(outcome.best[0]) if outcome.best else None
        outcome.counts = self._counts(space.dominated + dominated, cut_short)
        return outcome

    def _price_space(self) -> tuple[int, bool]:
        """Price all candidates; how many layer counts are dominated, and whether time ran out."""
        space, model = self._space, self._model
        bound = self._most_s if self._best_only else None
        bounds = PruningBounds(model, self._room, bound) if self._bounded else None
        dominated = 0
        for drawn in space.chunks(CHUNK, bounds):
            if len(drawn.tp):
                plans, needed, left_out = with_fewest_layers(drawn, model, space, self._room)
                dominated += left_out
                self._price(plans, needed)
            step(space.drawn, space.size, self._keep.best)
            if current().enough():
                return dominated, True
        return dominated, False

    def _most_s(self) -> float:
        return min(self._keep.bound(), self._asked.most_s)

    def _price(self, plans: Plans, needed: FloatArray) -> None:
        """Price plans: memory of all, time only of those that fit, since it takes longer."""
        fits = needed <= self._room.of(plans)
        count = int(np.count_nonzero(fits))
        self._costed += len(fits)
        self._feasible += count
        self._keep.miss(plans, needed)
        if count:
            fitting = plans if count == len(fits) else plans.take(fits)
            estimates = self._model.evaluate(fitting)
            self._space.seen(fitting, estimates.iteration_time_s)
            self._keep.offer(fitting, estimates)
            if not self._best_only:
                self._simplest.offer(fitting, estimates)
                self._rivals.offer(fitting, estimates)
            if self._asked.visit is not None:
                self._asked.visit(fitting, estimates)
        if self._asked.visit_misses is not None and count < len(fits):
            misses = plans.take(~fits)
            self._asked.visit_misses(misses, self._model.evaluate(misses))

    def _price_repartitioned(self) -> tuple[tuple[int, ...], ...]:
        """Price the short list with layers repartitioned by time; returns their stage layers."""
        rows, seconds = self._keep.short_list()
        if seconds.min(initial=np.inf) > self._asked.most_s:
            return ()
        repartitioned = _repartitioned(self._model, self._space, self._room, rows, seconds)
        if repartitioned is None:
            return ()
        self._price(repartitioned, self._model.needed_bytes(repartitioned))
        return repartitioned.stage_layers_table

    def _counts(self, dominated: int, cut_short: bool) -> Counts:
        """How many plans there are, and what became of them."""
        costed = self._costed + (0 if self._best_only else self._space.hopeless)
        refused = self._space.rejected
        rejected = {**refused, "memory": costed - self._feasible}
        examples = self._space.examples
        return Counts(
            enumerated=refused.total() + dominated + costed,
            dominated=dominated,
            costed=costed,
            feasible=self._feasible,
            cut_short=cut_short,
            rejected={reason: n for reason, n in sorted(rejected.items()) if n},
            examples={reason: text for reason, text in sorted(examples.items()) if text},
        )


def _repartitioned(
    model: CostModel, space: Space, room: Room, rows: list[ParallelPlan], seconds: FloatArray
) -> Plans | None:
    """Plans of a short list with their layers repartitioned by time, where that is faster."""
    worth_s = FASTER * float(seconds.min(initial=np.inf))
    plans = space.legal(
        [plan for _, plan in repartitioned_plans(model, rows, seconds, worth_s, room)]
    )
    if not len(plans.tp):
        return None
    plans = plans.take(model.evaluate(plans).iteration_time_s < worth_s)
    return plans if len(plans.tp) else None


def best_of(model: CostModel, plans: Plans, score: Score) -> ParallelPlan:
    """The best of plans that all fit, by the order of a search."""
    keep = Keeper(score, top_k=1)
    keep.offer(plans, model.evaluate(plans))
    return keep.outcome().best[0]
