"""The best plan of each of several spaces, which are priced together.

Frameworks differ in the plans that they run, and hardly in physics.  Alone, each has too few plans
for NumPy to hide the cost of its calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np

from cost_models.keys import KeyView
from cost_models.plans import FloatArray, IntArray, Plans
from planner.constraints import Rule
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.site_storage import room_of
from planner.progress import current, step
from planner.search.drawn import Drawn, joined
from planner.search.exhaustive import (
    CHUNK,
    cost_model,
    counts,
    objective,
    own_counts,
    repartitioned,
    search,
)
from planner.search.fewest_layers import with_fewest_layers
from planner.search.outcome import Keeper, Outcome
from planner.search.partial_plans import ROUNDING, PartialPlans
from planner.search.space import Space

# Plans of several spaces are priced at once up to this many; more are as fast alone.
TOGETHER = 1 << 15
# Candidates that are drawn first, of all spaces: they set the bound for the others.
FIRST_DRAWN = 1 << 15

Question = tuple[PlanRequest, tuple[Rule, ...]]


def best_of_each(
    asked: Sequence[Question], within: float = np.inf, best_s: float = np.inf
) -> list[Outcome]:
    """What a search says of each space, but plans that cannot be the best one are left out of it.

    asked: the same but for frameworks and limits.  within: plans that take more than so many times
    the fastest one of all, or than best_s, are left out too; none may be left of a space.
    """
    if not asked:
        return []
    request = asked[0][0]
    if request.search.objective == "memory_headroom" or request.site is not None:
        return [search(*one, top_k=1) for one in asked]
    return _Together(asked, within, best_s).outcomes()


@dataclass
class _Searched:
    """One space, and the best of what was priced of it."""

    request: PlanRequest
    rules: tuple[Rule, ...]
    space: Space
    keep: Keeper
    costed: int = 0
    feasible: int = 0


class _Together:
    def __init__(self, asked: Sequence[Question], within: float, best_s: float) -> None:
        request = asked[0][0]
        self._model, self._room = cost_model(request), room_of(request)
        self._within, self._best_s = within, best_s
        self._each = [
            _Searched(one, rules, Space(one, rules), Keeper(objective(one), top_k=1))
            for one, rules in asked
        ]
        self._cut_short = False

    def outcomes(self) -> list[Outcome]:
        """What was found of each."""
        batches = zip_longest(*(one.space.partial_plans() for one in self._each))
        for partials in batches:
            if not self._cut_short:
                pairs = zip(self._each, partials, strict=True)
                self._search([(one, own) for one, own in pairs if own is not None])
        ended = sorted(self._each, key=lambda one: one.keep.score)
        found = {id(one): self._finish(one) for one in ended}
        return [found[id(one)] for one in self._each]

    def _search(self, batch: Sequence[tuple[_Searched, PartialPlans]]) -> None:
        """Price what may be the best of some partial plans, the most promising first."""
        first = FIRST_DRAWN // len(batch)
        drawing = [
            (one, one.space.promising(partial_plans, CHUNK, first, partial(self._most_s, one)))
            for (one, _), partial_plans in zip(batch, self._ordered(batch), strict=True)
        ]
        while drawing and not self._cut_short:
            waiting: list[tuple[_Searched, Plans]] = []
            open_ones = []
            for one, chunks in drawing:
                plans = next(chunks, None)
                if plans is None:
                    continue
                open_ones.append((one, chunks))
                if sum(len(own) for _, own in waiting) + len(plans) > TOGETHER:
                    self._price(waiting)
                    waiting = []
                waiting.append((one, plans))
            self._price(waiting)
            drawing = open_ones
            self._tell()

    def _tell(self) -> None:
        leader = min(self._each, key=lambda one: one.keep.score)
        spaces = [one.space for one in self._each]
        step(sum(s.drawn for s in spaces), sum(s.size for s in spaces), leader.keep.best)
        self._cut_short = current().enough()

    def _ordered(self, batch: Sequence[tuple[_Searched, PartialPlans]]) -> Iterator[PartialPlans]:
        """Partial plans that may fit, in the order of their least time."""
        for some in _sets(batch):
            plans = joined([partial_plans.plans for _, partial_plans in some])
            fits, least_s = np.zeros(0, dtype=np.bool_), np.zeros(0)
            if len(plans.tp):
                fits = ROUNDING * self._model.least_bytes(plans) <= self._room.of(plans)
                least_s = ROUNDING * self._model.least_s(plans)
            start = 0
            for one, partial_plans in some:
                own = slice(start, start := start + len(partial_plans.plans.tp))
                one.space.hopeless += int(np.count_nonzero(~fits[own]))
                yield partial_plans.where(fits[own]).by_least_time(least_s[own][fits[own]])

    @property
    def _best(self) -> float:
        return min(self._best_s, *(one.keep.score for one in self._each))

    def _most_s(self, one: _Searched) -> float:
        """The step time above which no plan of a space is of interest."""
        return min(one.keep.bound(), self._within * self._best)

    def _price(self, chunks: Sequence[tuple[_Searched, Plans]]) -> None:
        """Price chunks of candidates, with full recompute of the fewest layers that fit."""
        if chunks:
            drawn = Drawn.of([(one.space, plans) for one, plans in chunks])
            drawn, needed, _ = with_fewest_layers(drawn, self._model, self._room)
            self._offer([one for one, _ in chunks], drawn.plans, drawn.owner, needed)

    def _offer(
        self, each: Sequence[_Searched], plans: Plans, owner: IntArray, needed: FloatArray
    ) -> None:
        """Memory of all, time only of those that fit, since it takes longer."""
        fits = needed <= self._room.of(plans)
        for place, one in enumerate(each):
            own = owner == place
            one.costed += int(np.count_nonzero(own))
            one.feasible += int(np.count_nonzero(own & fits))
            if not one.feasible:
                rows = np.flatnonzero(own)
                one.keep.miss(plans.take(rows), needed[rows])
        if not fits.any():
            return
        plans, owner = plans.take(fits), owner[fits]
        estimates = self._model.evaluate(plans)
        for place, one in enumerate(each):
            rows = np.flatnonzero(owner == place)
            degrees = KeyView(plans, ("tp", "cp", "pp"), rows)
            one.space.seen(degrees, estimates.iteration_time_s[rows])
            one.keep.offer_best(plans, estimates, rows)

    def _finish(self, one: _Searched) -> Outcome:
        """Refine the best plans of a space; what was found of it."""
        space, keep, most_s = one.space, one.keep, self._within * self._best
        left_out = space.hopeless and one.costed and not one.feasible
        if left_out and not self._cut_short and most_s == np.inf:
            # The nearest miss may be among those, so a pass without bounds must find it.
            return search(one.request, one.rules, top_k=1)
        table: tuple[tuple[int, ...], ...] = ()
        if space.free_partition and keep.score <= most_s and not self._cut_short:
            worth_s = np.inf if self._within == np.inf else self._best
            again = repartitioned(self._model, space, self._room, keep, worth_s)
            if again is not None:
                table = again.stage_layers_table
                self._refined(one, again)
        if "recompute_layers" in one.request.search.open:
            self._refined(one, own_counts(self._model, space, self._room, keep, table))
        outcome = keep.outcome()
        outcome.counts = counts(space, space.dominated, one.costed, one.feasible, self._cut_short)
        return outcome

    def _refined(self, one: _Searched, plans: Plans) -> None:
        if len(plans.tp):
            needed = self._model.needed_bytes(plans)
            self._offer([one], plans, np.zeros(len(plans), dtype=np.int64), needed)


def _sets(
    batch: Sequence[tuple[_Searched, PartialPlans]],
) -> Iterator[list[tuple[_Searched, PartialPlans]]]:
    """What is priced together: neighbours, up to TOGETHER plans."""
    found: list[tuple[_Searched, PartialPlans]] = []
    for one in batch:
        if found and sum(len(own.plans.tp) for _, own in (*found, one)) > TOGETHER:
            yield found
            found = []
        found.append(one)
    yield found
