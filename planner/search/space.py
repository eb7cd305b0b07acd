"""The legal candidates, as arrays of integers: chunks of plans to be priced.

The space is a product of axes; values that depend on earlier axes (layouts of layers on stages,
micro-batches that divide the batch) are ragged tables.  Plans that a rule refuses are dropped here
and counted under the first reason, and so are dominated plans (planner/search/dominance.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np

from cost_models.plans import FloatArray, IntArray, ParallelPlan, Plans, code
from cost_models.schedules.waits import least_wait_share
from planner.constraints import (
    RULES,
    TP_IN_DOMAIN,
    WORLD_SIZE,
    BoolArray,
    Context,
    Rule,
    judged,
    passing,
)
from planner.documents.answer import SpaceAxis
from planner.documents.request import PlanRequest
from planner.search.axes import LAYOUT_FIELDS, MAX_CANDIDATES, Axes, SpaceTooLarge, within
from planner.search.best_switches import with_best_switches
from planner.search.dominance import Dominance
from planner.search.layout_axes import LayoutAxes
from planner.search.layout_tables import (
    GroupOffsets,
    Layouts,
    batches,
    chunk_layers,
    micro_batch_table,
    repeated,
)
from planner.search.legality import Legality
from planner.search.option_axes import OptionAxes
from planner.search.partial_plans import Memory, PartialPlans, Refused, fewer_layers
from planner.search.process_groups import process_groups
from planner.search.space_axes import space_axes
from planner.search.uneven_split_filter import UnevenSplitFilter, place_among

# Up to this many candidates are drawn together, whatever their schedules: a chunk per schedule
# would take longer.
FEW_CANDIDATES = 1 << 17
# Partial plans that are held in memory at one time.
MAX_PARTIAL_PLANS = 1 << 20
# Plans that remain legal are copied once they are less than this share of the array.
WORTH_TAKING = 0.6
_FULL = code("recompute", "full")
_1F1B = code("schedule", "1f1b")


class Space:
    """The candidates of one request.

    `rejected`, `dominated`, `hopeless` and `drawn` (of `size` in all) fill while chunks are drawn.
    """

    def __init__(
        self,
        request: PlanRequest,
        rules: Iterable[Rule] = (),
        full: bool = False,
        own: ParallelPlan | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        """full, own, sizes: see Axes; of several sizes, the request's cluster is the largest."""
        self.request = request
        self._axes = Axes(request, full, own, sizes)
        self._laid = LayoutAxes(self._axes)
        self._options = OptionAxes(self._axes)
        self._dominance = Dominance(self._axes, self._options)
        self.context = Context(request.model, request.cluster, request.training)
        domain = () if self._axes.limited("tp") else (TP_IN_DOMAIN,)
        self._added = tuple(rules)
        named_rules = [rule for rule in RULES if len(self.sizes) == 1 or rule is not WORLD_SIZE]
        self.rules: tuple[Rule, ...] = (*named_rules, *domain, *self._added)
        self.dominated = self.hopeless = 0
        self.drawn = self.size = 0
        self._legality = Legality(self.context, self.rules, self._options)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of accelerators of the candidates, ascending."""
        return self._axes.sizes

    @property
    def rejected(self) -> Counter[str]:
        """How many plans were refused, by reason."""
        return self._legality.rejected

    @property
    def examples(self) -> dict[str, str]:
        """The sentence of each reason for the first plan that it refused."""
        return self._legality.examples

    @cached_property
    def groups(self) -> Plans:
        """Legal process-group sizes, one row each; everything else still at its default."""
        return process_groups(self._axes, self._laid, self._legality)

    @cached_property
    def _layouts(self) -> Layouts:
        return Layouts(self._laid, self.groups, self.request.model, self._legality)

    def chunks(self, size: int, memory: Memory | None = None) -> Iterator[Plans]:
        """Legal candidates in chunks of about `size`; if they are many, one schedule per chunk.

        With one schedule per chunk the cost model has no closed forms to choose between.  Explicit
        stages come last, and only where `seen` leaves a chance for them.  Full recompute is of all
        layers of a chunk (see _finish).  memory: plans that cannot fit are counted as `hopeless`
        and not drawn.  Chunks may be empty then.
        """
        _, implicit, explicit = self._tables
        for partial in self._partial_plans(uncounted=False):
            drawn, hopeless = partial.drawn, None
            if memory is not None and partial.early and len(partial.plans.tp):
                fits = memory.fits(partial.plans)
                partial, hopeless = partial.where(fits), partial.where(~fits)
            tables = [implicit]
            if (implicit.counts[partial.group] * partial.counts).sum() > FEW_CANDIDATES:
                tables = [
                    self._layouts.table(schedule, False) for schedule in self._layouts.schedules()
                ]
            self._count(partial, implicit)
            for table in tables:
                yield from self._laid_out(partial, table, size)
            promising = self._promising(explicit, drawn)
            self._count(partial, promising)
            yield from self._laid_out(partial, promising, size)
            if hopeless is not None:
                yield from self._counted_hopeless(hopeless, (implicit, promising), size)

    def partial_plans(self) -> Iterator[PartialPlans]:
        """Legal candidates without their layout, in batches; plans left out are not counted."""
        return self._partial_plans(uncounted=True)

    def promising(
        self, partial: PartialPlans, size: int, first: int, most_s: Callable[[], FloatArray]
    ) -> Iterator[Plans]:
        """Candidates of partial plans in their order, those whose least time is low enough.

        first: how many to draw at first; later chunks may be up to `size`.  most_s: by size, the
        time above which no plan is of interest any more.
        """
        _, implicit, explicit = self._tables
        self._count(partial, implicit)
        yield from self._laid_out_in_time(partial, implicit, size, first, most_s)
        chosen = self._promising(explicit, partial.drawn)
        self._count(partial, chosen)
        yield from self._laid_out_in_time(partial, chosen, size, first, most_s)

    def least_waits(self, partial: PartialPlans) -> FloatArray:
        """How long the busiest rank waits at least in any layout, over its work."""
        best = {name: each[partial.groups] for name, each in self._layouts.quickest.items()}
        return self._waits(partial.plans.with_columns(**best))

    def _waits(self, plans: Plans) -> FloatArray:
        return least_wait_share(plans, self.request.training.global_batch_size)

    @cached_property
    def _tables(self) -> tuple[GroupOffsets, GroupOffsets, GroupOffsets]:
        """Micro-batch sizes, and layouts with usual and with explicit stages, of each group."""
        implicit, explicit = (self._layouts.table(None, named) for named in (False, True))
        return micro_batch_table(self._axes, self.groups, self._legality), implicit, explicit

    def _counted_hopeless(
        self, hopeless: PartialPlans, tables: Iterable[GroupOffsets], size: int
    ) -> Iterator[Plans]:
        """Empty chunks, of which there is nothing to price, so that the caller reports progress."""
        for plans in chain(*(self._laid_out(hopeless, table, size) for table in tables)):
            self.hopeless += len(plans)
            self.dominated += 0 if self.every_layer_count else int(fewer_layers(plans).sum())
            yield plans.take(slice(0))

    def _partial_plans(self, uncounted: bool) -> Iterator[PartialPlans]:
        """Each group with every micro-batch size and option, if some layout may make that legal.

        uncounted: whether the number of those left out does not matter.
        """
        micro, implicit, explicit = self._tables
        layouts = implicit.counts + explicit.counts
        per_layout = micro.counts * len(self._options.columns["zero_stage"])
        self.size = int((layouts * per_layout).sum())
        if self.size > MAX_CANDIDATES:
            raise SpaceTooLarge("candidates", self.size, MAX_CANDIDATES)
        per_layout = np.where(layouts > 0, per_layout, 0)
        group = np.arange(len(per_layout))
        for low, high in batches(per_layout, MAX_PARTIAL_PLANS):
            layouts_here = np.where((group >= low) & (group < high), per_layout, 0)
            yield self._legal_partial_plans(layouts_here, micro, uncounted)

    def _legal_partial_plans(
        self, counts: IntArray, micro: GroupOffsets, uncounted: bool
    ) -> PartialPlans:
        """One batch of them; counts: partial plans of each group, before any is left out."""
        options = self._options.columns
        group, position = repeated(counts)
        batch, option = np.divmod(position, len(options["zero_stage"]))
        if uncounted:  # of counts of layers few exist: the others need not become plans
            exist = options["recompute_num_layers"][option] <= self._layouts.longest_chunk[group]
            group, batch, option = group[exist], batch[exist], option[exist]
        plans = self.groups.take(group).with_columns(
            micro_batch_size=micro.columns["micro_batch_size"][micro.starts[group] + batch],
            **{name: column[option] for name, column in options.items()},
            **self._options.switches.of(0),
        )
        legal = np.ones(len(group), dtype=np.bool_)
        refused: list[Refused] = []

        def refuse(rule: Rule | None, rows: BoolArray) -> None:
            if rows.any():
                first = plans.take(np.argmax(rows, keepdims=True))
                refused.append((rule, first, np.bincount(group[rows], minlength=len(counts))))

        # Which layer counts exist depends on the layout, so dominated plans are counted later.
        early = uncounted or not self.every_layer_count
        if early:
            legal = ~self._dominance.dominated(plans)
            refuse(None, ~legal)
        still_open = {*LAYOUT_FIELDS, "recompute_num_layers", *self._options.switches.columns}
        rules = []
        for rule in self._legality.rules_of("plan"):
            if np.count_nonzero(legal) < WORTH_TAKING * len(legal):
                plans, group = plans.take(legal), group[legal]
                legal = np.ones(len(group), dtype=np.bool_)
            passes, read = judged(rule, self.context, plans)
            if read & still_open or not early:
                rules.append(rule)
            else:
                refuse(rule, legal & ~passes)
                legal = legal & passes
        drawn = np.bincount(group[legal], minlength=len(counts))
        rows = np.flatnonzero(drawn)
        return PartialPlans(
            plans.take(legal), rows, drawn[rows], counts, early, tuple(rules), tuple(refused),
        )  # fmt: skip

    def _count(self, partial: PartialPlans, layouts: GroupOffsets) -> None:
        """Count the plans that are left out."""
        for rule, first, drawn in partial.refused:
            count = int((drawn * layouts.counts).sum())
            self.drawn += count
            if rule is None:
                self.dominated += count
            elif count:
                self._legality.refuse(rule, first, np.ones(1, dtype=np.bool_), count)
        if self._laid.gpipe_dominated:
            twins = layouts.count_of(layouts.columns["schedule"] == _1F1B) * (self.groups.pp > 1)
            self.dominated += int((twins * partial.drawn).sum())

    def _laid_out(self, partial: PartialPlans, layouts: GroupOffsets, size: int) -> Iterator[Plans]:
        """Partial plans with each of their layouts, all layouts of a group together."""
        for low, high in batches(layouts.counts[partial.group] * partial.counts, size):
            yield from self._candidates_of_rows(partial, layouts, np.arange(low, high))

    def _laid_out_in_time(
        self,
        partial: PartialPlans,
        layouts: GroupOffsets,
        size: int,
        first: int,
        most_s: Callable[[], FloatArray],
    ) -> Iterator[Plans]:
        """The layouts of partial plans with a row each, whose least time is low enough."""
        per_row = layouts.counts[partial.group]
        index = place_among(self.sizes, self.groups)[partial.group]
        rows = np.flatnonzero(per_row)
        while len(rows := rows[partial.least_s[rows] <= most_s()[index[rows]]]):
            ends = np.cumsum(per_row[rows])
            count = max(int(np.searchsorted(ends, min(first, size), side="right")), 1)
            yield from self._candidates_of_rows(partial, layouts, rows[:count], most_s)
            rows, first = rows[count:], 2 * first

    def _candidates_of_rows(
        self,
        partial: PartialPlans,
        layouts: GroupOffsets,
        rows: IntArray,
        most_s: Callable[[], FloatArray] | None = None,
    ) -> Iterator[Plans]:
        """The legal candidates of some rows, as one chunk if any; most_s: see promising."""
        starts = np.cumsum(partial.counts) - partial.counts
        row, position = repeated((layouts.counts[partial.group] * partial.counts)[rows])
        self.drawn += len(row)
        row = rows[row]
        layout, cell = np.divmod(position, partial.counts[row])
        layout += layouts.starts[partial.group[row]]
        plans = partial.plans.take(starts[row] + cell).with_columns(
            **{n: c[layout] if c.ndim else c for n, c in layouts.columns.items()}
        )
        if most_s is not None:
            least_s = partial.work_s[row] * (1.0 + self._waits(plans))
            plans = plans.take(least_s <= most_s()[place_among(self.sizes, plans)])
        plans = self._finish(plans, partial)
        if len(plans.tp):
            yield plans

    @property
    def every_layer_count(self) -> bool:
        """Whether recompute_num_layers is an axis of its own instead of the dominance rule."""
        return self._options.every_layer_count

    @property
    def recompute_is_optional(self) -> bool:
        """Whether the space has, for every plan with full recompute, the same plan without."""
        return "none" in self._axes.values["recompute"]

    def _finish(self, plans: Plans, partial: PartialPlans) -> Plans:
        """Drop dominated and illegal rows; give full recompute its layers."""
        layers = chunk_layers(self.request.model, plans)
        full = plans.recompute == _FULL
        if self.every_layer_count:
            exists = ~full | (plans.recompute_num_layers <= layers)
            if self._axes.limited("recompute_num_layers"):
                self.rejected["recompute"] += int(np.count_nonzero(~exists))
            plans = plans.take(exists)
        else:
            # 0 stands for all layers of a chunk; a given plan's own count stays what it is.
            count = plans.recompute_num_layers
            count = np.where(count > 0, np.minimum(count, layers), layers)
            plans = plans.with_columns(recompute_num_layers=np.where(full, count, 0))
        if not partial.early:
            keep = ~self._dominance.dominated(plans)
            self.dominated += int(np.count_nonzero(~keep))
            plans = plans.take(keep)
        if not self._options.switches.columns:
            return plans.take(self._legality.legal(plans, "plan", partial.rules))
        accepted, refused = with_best_switches(
            self._options.switches, partial.rules, self.context, plans, self._dominance.at_rest
        )
        for each, rows in refused:
            self._legality.refuse(each, plans, rows)
        return accepted

    @cached_property
    def _uneven_split_filter(self) -> UnevenSplitFilter | None:
        """The filter of uneven splits; None if the request asks for the whole space or one plan."""
        if self._axes.full or self._axes.own is not None or not self._laid.free_partition:
            return None
        return UnevenSplitFilter(self.groups, self.sizes, self._laid.least_partition_share)

    def seen(self, plans: Plans, seconds: FloatArray) -> None:
        """Record the step times of plans that fit, for the filter of uneven layer splits."""
        if self._uneven_split_filter is not None:
            self._uneven_split_filter.seen(plans, seconds)

    def _promising(self, layouts: GroupOffsets, drawn: IntArray) -> GroupOffsets:
        """Layouts by group, none where an uneven split cannot beat the best plan so far.

        drawn: partial plans of each group.
        """
        if self._uneven_split_filter is None:
            return layouts
        counts = np.where(self._uneven_split_filter.promising(), layouts.counts, 0)
        left_out = int(((layouts.counts - counts) * drawn).sum())
        self.dominated += left_out
        self.drawn += left_out
        return replace(layouts, counts=counts)

    @property
    def free_partition(self) -> bool:
        """Whether layers may be partitioned freely: see LayoutAxes."""
        return self._laid.free_partition

    def legal(self, rows: Sequence[ParallelPlan], table: tuple[tuple[int, ...], ...] = ()) -> Plans:
        """The given plans that every rule and limit accepts.

        table: stage layers for their indices; it must begin with the space's own (the default).
        """
        bounds = self.request.search.limits.get("recompute_num_layers")
        if bounds is not None:
            rows = [
                row
                for row in rows
                if row.recompute != "full" or within(bounds, row.recompute_num_layers)
            ]
        plans = Plans.from_rows(rows, table or self._laid.split_table)
        return plans.take(passing(self.rules, self.context, plans)) if rows else plans

    def accepts(self, plans: Plans) -> BoolArray:
        """Which plans, already accepted by RULES, a framework's rules accept too."""
        every = np.ones(len(plans), dtype=np.bool_)
        return self._legality.legal(plans, "plan") if self._added else every

    def axes(self) -> tuple[SpaceAxis, ...]:
        """The space as a table: axis, values, count."""
        tables = self.groups, self._layouts.legal
        return tuple(space_axes(self._axes, self._laid, self._options, *tables))
