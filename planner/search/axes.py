"""The axes of the search space: which values each plan field may take.

Values come from the model and cluster, narrowed or replaced by the request's limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.flops import layer_matrix_parameters
from cost_models.layers import layers_of
from cost_models.plans import (
    FIELDS,
    RECOMPUTE_MODULES,
    VOCABULARIES,
    IntArray,
    ParallelPlan,
    code,
)
from cost_models.runtimes import RUNTIMES
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import PipelineSchedule, Placement
from planner.documents.request import Bounds, PlanRequest
from planner.search.rough_layouts import RoughLayout, rough_layouts

BoolArray = NDArray[np.bool_]
# Ends may be lighter than a middle stage by what the head weighs in layers, at most this many.
MOST_LAYERS_LIGHTER = 4
_FULL = code("recompute", "full")
# Fields whose default may be widened by `search.open`, and the values that opens.
_OPENED: dict[str, tuple[Any, ...]] = {
    "offload_optimizer": (False, True),
    "offload_activations": (False, True),
    "rank_order": VOCABULARIES["rank_order"],
    "cp_kind": VOCABULARIES["cp_kind"],
    "dynamic_cp": (False, True),
    "overlap_tp": (False, True),
    "overlap_ep": (False, True),
    "moe_dispatcher": VOCABULARIES["moe_dispatcher"],
}
# Values of switches, each never slower and never more memory than those after it (see Space).
SWITCHES: dict[str, tuple[Any, ...]] = {
    "compile": (True, False),
    "cross_entropy": ("fused", "unfused"),
    "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False),
    "overlap_tp": (True, False),
    "overlap_ep": (True, False),
    "moe_dispatcher": ("hybridep", "deepep", "alltoall"),
}
# What says nothing of a model without experts.
EXPERT_FIELDS = ("moe_dispatcher", "overlap_ep")
GROUP_FIELDS = ("tp", "cp", "pp", "ep", "etp", "sequence_parallel")
LAYOUT_FIELDS = ("schedule", "vpp", "first_stage_layers", "last_stage_layers", "stage_layers")
SEARCHED = (
    *GROUP_FIELDS, *LAYOUT_FIELDS, "dp", "zero_stage", "micro_batch_size", "recompute",
    "recompute_modules", "recompute_num_layers",
)  # fmt: skip


# Bounds on the work of one request: rows of a table of axes, and candidates in all.
MOST_COMBINATIONS = 4_000_000
MOST_OPTIONS = 10_000
MOST_CANDIDATES = 50_000_000


class SpaceTooLarge(ValueError):
    """A request whose limits leave more candidates than one search may price."""

    def __init__(self, what: str, count: int, most: int) -> None:
        self._given = what, count, most
        super().__init__(
            f"the space is too large: {count:,} {what}, at most {most:,}; "
            "fix or bound more plan fields"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process."""
        return type(self), self._given


@dataclass(frozen=True)
class Switches:
    """Combinations of switches, the best first.

    columns: values by field, as they stand in Plans; outdoes: whether the first combination is
    at least as good in every switch as the second; shape (combinations, combinations).
    """

    columns: dict[str, IntArray]
    outdoes: BoolArray

    def of(self, combination: int) -> dict[str, int]:
        """The value of every switch."""
        return {field: int(values[combination]) for field, values in self.columns.items()}


class Axes:
    """The values of every axis for one request.

    full: keep what dominance rules leave out.  own: a plan whose values stand beside the usual
    ones on every axis, so that the plans around it are in the space.
    """

    def __init__(
        self, request: PlanRequest, full: bool = False, own: ParallelPlan | None = None
    ) -> None:
        self.request, self.full, self.own = request, full, own

    def limited(self, field: str) -> bool:
        """Whether the request says something about a field."""
        return field in self.request.search.limits

    def allowed(self, field: str, values: Iterable[Any]) -> tuple[Any, ...]:
        """The values a request's limits leave; values it names itself replace the default."""
        bounds = self.request.search.limits.get(field)
        if bounds is None:
            return tuple(values)
        if bounds.values is not None:
            return tuple(_plain(field, v) for v in bounds.values)
        return tuple(v for v in values if within(bounds, v))

    @cached_property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """Allowed values of every plan field that is not derived from others."""
        model, world = self.request.model, self.request.cluster.accelerators
        degrees = divisors(world)
        moe = model.moe is not None
        chosen: dict[str, tuple[Any, ...]] = {
            "tp": degrees,
            "cp": degrees,
            "pp": tuple(p for p in degrees if p <= model.num_layers) or (1,),
            "ep": divisors(model.moe.num_experts) if model.moe is not None else (1,),
            "etp": degrees if moe else (1,),
            "sequence_parallel": (False, True),
            "zero_stage": (0, 1, 2, 3),
            "schedule": tuple(name for name, s in SCHEDULES.items() if s.synchronous),
            "micro_batch_size": divisors(self.request.training.global_batch_size),
            "recompute": ("none", "selective", "full"),
        }
        opened: dict[str, tuple[Any, ...]] = {
            n: _OPENED[n] for n in self.request.search.open if n in _OPENED
        }
        default = ParallelPlan()
        for field in FIELDS:
            # Derived, or values of the layout and recompute axes (layout_rows, _recompute_rows).
            if field == "dp" or (field in LAYOUT_FIELDS and field != "schedule"):
                continue
            if field in ("recompute_modules", "recompute_num_layers", "recompute_layers"):
                continue
            values = chosen.get(field) or opened.get(field) or (getattr(default, field),)
            if self.own is not None and getattr(self.own, field) not in values:
                values = (*values, getattr(self.own, field))
            chosen[field] = self.allowed(field, values)
        return chosen

    @cached_property
    def constant(self) -> dict[str, int]:
        """Fields outside the search with one value, as they stand in a Plans column."""
        return {
            field: encoded(field, values[0])
            for field, values in self.values.items()
            if field not in SEARCHED and len(values) == 1
        }

    @cached_property
    def explicit_splits(self) -> tuple[tuple[int, ...], ...]:
        """The stage layers a request names itself; () among them leaves the usual ones in."""
        bounds = self.request.search.limits.get("stage_layers")
        if bounds is None or bounds.values is None:
            return (self.own.stage_layers,) if self.own and self.own.stage_layers else ()
        return tuple(tuple(int(n) for n in split) for split in bounds.values if split)  # type: ignore[union-attr]

    @cached_property
    def split_table(self) -> tuple[tuple[int, ...], ...]:
        """Explicit stage layers: what the request names, then what is dealt out here."""
        dealt = (found.layers for layouts in self._dealt.values() for found in layouts)
        return tuple(dict.fromkeys((*self.explicit_splits, *dealt)))

    def dealt_share(self, pp: int) -> float:
        """The least that the busiest rank does in layers dealt out, of that in the usual splits."""
        return min((found.share for found in self._dealt.get(pp, ())), default=1.0)

    @property
    def deals(self) -> bool:
        """Whether layers may fall on stages as they are dealt out, whatever the usual splits."""
        return not any(
            map(self.limited, ("first_stage_layers", "last_stage_layers", "stage_layers"))
        )

    @cached_property
    def _dealt(self) -> dict[int, tuple[RoughLayout, ...]]:
        """By pipeline size: layers dealt out by FLOP, where no usual split is as even.

        Where all layers are alike the usual splits are, if there are any.
        """
        model, training = self.request.model, self.request.training
        several = len(layers_of(model).kinds) > 1
        found = {}
        for pp in self.values["pp"] if self.deals else ():
            usual = self._usual_ends(pp)
            if pp == 1 or not (several or (model.num_layers % pp and len(usual) == 1)):
                continue
            layouts = rough_layouts(model, training, pp, self._shapes(pp), tuple(usual))
            found[pp] = tuple(layouts)
        return found

    def _shapes(self, pp: int) -> list[tuple[Placement, int]]:
        """Placements and chunks per rank that the schedules to be tried have."""
        fullest = divisors(-(-self.request.model.num_layers // pp))
        shapes = []
        for name in self.values["schedule"]:
            schedule = SCHEDULES[name]
            if schedule.placement == "two-way":
                continue  # both directions hold a copy of the same even stages
            counts = schedule.chunk_counts or tuple(v for v in fullest if v > 1)
            shapes += [(schedule.placement, v) for v in counts if self._is_allowed("vpp", v)]
        most = self.request.model.num_layers
        return [shape for shape in dict.fromkeys(shapes) if pp * shape[1] <= most]

    @property
    def _usual_splits(self) -> bool:
        """Whether first, middle and last stages are tried, beside explicit splits or alone."""
        bounds = self.request.search.limits.get("stage_layers")
        return bounds is None or bounds.values is None or () in bounds.values

    def layout_rows(self, pp: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(schedule, vpp, first, last, 1 + place in split_table or 0) for one pipeline."""
        names = self.values["schedule"]
        if pp == 1 and self._usual_splits:
            # Without a pipeline there is no schedule to choose.
            plain = [name for name in names if 1 in SCHEDULES[name].chunk_counts]
            if plain and self._is_allowed("vpp", 1):
                yield (code("schedule", "1f1b" if "1f1b" in plain else plain[0]), 1, 0, 0, 0)
            return
        for first, last, explicit, divisible in self._splits(pp):
            for name in names:
                if name == "gpipe" and self.gpipe_dominated:
                    continue
                schedule = SCHEDULES[name]
                uneven = bool(first or last or explicit)
                if uneven and schedule.placement != "loop":
                    continue  # waves and two directions split evenly, see virtual_stages
                for v in self._chunk_counts(schedule, divisible):
                    yield (code("schedule", name), v, first, last, explicit)
        for placement, v, sizes, _ in self._dealt.get(pp, ()):
            for name in names:
                schedule = SCHEDULES[name]
                if name == "gpipe" and self.gpipe_dominated:
                    continue
                counts = schedule.chunk_counts
                if schedule.placement == placement and (v in counts if counts else v > 1):
                    yield code("schedule", name), v, 0, 0, 1 + self.split_table.index(sizes)

    def _chunk_counts(self, schedule: PipelineSchedule, divisible: int) -> Iterable[int]:
        """Chunks per rank to try for a schedule; `divisible`: layers its stages share out."""
        if schedule.chunk_counts:
            return (v for v in schedule.chunk_counts if self._is_allowed("vpp", v))
        several = [v for v in divisors(divisible) if v > 1]
        return (v for v in self.allowed("vpp", several) if v > 1)

    @property
    def gpipe_dominated(self) -> bool:
        """Whether gpipe is left out beside 1f1b."""
        if self.own is not None and self.own.schedule == "gpipe":
            return False
        return not self.full and {"gpipe", "1f1b"} <= set(self.values["schedule"])

    def _is_allowed(self, field: str, value: int) -> bool:
        bounds = self.request.search.limits.get(field)
        return bounds is None or within(bounds, value)

    def _splits(self, pp: int) -> Iterator[tuple[int, int, int, int]]:
        """(first, last, explicit, what vpp divides): the splits to try for one pipeline."""
        layers = self.request.model.num_layers
        for k, split in enumerate(self.explicit_splits):
            if len(split) == pp:
                yield 0, 0, k + 1, gcd(*split)
        if not self._usual_splits:
            return
        for first, last in self._ends(pp):
            count = pp - (first > 0) - (last > 0)
            rest = layers - first - last
            yield first, last, 0, rest // count if count else max(first, last)

    def _ends(self, pp: int) -> list[tuple[int, int]]:
        """(first, last) stage layers to try."""
        layers = self.request.model.num_layers
        usual = self._usual_ends(pp)
        if self.limited("first_stage_layers") or self.limited("last_stage_layers"):
            firsts = self._allowed_layers("first_stage_layers", [first for first, _ in usual])
            lasts = self._allowed_layers("last_stage_layers", [last for _, last in usual])
            return [(f, last) for f in firsts for last in lasts if f + last <= layers]
        if self.own is not None and self.own.pp == pp > 1:
            usual.append((self.own.first_stage_layers, self.own.last_stage_layers))
        return list(dict.fromkeys(usual))

    def _allowed_layers(self, field: str, usual: list[int]) -> tuple[int, ...]:
        """The layers of one end: the usual ones, or all that a limit on this field leaves."""
        every = range(self.request.model.num_layers) if self.limited(field) else sorted(set(usual))
        return self.allowed(field, every)

    def _usual_ends(self, pp: int) -> list[tuple[int, int]]:
        """Even, and ends lighter by what the head weighs."""
        layers = self.request.model.num_layers
        ends_of = [(0, 0)]
        lighter = self.most_layers_lighter
        for deficit in range(1, 2 * lighter + 1):
            if (layers + deficit) % pp:
                continue
            middle = (layers + deficit) // pp
            for first in range(max(0, deficit - lighter), min(deficit, lighter) + 1):
                ends = (middle - first, middle - deficit + first)
                if min(ends) < 1:
                    continue
                if pp > 2:
                    ends_of.append((ends[0] if first else 0, ends[1] if deficit > first else 0))
                elif ends[0] != ends[1]:  # of two stages, equal ends are the even split
                    ends_of.append(ends)
        return ends_of

    @cached_property
    def most_layers_lighter(self) -> int:
        """Layers an end stage may have fewer: what the head weighs, 1 to MOST_LAYERS_LIGHTER."""
        model = self.request.model
        head = model.hidden_size * model.vocab_size
        layers = layers_of(model)
        layer = layer_matrix_parameters(model, layers.kinds[layers.order[-1]])
        return min(max(ceil(head / layer), 1), MOST_LAYERS_LIGHTER)

    @cached_property
    def options(self) -> dict[str, IntArray]:
        """The innermost axes as one table of columns: ZeRO stage, recompute, what else is open."""
        open_fields = [
            field
            for field, values in self.values.items()
            if field not in SEARCHED and len(values) != 1 and field not in self.switches.columns
        ]
        axes: list[list[dict[str, int]]] = [
            list(self._zero_rows()),
            list(self._recompute_rows()),
            *([{f: encoded(f, v)} for v in self.values[f]] for f in open_fields),
        ]
        size = prod(len(axis) for axis in axes)
        if size > MOST_OPTIONS:
            raise SpaceTooLarge("combinations of options", size, MOST_OPTIONS)
        rows: list[dict[str, int]] = [{}]
        for axis in axes:
            rows = [{**row, **choice} for row in rows for choice in axis]
        names: tuple[str, ...] = (
            "zero_stage", "recompute", "recompute_modules", "recompute_num_layers",
        )  # fmt: skip
        if any("reshard_after_forward" in row for row in rows):
            names = (*names, "reshard_after_forward")
        return {
            name: np.array([row.get(name, 0) for row in rows], dtype=np.int64)
            for name in (*names, *open_fields)
        }

    @cached_property
    def switches(self) -> Switches:
        """The switches that are open, which are settled plan by plan instead of searched.

        None where the whole space is asked for, or a plan's own values count.
        """
        settled = self.full or self.own is not None
        chains = {
            field: [value for value in chain if value in self.values[field]]
            for field, chain in SWITCHES.items()
            if not settled and set(self.values[field]) <= set(chain)
        }
        chains = {field: chain for field, chain in chains.items() if len(chain) > 1}
        places = list(product(*(range(len(chain)) for chain in chains.values())))
        places.sort(key=sum)
        ranks = np.array(places, dtype=np.int64).reshape(len(places), len(chains))
        no_worse: BoolArray = np.all(ranks[:, None] <= ranks[None, :], axis=2)
        return Switches(
            columns={
                field: np.array([encoded(field, value) for value in chain])[ranks[:, i]]
                for i, (field, chain) in enumerate(chains.items())
            },
            outdoes=np.asarray(no_worse & ~no_worse.T),
        )

    def _zero_rows(self) -> Iterator[dict[str, int]]:
        """ZeRO stages; stage 3 of a runtime that can keep gathered weights, both ways."""
        keep = any(RUNTIMES[name].keeps_gathered_weights for name in self.values["runtime"])
        keeps = keep and not self.limited("reshard_after_forward")
        for stage in self.values["zero_stage"]:
            row = {"zero_stage": int(stage)}
            if not keeps:
                yield row
                continue
            yield {**row, "reshard_after_forward": 1}
            if stage == 3:
                yield {**row, "reshard_after_forward": 0}

    def _recompute_rows(self) -> Iterator[dict[str, int]]:
        """none; each selective set; full with n layers (-1: all of the chunk, -2: any count)."""
        limits = self.request.search.limits
        for name in self.values["recompute"]:
            if name == "none":
                yield {"recompute": 0}
            elif name == "selective":
                for bits in self.selective_sets:
                    yield {"recompute": 1, "recompute_modules": bits}
            elif "recompute_num_layers" in limits:
                counts = range(1, self.request.model.num_layers + 1)
                for n in self.allowed("recompute_num_layers", counts):
                    if n >= 1:
                        yield {"recompute": _FULL, "recompute_num_layers": int(n)}
            elif self.every_layer_count:
                for n in range(1, self.request.model.num_layers + 1):
                    yield {"recompute": _FULL, "recompute_num_layers": n}
            else:
                yield {"recompute": _FULL, "recompute_num_layers": 0}
                if self.own is not None and self.own.recompute_num_layers:
                    yield {
                        "recompute": _FULL,
                        "recompute_num_layers": self.own.recompute_num_layers,
                    }

    @property
    def every_layer_count(self) -> bool:
        """Whether each recompute_num_layers is tried, for lack of a rule that settles it."""
        values = self.values
        return (
            self.full
            or self.limited("recompute_num_layers")
            or True in values["offload_activations"]
            or "uniform" in values["recompute_method"]
        )

    @cached_property
    def selective_sets(self) -> tuple[int, ...]:
        """Module sets of selective recompute: a light one (cheap to redo) and a heavy one."""
        bounds = self.request.search.limits.get("recompute_modules")
        if bounds is not None and bounds.values is not None:
            rows = [v if isinstance(v, tuple) else (v,) for v in bounds.values]
            return tuple(_bits(row) for row in rows)
        model = self.request.model
        if "unfused" in self.values["attention_kernel"]:
            return self._with_own((_bits(("core_attn",)),))
        light = ["layernorm"]
        if model.mla is not None:
            light.append("mla_up_proj")
        if model.moe is not None:
            light.append("moe_act")
        heavy = [*light, "mlp"] if "dense" in model.feed_forwards else list(light)
        if model.moe is not None:
            heavy.append("moe")
        return self._with_own((_bits(light), _bits(heavy)))

    def _with_own(self, sets: tuple[int, ...]) -> tuple[int, ...]:
        bits = self.own.recompute_module_bits if self.own is not None else 0
        return sets if bits in (0, *sets) else (*sets, bits)


def divisors(n: int) -> tuple[int, ...]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def within(bounds: Bounds, value: Any) -> bool:
    """Whether a value respects the bounds of a request."""
    if bounds.values is not None:
        return value in bounds.values
    low = bounds.min if bounds.min is not None else 0
    return low <= int(value) <= (bounds.max if bounds.max is not None else value)


def _plain(field: str, value: Any) -> Any:
    """A limit's value in the type of the plan field."""
    default = getattr(ParallelPlan(), field)
    return bool(value) if isinstance(default, bool) else value


def encoded(field: str, value: Any) -> int:
    """The integer a Plans column holds for a value."""
    if field in VOCABULARIES:
        return code(field, value)
    return int(value)


def _bits(modules: Iterable[Any]) -> int:
    return sum(1 << RECOMPUTE_MODULES.index(m) for m in modules)


def module_names(bits: int) -> tuple[str, ...]:
    """The recompute modules of a bit set."""
    return tuple(m for k, m in enumerate(RECOMPUTE_MODULES) if bits >> k & 1)
