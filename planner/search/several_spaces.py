"""The best plan of each of several spaces, which are priced together.

Frameworks differ in the plans that they run, and hardly in physics; clusters that differ in the
number of their nodes not at all.  Alone, each has too few plans for NumPy to hide the cost of its
calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import numpy as np

from cost_models.keys import KeyView
from cost_models.plans import FloatArray, IntArray, Plans, joined
from planner.constraints import Rule
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.site_storage import room_of
from planner.progress import current, step
from planner.search.drawn import Drawn
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
from planner.search.uneven_split_filter import place_among

# Plans of several spaces are priced at once up to this many; more are as fast alone.
TOGETHER = 1 << 15
# Candidates that are drawn first, of all spaces: they set the bound for the others.
FIRST_DRAWN = 1 << 13

Question = tuple[PlanRequest, tuple[Rule, ...]]


def best_of_each(
    questions: Sequence[Question], within: float = np.inf, best_s: float = np.inf
) -> list[Outcome]:
    """What a search says of each space, but plans that cannot be the best one are left out of it.

    questions: the same but for frameworks and limits.  within: plans that take more than so many
    times the fastest one of all, or than best_s, are left out too; none may be left of a space.
    """
    if not questions:
        return []
    request = questions[0][0]
    if not priced_together(request):
        return [search(*question, top_k=1) for question in questions]
    together = _Together(questions, (request.cluster.accelerators,), within, np.array([best_s]))
    return [outcome for (outcome,) in together.outcomes()]


def best_on_each(
    questions: Sequence[Question], sizes: Sequence[int], within: float, best_s: FloatArray
) -> list[list[Outcome]]:
    """As `best_of_each`, on clusters of several sizes, without counts and nearest misses.

    questions: on the largest cluster, of requests that are `priced_together`.  sizes: numbers of
    accelerators, ascending, of clusters that differ in nodes only.  best_s: by size.  Raises
    SpaceTooLarge where one of these may not be.
    """
    return _Together(questions, sizes, within, best_s).outcomes() if questions else []


def priced_together(request: PlanRequest) -> bool:
    """Whether spaces of a request can be priced together."""
    return request.search.objective != "memory_headroom" and request.site is None


@dataclass(eq=False)
class _Cell:
    """One space on clusters of one size, and the best of what was priced of it.

    hopeless, costed, feasible: how many partial plans fit in no layout, how many plans were priced,
    and how many of those fit.  table: stage layers of plans that were repartitioned.  left_out:
    whether nothing fits, and the nearest miss may be among plans that were not priced.
    """

    space: Space
    size: int
    keep: Keeper
    hopeless: int = 0
    costed: int = 0
    feasible: int = 0
    table: tuple[tuple[int, ...], ...] = ()
    left_out: bool = False


@dataclass(frozen=True)
class _SpaceSearch:
    """One space, and by size what was found of it."""

    request: PlanRequest
    rules: tuple[Rule, ...]
    space: Space
    cells: list[_Cell]


class _Together:
    def __init__(
        self, questions: Sequence[Question], sizes: Sequence[int], within: float, best_s: FloatArray
    ) -> None:
        request = questions[0][0]
        self._model, self._room = cost_model(request), room_of(request)
        self._sizes, self._within, self._best_s = tuple(sizes), within, best_s
        self._searches = [self._search_of(*question) for question in questions]
        self._cut_short = False

    def _search_of(self, request: PlanRequest, rules: tuple[Rule, ...]) -> _SpaceSearch:
        space, score = Space(request, rules, sizes=self._sizes), objective(request)
        indices = range(len(self._sizes))
        cells = [_Cell(space, index, Keeper(score, top_k=1)) for index in indices]
        return _SpaceSearch(request, rules, space, cells)

    def outcomes(self) -> list[list[Outcome]]:
        """What was found of each on each size."""
        batches = zip_longest(*(entry.space.partial_plans() for entry in self._searches))
        for partials in batches:
            if not self._cut_short:
                pairs = zip(self._searches, partials, strict=True)
                self._search([(entry, plans) for entry, plans in pairs if plans is not None])
        self._refine_all()
        return [[self._outcome(entry, cell) for cell in entry.cells] for entry in self._searches]

    def _refine_all(self) -> None:
        """Refine the spaces of each size, the best first: its result bounds the others."""
        by_size = list(zip(*(entry.cells for entry in self._searches), strict=True))
        best = [min(cells, key=lambda cell: cell.keep.score) for cells in by_size]
        others = [cell for cells in by_size for cell in cells if cell not in best]
        for cells in (best, others):
            for cell in cells:
                cell.left_out = self._is_left_out(cell)
            self._refine([cell for cell in cells if not cell.left_out])

    def _search(self, batch: Sequence[tuple[_SpaceSearch, PartialPlans]]) -> None:
        """Price what may be the best of some partial plans, the most promising first."""
        first = FIRST_DRAWN // len(batch)
        drawing = [
            (e, e.space.promising(partial_plans, CHUNK, first, partial(self._most_s, e)))
            for (e, _), partial_plans in zip(batch, self._ordered(batch), strict=True)
        ]
        while drawing and not self._cut_short:
            waiting: list[tuple[_SpaceSearch, Plans]] = []
            open_ones = []
            for entry, chunks in drawing:
                plans = next(chunks, None)
                if plans is None:
                    continue
                open_ones.append((entry, chunks))
                if sum(len(waiting_plans) for _, waiting_plans in waiting) + len(plans) > TOGETHER:
                    self._price(waiting)
                    waiting = []
                waiting.append((entry, plans))
            self._price(waiting)
            drawing = open_ones
            self._report_progress()

    def _report_progress(self) -> None:
        keeps = (cell.keep for entry in self._searches for cell in entry.cells)
        leader = min(keeps, key=lambda keep: keep.score)
        spaces = [entry.space for entry in self._searches]
        step(sum(s.drawn for s in spaces), sum(s.size for s in spaces), leader.best)
        self._cut_short = current().enough()

    def _ordered(self, batch: Sequence[tuple[_SpaceSearch, PartialPlans]]) -> list[PartialPlans]:
        """Partial plans that may fit, the most promising of each size first."""
        bounds = [bound for group in _sets(batch) for bound in self._bounded(group)]
        least_s = np.full(len(self._sizes), np.inf)
        for _, size, _, seconds in bounds:
            np.minimum.at(least_s, size, seconds)
        return [
            fitting.in_order(work_s, seconds, np.argsort(seconds / least_s[size], kind="stable"))
            for fitting, size, work_s, seconds in bounds
        ]

    def _bounded(
        self, group: Sequence[tuple[_SpaceSearch, PartialPlans]]
    ) -> Iterator[tuple[PartialPlans, IntArray, FloatArray, FloatArray]]:
        """Partial plans that may fit, with the place of the size, the least time of each without
        waiting for other stages, and with that.
        """
        plans = joined([partial_plans.plans for _, partial_plans in group])
        fits, work_s = np.zeros(0, dtype=np.bool_), np.zeros(0)
        if len(plans.tp):
            needed, seconds = self._model.least(plans)
            fits, work_s = ROUNDING * needed <= self._room.of(plans), ROUNDING * seconds
        size, start = place_among(self._sizes, plans), 0
        for entry, partial_plans in group:
            part = slice(start, start := start + len(partial_plans.plans.tp))
            may, at = fits[part], size[part]
            for cell, count in zip(entry.cells, self._counts(at[~may]), strict=True):
                cell.hopeless += count
            fitting, work = partial_plans.where(may), work_s[part][may]
            yield fitting, at[may], work, work * (1.0 + entry.space.least_waits(fitting))

    def _counts(self, size: IntArray) -> list[int]:
        result: list[int] = np.bincount(size, minlength=len(self._sizes)).tolist()
        return result

    def _best(self, size: int) -> float:
        scores = (entry.cells[size].keep.score for entry in self._searches)
        return min(float(self._best_s[size]), *scores)

    def _most_s(self, entry: _SpaceSearch) -> FloatArray:
        """The step time above which no plan of a space is of interest, by size."""
        bounds = [
            min(cell.keep.bound(), self._within * self._best(cell.size)) for cell in entry.cells
        ]
        return np.array(bounds)

    def _price(self, chunks: Sequence[tuple[_SpaceSearch, Plans]]) -> None:
        """Price chunks of candidates, with full recompute of the fewest layers that fit."""
        if chunks:
            drawn = Drawn.of([(entry.space, plans) for entry, plans in chunks])
            drawn, needed, _ = with_fewest_layers(drawn, self._model, self._room)
            size = place_among(self._sizes, drawn.plans)
            cells = [cell for entry, _ in chunks for cell in entry.cells]
            self._offer(cells, drawn.plans, drawn.owner * len(self._sizes) + size, needed)

    def _offer(
        self, cells: Sequence[_Cell], plans: Plans, owner: IntArray, needed: FloatArray
    ) -> None:
        """Memory of all, time only of those that fit, since it takes longer.

        owner: the place of each plan's cell.
        """
        fits = needed <= self._room.of(plans)
        for index, rows in _by_owner(owner):
            cell = cells[index]
            cell.costed += len(rows)
            cell.feasible += int(np.count_nonzero(fits[rows]))
            if not cell.feasible:
                cell.keep.keep_nearest(plans.take(rows), needed[rows])
        if not fits.any():
            return
        plans, owner = plans.take(fits), owner[fits]
        estimates = self._model.evaluate(plans)
        for index, rows in _by_owner(owner):
            cell = cells[index]
            degrees = KeyView(plans, ("tp", "cp", "pp", "dp"), rows)
            cell.space.seen(degrees, estimates.iteration_time_s[rows])
            cell.keep.offer_best(plans, estimates, rows)

    def _is_left_out(self, cell: _Cell) -> bool:
        if self._cut_short or not cell.hopeless or not cell.costed or cell.feasible:
            return False
        return self._within * self._best(cell.size) == np.inf

    def _refine(self, cells: Sequence[_Cell]) -> None:
        """Refine the best plans of some cells."""
        worth = [] if self._cut_short else [cell for cell in cells if self._is_worth(cell)]
        better = repartitioned(
            self._model, self._room,
            [
                (cell.space, cell.keep, np.inf if self._within == np.inf else self._best(cell.size))
                for cell in worth
            ],
        )  # fmt: skip
        repriced = [
            (cell, plans) for cell, plans in zip(worth, better, strict=True) if plans is not None
        ]
        for cell, plans in repriced:
            cell.table = plans.stage_layers_table
        self._offer_again(repriced)
        self._offer_again(
            [
                (cell, own_counts(self._model, cell.space, self._room, cell.keep, cell.table))
                for cell in cells
                if "recompute_layers" in cell.space.request.search.open
            ]
        )

    def _is_worth(self, cell: _Cell) -> bool:
        """Whether a cell's layers may be partitioned anew, and its plans may then be the best."""
        most_s = self._within * self._best(cell.size)
        return cell.space.free_partition and cell.keep.score <= most_s

    def _offer_again(self, chunks: Sequence[tuple[_Cell, Plans]]) -> None:
        found = [(cell, plans) for cell, plans in chunks if len(plans.tp)]
        if found:
            plans = joined([plans for _, plans in found])
            owner = np.repeat(np.arange(len(found)), [len(plans) for _, plans in found])
            self._offer([cell for cell, _ in found], plans, owner, self._model.needed_bytes(plans))

    def _outcome(self, entry: _SpaceSearch, cell: _Cell) -> Outcome:
        if len(self._sizes) > 1:
            return cell.keep.first()
        if cell.left_out:  # so a pass without bounds must find it
            return search(entry.request, entry.rules, top_k=1)
        outcome, space = cell.keep.outcome(), entry.space
        outcome.counts = counts(space, space.dominated, cell.costed, cell.feasible, self._cut_short)
        return outcome


def _by_owner(owner: IntArray) -> Iterator[tuple[int, IntArray]]:
    """The rows of each owner that has any."""
    order = np.argsort(owner, kind="stable")
    owners, starts = np.unique(owner[order], return_index=True)
    return zip(owners.tolist(), np.split(order, starts[1:]), strict=True)


def _sets(
    batch: Sequence[tuple[_SpaceSearch, PartialPlans]],
) -> Iterator[list[tuple[_SpaceSearch, PartialPlans]]]:
    """What is priced together: neighbours, up to TOGETHER plans."""
    group: list[tuple[_SpaceSearch, PartialPlans]] = []
    for item in batch:
        if group and sum(len(plans.plans.tp) for _, plans in (*group, item)) > TOGETHER:
            yield group
            group = []
        group.append(item)
    yield group
