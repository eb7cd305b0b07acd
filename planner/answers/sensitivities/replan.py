"""The best plan of a changed request: by a search, or among the plans that a change can make best.

A change of a link's or kernel's rate moves only times, so the same plans fit, and few of them can
become the best.  Two properties of the cost model bound these: a higher rate is never slower, and
r times a rate never takes less than 1/r of the time.  Both hold for each part of the time, except
between the points of interpolated tables, hence SLACK.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from cost_models.estimate import CostModel, Estimates
from cost_models.plans import ParallelPlan, Plans, concatenate
from planner.answers.plans.competition import fastest, prepared
from planner.answers.sensitivities.inputs import Input, Variant, changed
from planner.documents.request import PlanRequest
from planner.progress import within_a_step
from planner.search.exhaustive import best_of, cost_model, objective, search

SLACK = 1.05


@dataclass(frozen=True)
class Pool:
    """Plans that fit, with a lower bound on the time of each."""

    plans: Plans
    least_s: NDArray[np.float64]

    def within(self, bound_s: float) -> Pool:
        chosen = self.least_s <= bound_s * SLACK
        return Pool(self.plans.take(chosen), self.least_s[chosen])

    def priced(self, model: CostModel) -> Pool:
        seconds = model.evaluate(self.plans).iteration_time_s
        return Pool(self.plans, np.broadcast_to(seconds, (len(self.plans),)))


class Replanner:
    """Finds the best plan of changed requests; `best` is the best of the unchanged request."""

    def __init__(self, request: PlanRequest, furthest: float) -> None:
        """furthest: the largest ratio by which an input will be changed.

        All searches are for the framework that is the fastest for the unchanged request.
        """
        self.request = request
        self.model = cost_model(request)
        self.searches = 0
        self.costed = 0
        self._score = objective(request)
        self._by_time = request.search.objective != "memory_headroom"
        self._found: list[tuple[Plans, NDArray[np.float64]]] = []
        self._bound = np.inf
        self._furthest = furthest * SLACK
        with within_a_step():
            self._framework = fastest(request).framework
        self.best = self._search(request, keep=True)
        self._sides: dict[tuple[str, bool], Pool] = {}

    def best_at(
        self, variant: Variant, input_: Input, factor: float, furthest: float
    ) -> ParallelPlan | None:
        """The best plan of a variant; furthest: the last factor on this side of the base."""
        if input_.reach == "money" or factor == 1.0:
            return self.best
        if input_.reach == "all":
            return self._search(variant.request)
        side = input_.name, factor > 1.0
        if side not in self._sides:
            self._sides[side] = self._side(input_, furthest)
        return best_of(variant.model, self._sides[side].plans, self._score)

    def _side(self, input_: Input, furthest: float) -> Pool:
        """The plans that may be the best anywhere between the base and the last factor."""
        everything = self._pool
        if not self._by_time:
            return everything
        end = changed(self.request, input_, furthest).model
        at_end = self._seconds(end)
        if (furthest > 1.0) == input_.slows:
            return everything.within(at_end)
        ratio = max(furthest, 1.0 / furthest)
        return everything.within(ratio * at_end).priced(end).within(self._seconds(self.model))

    def _seconds(self, model: CostModel) -> float:
        """The step time of the base's best plan under a cost model."""
        assert self.best is not None
        return float(model.evaluate(Plans.from_rows([self.best])).iteration_time_s[0])

    def _search(self, request: PlanRequest, keep: bool = False) -> ParallelPlan | None:
        asked, rules = prepared(request.for_framework(self._framework))
        with within_a_step():
            found = search(asked, rules, top_k=1, visit=self._keep if keep else None)
        assert found.counts is not None
        self.searches += 1
        self.costed += found.counts.costed
        return found.best[0] if found.best else None

    def _keep(self, plans: Plans, estimates: Estimates) -> None:
        """Keep the plans that may become the best; if the objective is memory, those that tie."""
        decides = estimates.iteration_time_s if self._by_time else estimates.peak_bytes
        far = self._furthest if self._by_time else 1.0
        self._bound = min(self._bound, float(decides.min()) * far)
        chosen = decides <= self._bound
        self._found.append((plans.take(chosen), estimates.iteration_time_s[chosen]))

    @cached_property
    def _pool(self) -> Pool:
        """The plans that the first search kept, with their step times."""
        plans = reduce(concatenate, (plans for plans, _ in self._found))
        return Pool(plans, np.concatenate([seconds for _, seconds in self._found]))
