"""The legal candidates, in integers: axes, their values, and chunks of plans to be priced.

The space is a product of axes; what depends on earlier axes (ways to lay layers on stages,
micro-batches that divide the batch) is a ragged product of tables.  Nothing leaves this file
that a rule refuses, and everything refused is counted under its first reason.

Axes are collapsed only by these dominance rules, each held against brute force by a test:
  schedule: gpipe costs the same time as 1f1b and never holds less, so it is left out beside it;
  zero_stage: where there is nothing to shard over (dp x cp = 1, no spare expert ranks) the
    stages are one plan, priced as stage 1, or the smallest allowed;
  switches: what is compiled, fused or overlapped never holds more and is never slower (by 0.1 %
    where a fused loss leaves less to hide communication behind; by 2 % in zero-bubble schedules
    of one or two micro-batches, which take far more than the best plan), so each plan is priced
    with the best switches that the rules accept (planner/search/switches.py);
  fields without effect (cp_kind at cp 1, rank_order at pp 1, ...): one of their values stands for
    all;
  recompute_num_layers: time never falls and memory never grows with it, so of full recompute
    only the fewest layers that fit and all layers are priced, and the fewest only where the plan
    does not fit without recompute.  Not so with offloaded activations (recompute shortens the
    transfer) or the uniform method (longer checkpoints need more): then every count is priced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import prod
from typing import NamedTuple

import numpy as np
from pydantic import ValidationError

from cost_models.estimate import CostModel
from cost_models.plans import FloatArray, IntArray, ParallelPlan, Plans, code
from cost_models.stages import is_loop, middle_layers, virtual_stage_count
from planner.documents.answer import SpaceAxis
from planner.documents.request import PlanRequest
from planner.search.axes import (
    GROUP_FIELDS,
    LAYOUT_FIELDS,
    MOST_CANDIDATES,
    MOST_COMBINATIONS,
    SEARCHED,
    Axes,
    SpaceTooLarge,
    divisors,
    encoded,
    module_names,
    within,
)
from planner.search.constraints import (
    RULES,
    TP_IN_DOMAIN,
    BoolArray,
    Context,
    Rule,
    judged,
    passing,
)
from planner.search.prospects import Prospects
from planner.search.switches import settled
from planner.uncertainty.memory_risk import Room

# So many are drawn in one go whatever their schedules: a chunk of its own costs more than that.
FEW_CANDIDATES = 1 << 17
# Plans that are laid out at one time, before each has its layouts.
MOST_CELLS = 1 << 20
# Sums of the same terms in another order differ by less.
ROUNDING = 1.0 - 1e-9
# What is left of some plans is copied where it is less than this share of them.
WORTH_TAKING = 0.6
# Candidates that are drawn before any is held back.
FIRST_DRAWN = 1 << 13
_FULL = code("recompute", "full")
_1F1B = code("schedule", "1f1b")


class Reach(NamedTuple):
    """What candidates may be good for.

    model: tells seconds and bytes that no layout undercuts; room: bytes that plans may need;
    most_s: seconds that are still of use, None where every plan that fits is wanted.
    """

    model: CostModel
    room: Room
    most_s: Callable[[], float] | None = None

    def fits(self, plans: Plans) -> BoolArray:
        """Which plans may fit in some layout."""
        return np.asarray(ROUNDING * self.model.least_bytes(plans) <= self.room.of(plans))


@dataclass(frozen=True)
class _Ragged:
    """Values of each group: where its own begin in the columns, and how many."""

    columns: dict[str, IntArray]
    starts: IntArray
    counts: IntArray

    def count_of(self, chosen: BoolArray) -> IntArray:
        """How many of each group are chosen."""
        before = np.concatenate([[0], np.cumsum(chosen)])
        return np.asarray(before[self.starts + self.counts] - before[self.starts])


# A rule (None: a dominance rule), a plan that it refuses, and how many by group.
_Refused = tuple[Rule | None, Plans, IntArray]


@dataclass(frozen=True)
class _Cells:
    """Plans but for their layout: several of each row, beside each other.

    group, counts: of each row.  early: dominated ones are left out; rules: those that must see the
    layout; refused: what the others left out.  least_s: of each row, rising, where somebody asked.
    """

    plans: Plans
    group: IntArray
    counts: IntArray
    early: bool
    rules: tuple[Rule, ...]
    refused: tuple[_Refused, ...]
    least_s: FloatArray

    def where(self, chosen: BoolArray) -> _Cells:
        """Some of them."""
        row = np.repeat(np.arange(len(self.counts)), self.counts)
        counts = np.bincount(row[chosen], minlength=len(self.counts))
        return replace(self, plans=self.plans.take(chosen), counts=counts)

    def by_promise(self, model: CostModel) -> _Cells:
        """The same, a row each, the most promising first."""
        least_s = ROUNDING * model.least_s(self.plans) if len(self.plans.tp) else np.zeros(0)
        order = np.argsort(least_s, kind="stable")
        group = np.repeat(self.group, self.counts)[order]
        return replace(
            self, plans=self.plans.take(order), group=group, counts=np.ones_like(group),
            least_s=least_s[order],
        )  # fmt: skip


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
    ) -> None:
        """full, own: see Axes."""
        self.request, self.full = request, full
        self._axes = Axes(request, full, own)
        self.context = Context(request.model, request.cluster, request.training)
        domain = () if self._axes.limited("tp") else (TP_IN_DOMAIN,)
        self._added = tuple(rules)
        self.rules: tuple[Rule, ...] = (*RULES, *domain, *self._added)
        self.rejected: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.dominated = self.hopeless = 0
        self.drawn = self.size = 0

    @cached_property
    def groups(self) -> Plans:
        """Legal process-group sizes, one row each; everything else still at its default."""
        v = self._axes.values
        size = prod(len(v[name]) for name in ("tp", "cp", "pp"))
        if size > MOST_COMBINATIONS:
            raise SpaceTooLarge("combinations of tp, cp and pp", size, MOST_COMBINATIONS)
        tp, cp, pp = (
            axis.ravel()
            for axis in np.meshgrid(
                *(np.array(v[name], dtype=np.int64) for name in ("tp", "cp", "pp")), indexing="ij"
            )
        )
        dp = np.maximum(self.request.cluster.accelerators // (tp * cp * pp), 1)
        plans = self._filter(
            Plans.build(
                tp=tp,
                cp=cp,
                pp=pp,
                dp=dp,
                stage_layers_table=self._axes.split_table,
                **self._axes.constant,
            ),
            "degrees",
        )
        batch = self.request.training.global_batch_size
        whole = batch % plans.dp == 0
        wanted = whole
        bounds = self.request.search.limits.get("dp")
        if bounds is not None:
            wanted = whole & np.array([within(bounds, int(d)) for d in plans.dp], dtype=np.bool_)
        self.rejected["batch_identity"] += int(np.count_nonzero(~whole))
        self.rejected["user_limit"] += int(np.count_nonzero(whole & ~wanted))
        plans = plans.take(wanted)
        # Each degree row with every expert grid and with sequence parallelism off and on.
        limited = "etp" in self.request.search.limits or self.request.model.moe is None
        etps = np.array(v["etp"] if limited else (1, 0), dtype=np.int64)
        size = len(plans) * len(etps) * len(v["ep"]) * len(v["sequence_parallel"])
        if size > MOST_COMBINATIONS:
            raise SpaceTooLarge("process-group sizes", size, MOST_COMBINATIONS)
        row, etp, ep, sharded = (
            axis.ravel()
            for axis in np.meshgrid(
                np.arange(len(plans.dp)),
                etps,
                np.array(v["ep"], dtype=np.int64),
                np.array([int(x) for x in v["sequence_parallel"]], dtype=np.int64),
                indexing="ij",
            )
        )
        plans = plans.take(row)
        as_dense = etp == 0
        # A switch without tensor parallelism, and etp = tp = 1, are no plans of their own.
        keep = ((sharded == 0) | (plans.tp > 1)) & (~as_dense | (plans.tp > 1))
        if v["sequence_parallel"] == (True,):
            sharded = np.where(plans.tp > 1, sharded, 0)
            keep = ~as_dense | (plans.tp > 1)
        plans = plans.with_columns(
            etp=np.where(as_dense, plans.tp, etp), ep=ep, sequence_parallel=sharded
        )
        return self._filter(plans.take(keep), "groups")

    @cached_property
    def layouts(self) -> dict[int, Plans]:
        """By pipeline size: legal ways to lay the layers on stages and chunks."""
        result = {}
        for pp in np.unique(self.groups.pp).tolist():
            rows = list(self._axes.layout_rows(pp))
            if not rows:
                self.rejected["user_limit"] += 1
            values = np.array(rows, dtype=np.int64).reshape(-1, len(LAYOUT_FIELDS)).T
            columns = dict(zip(LAYOUT_FIELDS, values, strict=True))
            table = self._axes.split_table
            plans = Plans.build(pp=pp, stage_layers_table=table, **columns)
            result[pp] = self._filter(plans, "layout")
        return result

    # Chunks -------------------------------------------------------------------------------

    def chunks(self, size: int, reach: Reach | None = None) -> Iterator[Plans]:
        """Legal candidates in chunks of about `size`, where they are many one schedule after the
        other.

        With one schedule per chunk the cost model has no closed forms to choose between; explicit
        stages come last, where `seen` leaves a chance for them.  Full recompute stands for all
        layers of a chunk (see _finish).  reach: what cannot fit is counted as `hopeless` instead;
        with most_s only what may be among the best is drawn, the most promising first, and
        nothing else is counted.  A chunk may be empty then.
        """
        micro = self._micro_batches()
        usual, explicit = (self._layout_table(None, named) for named in (False, True))
        layouts = usual.counts + explicit.counts
        per_layout = micro.counts * len(self._axes.options["zero_stage"])
        self.size = int((layouts * per_layout).sum())
        if self.size > MOST_CANDIDATES:
            raise SpaceTooLarge("candidates", self.size, MOST_CANDIDATES)
        per_layout = np.where(layouts > 0, per_layout, 0)
        group = np.arange(len(per_layout))
        for low, high in _batches(per_layout, MOST_CELLS):
            here = np.where((group >= low) & (group < high), per_layout, 0)
            most_s = reach.most_s if reach is not None else None
            cells, hopeless = self._cells(here, micro, uncounted=most_s is not None), None
            if reach is not None and cells.early and len(cells.plans.tp):
                fits = reach.fits(cells.plans)
                cells, hopeless = cells.where(fits), cells.where(~fits)
            tables = [usual]
            if reach is not None and most_s is not None:
                self.hopeless += 0 if hopeless is None else len(hopeless.plans.tp)
                cells, hopeless = cells.by_promise(reach.model), None
            elif (usual.counts[cells.group] * cells.counts).sum() > FEW_CANDIDATES:
                tables = [self._layout_table(schedule, False) for schedule in self._schedules()]
            self._count(cells, here, usual)
            for table in tables:
                yield from self._laid_out(cells, table, size, most_s)
            kept = self._hopeful(explicit, here)
            self._count(cells, here, kept)
            yield from self._laid_out(cells, kept, size, most_s)
            if hopeless is not None:
                for plans in chain(*(self._laid_out(hopeless, t, size) for t in (usual, kept))):
                    self.hopeless += len(plans)
                    self.dominated += self.other_layer_counts(plans)
                    yield plans.take(slice(0))  # nothing to price, but whoever waits is told

    def _cells(self, counts: IntArray, micro: _Ragged, uncounted: bool) -> _Cells:
        """Groups with each micro-batch and option, where some layout may make that legal.

        counts: of each group, before anything is left out; uncounted: nobody asks how many are.
        """
        options = self._axes.options
        group, position = _spread(counts)
        batch, option = np.divmod(position, len(options["zero_stage"]))
        plans = self.groups.take(group).with_columns(
            micro_batch_size=micro.columns["micro_batch_size"][micro.starts[group] + batch],
            **{name: column[option] for name, column in options.items()},
            **self._axes.switches.of(0),
        )
        legal = np.ones(len(group), dtype=np.bool_)
        refused: list[_Refused] = []

        def refuse(rule: Rule | None, rows: BoolArray) -> None:
            if rows.any():
                first = plans.take(np.argmax(rows, keepdims=True))
                refused.append((rule, first, np.bincount(group[rows], minlength=len(counts))))

        # A layout decides which layer counts there are, and so what is counted.
        early = uncounted or not self.every_layer_count
        if early:
            legal = ~self._dominated(plans)
            refuse(None, ~legal)
        if uncounted:
            legal &= plans.recompute_num_layers <= self._longest_chunk[group]
        still_open = {*LAYOUT_FIELDS, "recompute_num_layers", *self._axes.switches.columns}
        rules = []
        for rule in self._rules_of("plan"):
            if np.count_nonzero(legal) < WORTH_TAKING * len(legal):
                plans, group = plans.take(legal), group[legal]
                legal = np.ones(len(group), dtype=np.bool_)
            passes, read = judged(rule, self.context, plans)
            if read & still_open or not early:
                rules.append(rule)
            else:
                refuse(rule, legal & ~passes)
                legal = legal & passes
        found = np.bincount(group[legal], minlength=len(counts))
        rows = np.flatnonzero(found)
        return _Cells(
            plans.take(legal), rows, found[rows], early, tuple(rules), tuple(refused), np.zeros(0)
        )  # fmt: skip

    def _count(self, cells: _Cells, drawn: IntArray, layouts: _Ragged) -> None:
        """Count what is left out of cells with some layouts; drawn: cells of each group."""
        for rule, first, found in cells.refused:
            count = int((found * layouts.counts).sum())
            self.drawn += count
            if rule is None:
                self.dominated += count
            elif count:
                self._refuse(rule, first, np.ones(1, dtype=np.bool_), count)
        if self._axes.gpipe_dominated:
            twins = layouts.count_of(layouts.columns["schedule"] == _1F1B) * (self.groups.pp > 1)
            self.dominated += int((twins * drawn).sum())

    def _laid_out(
        self,
        cells: _Cells,
        layouts: _Ragged,
        size: int,
        most_s: Callable[[], float] | None = None,
    ) -> Iterator[Plans]:
        """Cells with each layout, all layouts of a group beside each other."""
        starts = np.cumsum(cells.counts) - cells.counts
        per_row = layouts.counts[cells.group] * cells.counts
        for low, high in _batches(per_row, size, FIRST_DRAWN if most_s else size):
            if most_s is not None:
                high = min(high, int(np.searchsorted(cells.least_s, most_s(), side="right")))
            row, position = _spread(per_row[low:high])
            if not len(row):
                return
            self.drawn += len(row)
            row += low
            layout, cell = np.divmod(position, cells.counts[row])
            layout += layouts.starts[cells.group[row]]
            plans = cells.plans.take(starts[row] + cell).with_columns(
                **{n: c[layout] if c.ndim else c for n, c in layouts.columns.items()}
            )
            plans = self._finish(plans, cells)
            if len(plans.tp):
                yield plans

    @property
    def every_layer_count(self) -> bool:
        """Whether recompute_num_layers is an axis of its own instead of the dominance rule."""
        return self._axes.every_layer_count

    @property
    def recompute_is_optional(self) -> bool:
        """Whether every plan with full recompute stands beside the same plan without."""
        return "none" in self._axes.values["recompute"]

    def other_layer_counts(self, plans: Plans) -> int:
        """Plans that those of full recompute of all layers stand for: with fewer of them."""
        if self.every_layer_count:
            return 0
        full = plans.recompute == _FULL
        return int((np.maximum(plans.recompute_num_layers, 1) - 1)[full].sum())

    def _finish(self, plans: Plans, cells: _Cells) -> Plans:
        """Drop dominated and illegal rows; give full recompute its layers."""
        layers = self.chunk_layers(plans)
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
        if not cells.early:
            keep = ~self._dominated(plans)
            self.dominated += int(np.count_nonzero(~keep))
            plans = plans.take(keep)
        if not self._axes.switches.columns:
            return plans.take(self._legal(plans, "plan", cells.rules))
        found, refused = settled(
            self._axes.switches, cells.rules, self.context, plans, self._at_rest
        )
        for each, rows in refused:
            self._refuse(each, plans, rows)
        return found

    def _dominated(self, plans: Plans) -> BoolArray:
        """Plans that another one stands for, whatever their layout."""
        if self.full:
            return np.zeros(len(plans), dtype=np.bool_)
        return self._redundant_zero(plans) | self._idle(plans)

    def _redundant_zero(self, plans: Plans) -> BoolArray:
        """ZeRO stages beyond the first allowed one >= 1 where nothing can be sharded."""
        stages = [int(z) for z in self._axes.values["zero_stage"]]
        kept = 1 if 1 in stages else min(stages)
        alone = plans.dp * plans.cp == 1
        if self.request.model.moe is not None:
            alone &= plans.tp == plans.etp * plans.ep
        return np.asarray(alone & (plans.zero_stage != kept))

    def _idle(self, plans: Plans) -> BoolArray:
        """Plans that differ from another one only in a field without effect."""
        idle = np.zeros(len(plans), dtype=np.bool_)
        for field, condition in self._without_effect(plans).items():
            if field not in self._axes.switches.columns:
                first = encoded(field, self._axes.values[field][0])
                idle |= condition & (getattr(plans, field) != first)
        return idle

    def _at_rest(self, plans: Plans) -> Plans:
        """Plans whose settled switches have their first value where they have no effect."""
        columns = {
            field: np.where(
                condition, encoded(field, self._axes.values[field][0]), getattr(plans, field)
            )
            for field, condition in self._without_effect(plans).items()
            if field in self._axes.switches.columns
        }
        return plans.with_columns(**columns) if columns else plans

    def _without_effect(self, plans: Plans) -> dict[str, BoolArray]:
        """By field with several values: where they are all the same."""
        found = {
            "cp_kind": plans.cp == 1,
            "dynamic_cp": (plans.cp == 1) | (not self.request.training.packs),
            "rank_order": plans.pp == 1,
            "moe_dispatcher": plans.ep == 1,
            "overlap_tp": plans.tp == 1,
            "overlap_ep": plans.ep == 1,
            "dp_shard": (plans.zero_stage == 0) | (plans.dp_shard >= plans.dp * plans.cp),
        }
        return {field: at for field, at in found.items() if len(self._axes.values[field]) > 1}

    def chunk_layers(self, plans: Plans) -> IntArray:
        """Layers of the longest chunk of each plan: the most full recompute can redo."""
        layers = self.request.model.num_layers
        middle, _ = middle_layers(layers, plans)
        larger = np.maximum(np.maximum(plans.first_stage_layers, plans.last_stage_layers), middle)
        # A longer end carries its surplus in one chunk.
        per_chunk = middle // plans.vpp + np.maximum(larger - middle, 0)
        per_chunk = np.where(plans.pp == 1, layers, per_chunk)
        count = virtual_stage_count(plans)
        longest = np.where(is_loop(plans.schedule), per_chunk, layers // count)
        if plans.stage_layers_table:
            most = plans.of_stage_layers(max)
            each = np.where(plans.of_stage_layers(len) == count, most, most // plans.vpp)
            longest = np.where(plans.stage_layers > 0, each, longest)
        return longest

    @cached_property
    def _longest_chunk(self) -> IntArray:
        """Layers of the longest chunk in any layout of each group."""
        pps, place = np.unique(self.groups.pp, return_inverse=True)
        longest = [int(self.chunk_layers(self.layouts[pp]).max(initial=0)) for pp in pps.tolist()]
        return np.array(longest, dtype=np.int64)[place]

    def _schedules(self) -> list[int]:
        """Codes of the schedules any layout uses."""
        used = {int(c) for plans in self.layouts.values() for c in np.unique(plans.schedule)}
        return sorted(used)

    @cached_property
    def _prospects(self) -> Prospects | None:
        """None where no layout is left out: the whole space is asked for, or a plan's own."""
        axes = self._axes
        if self.full or not axes.deals or axes.own is not None:
            return None
        return Prospects(self.groups, axes.dealt_share)

    def seen(self, plans: Plans, seconds: FloatArray) -> None:
        """Take note of what plans that fit took: where usual splits are slow, dealing will not
        save them.
        """
        if self._prospects is not None:
            self._prospects.seen(plans, seconds)

    def _hopeful(self, layouts: _Ragged, drawn: IntArray) -> _Ragged:
        """Layouts by group, none where dealt layers cannot become as fast as the best so far.

        drawn: cells of each group.
        """
        if self._prospects is None:
            return layouts
        kept = np.where(self._prospects.hopeful(), layouts.counts, 0)
        left_out = int(((layouts.counts - kept) * drawn).sum())
        self.dominated += left_out
        self.drawn += left_out
        return replace(layouts, counts=kept)

    def _layout_table(self, schedule: int | None, explicit: bool) -> _Ragged:
        """Layouts of one schedule, or of all, for each group."""
        start = 0
        offsets: dict[int, tuple[int, int]] = {}
        columns: dict[str, list[IntArray]] = {n: [] for n in LAYOUT_FIELDS}
        for pp, plans in self.layouts.items():
            chosen = (plans.stage_layers > 0) == explicit
            own = plans.take(chosen if schedule is None else chosen & (plans.schedule == schedule))
            offsets[pp] = (start, len(own.vpp))
            start += len(own.vpp)
            for name, parts in columns.items():
                parts.append(getattr(own, name))
        pps = self.groups.pp.tolist()
        starts = np.array([offsets[pp][0] for pp in pps], dtype=np.int64)
        counts = np.array([offsets[pp][1] for pp in pps], dtype=np.int64)
        empty = np.zeros(0, dtype=np.int64)
        table = {n: np.concatenate(c) if c else empty for n, c in columns.items()}
        if schedule is not None:
            table["schedule"] = np.asarray(schedule)
        return _Ragged(table, starts, counts)

    def _micro_batches(self) -> _Ragged:
        """Micro-batches that divide the data-parallel share of each group."""
        batch = self.request.training.global_batch_size
        allowed = set(self._axes.values["micro_batch_size"])
        flat: list[int] = []
        places: dict[int, tuple[int, int]] = {}
        sizes = self.groups.dp.tolist()
        for d in sorted(set(sizes)):
            own = [b for b in divisors(batch // d) if b in allowed]
            self.rejected["batch_identity"] += not own
            places[d] = (len(flat), len(own))
            flat.extend(own)
        starts = np.array([places[d][0] for d in sizes], dtype=np.int64)
        counts = np.array([places[d][1] for d in sizes], dtype=np.int64)
        values = np.array(flat or [1], dtype=np.int64)
        return _Ragged({"micro_batch_size": values}, starts, counts)

    @property
    def deals(self) -> bool:
        """Whether layers may fall on stages as they are dealt out."""
        return self._axes.deals

    def legal(self, rows: Sequence[ParallelPlan], table: tuple[tuple[int, ...], ...] = ()) -> Plans:
        """Whole plans that every rule and limit passes; their table begins with the space's own.

        table: another that begins so.
        """
        bounds = self.request.search.limits.get("recompute_num_layers")
        if bounds is not None:
            rows = [
                row
                for row in rows
                if row.recompute != "full" or within(bounds, row.recompute_num_layers)
            ]
        plans = Plans.from_rows(rows, table or self._axes.split_table)
        return plans.take(passing(self.rules, self.context, plans)) if rows else plans

    def accepts(self, plans: Plans) -> BoolArray:
        """Which of whole plans that RULES pass a framework's rules pass too."""
        return self._legal(plans, "plan") if self._added else np.ones(len(plans), dtype=np.bool_)

    def _rules_of(self, level: str) -> list[Rule]:
        rules = [rule for rule in self.rules if rule.level == level]
        return [*rules, *self._late] if level == "plan" else rules

    @cached_property
    def _late(self) -> dict[Rule, set[str]]:
        """Rules of process groups and layouts, by what they read that only whole plans have."""
        late = {*self._axes.options, *self._axes.switches.columns, "micro_batch_size"}
        plan = Plans.of(ParallelPlan())
        read = {
            rule: late & judged(rule, self.context, plan)[1]
            for rule in self.rules
            if rule.level != "plan"
        }
        return {rule: fields for rule, fields in read.items() if fields}

    def _passes(self, rule: Rule, plans: Plans, level: str) -> BoolArray:
        """Where plans pass a rule, with some value at least of what it reads and is still open."""
        open_fields = sorted(self._late.get(rule, ())) if level != "plan" else []
        if not open_fields:
            return rule.legal(self.context, plans)
        options = self._axes.options
        if not options.keys() >= set(open_fields):
            return np.ones((), dtype=np.bool_)
        values = np.unique(np.stack([options[name] for name in open_fields]), axis=1)
        passes = [
            rule.legal(
                self.context, plans.with_columns(**dict(zip(open_fields, each, strict=True)))
            )
            for each in values.T
        ]
        return np.asarray(np.logical_or.reduce(passes), dtype=np.bool_)

    def _filter(self, plans: Plans, level: str) -> Plans:
        """The plans every rule of a level passes."""
        legal = self._legal(plans, level)
        return plans if legal.all() else plans.take(legal)

    def _legal(self, plans: Plans, level: str, rules: Sequence[Rule] | None = None) -> BoolArray:
        """Which plans every rule of a level passes, or of these; others are counted by their first
        reason.
        """
        n = len(plans.vpp) if level == "layout" else len(plans.tp)
        legal = np.ones(n, dtype=np.bool_)
        for rule in self._rules_of(level) if rules is None else rules:
            passes = legal & self._passes(rule, plans, level)
            self._refuse(rule, plans, legal & ~passes)
            legal = passes
        return legal

    def _refuse(self, rule: Rule, plans: Plans, refused: BoolArray, each: int = 1) -> None:
        """Count what a rule refuses, and keep its sentence for the first of them.

        each: how many plans a row stands for.
        """
        if refused.any():
            self.rejected[rule.code] += each * int(np.count_nonzero(refused))
            if rule.code not in self.examples:
                self.examples[rule.code] = self._explained(rule, plans, refused)

    def _explained(self, rule: Rule, plans: Plans, refused: BoolArray) -> str:
        """The sentence of a rule for the first plan it refuses (columns still open: defaults)."""
        try:
            plan = plans.row(int(np.argmax(refused)))
        except ValidationError:
            return ""  # a combination that is not even a plan, such as vpp 2 on 1F1B
        return rule.explain(self.context, plan)

    # What the answer prints ---------------------------------------------------------------

    def axes(self) -> tuple[SpaceAxis, ...]:
        """The space as a table: axis, values, count."""
        v = self._axes.values
        notes = {
            "tp": "divisors of the accelerators, inside the fastest domain",
            "cp": "divisors of the accelerators",
            "pp": "divisors of the accelerators, at most one layer per stage",
            "ep": "divisors of the experts",
            "etp": "1, or tp",
            "zero_stage": "one where nothing is sharded",
            "micro_batch_size": "divisors of each pipeline's share of the batch",
        }
        rows = [
            SpaceAxis(axis=name, values=v[name], count=len(v[name]), note=notes.get(name, ""))
            for name in (*GROUP_FIELDS, "zero_stage", "micro_batch_size")
        ]
        groups = self.groups
        dps = tuple(int(d) for d in np.unique(groups.dp))
        rows.append(SpaceAxis(axis="dp", values=dps, count=len(dps), note="accelerators left over"))
        schedules = tuple(s for s in v["schedule"])
        note = "gpipe dominated by 1f1b" if {"gpipe", "1f1b"} <= set(schedules) else ""
        rows.append(SpaceAxis(axis="schedule", values=schedules, count=len(schedules), note=note))
        layouts = self.layouts.values()
        vpps = tuple(sorted({int(x) for p in layouts for x in np.atleast_1d(p.vpp)}))
        rows.append(
            SpaceAxis(axis="vpp", values=vpps, count=len(vpps), note="divisors of a stage's layers")
        )
        splits = tuple(
            sorted(
                {
                    (int(f), int(last))
                    for p in layouts
                    for f, last in zip(p.first_stage_layers, p.last_stage_layers, strict=True)
                }
            )
        )
        lighter = self._axes.most_layers_lighter
        note = f"(first, last) stage layers, 0 as the middle; ends up to {lighter} layers lighter"
        rows.append(
            SpaceAxis(axis="first/last_stage_layers", values=splits, count=len(splits), note=note)
        )
        dealt = self._axes.split_table
        if dealt:
            note = "layers by stage, or virtual stage; by time for the best plans"
            rows.append(SpaceAxis(axis="stage_layers", values=dealt, count=len(dealt), note=note))
        kinds = tuple(v["recompute"])
        modules = tuple("+".join(module_names(bits)) for bits in self._axes.selective_sets)
        rows.append(
            SpaceAxis(
                axis="recompute",
                values=kinds,
                count=len(kinds),
                note=f"selective: {', '.join(modules)}; full: fewest layers that fit, and all",
            )
        )
        for name, values in v.items():
            if name not in SEARCHED:
                rows.append(SpaceAxis(axis=name, values=values, count=len(values)))
        return tuple(rows)


def _spread(counts: IntArray) -> tuple[IntArray, IntArray]:
    """Rows repeated so often: the row of each, and which of its repeats that is."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)


def _batches(
    counts: IntArray, size: int, first: int = MOST_CANDIDATES
) -> Iterator[tuple[int, int]]:
    """Consecutive row ranges with about `size` candidates each (at least one row).

    first: of the first range; each later one may have twice as many as that before.
    """
    ends, low, begun = np.cumsum(counts), 0, 0
    while low < len(counts):
        high = max(int(np.searchsorted(ends, begun + min(first, size), side="right")), low + 1)
        if ends[high - 1] > begun:
            yield low, high
        low, begun, first = high, int(ends[high - 1]), 2 * first
