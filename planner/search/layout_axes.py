"""The ways to lay layers on pipeline stages: schedules, chunks per rank, uneven splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import ceil, gcd

from cost_models.flops import layer_matrix_parameters
from cost_models.layers import layers_of
from cost_models.plans import code
from cost_models.schedules import SCHEDULES
from cost_models.schedules.base import PipelineSchedule, Placement
from planner.search.axes import Axes, divisors
from planner.search.rough_layouts import RoughLayout, rough_layouts

# Most layers by which an end may be lighter than a middle stage, to make up for the head.
MAX_LAYERS_LIGHTER = 4


class LayoutAxes:
    """The values of the fields in LAYOUT_FIELDS, by pipeline size."""

    def __init__(self, axes: Axes) -> None:
        self._axes = axes

    @cached_property
    def explicit_splits(self) -> tuple[tuple[int, ...], ...]:
        """The stage layers that a request names itself; () among them keeps the usual splits."""
        bounds = self._axes.request.search.limits.get("stage_layers")
        if bounds is None or bounds.values is None:
            return (
                (self._axes.own.stage_layers,)
                if self._axes.own and self._axes.own.stage_layers
                else ()
            )
        return tuple(tuple(int(n) for n in split) for split in bounds.values if split)  # type: ignore[union-attr]

    @cached_property
    def split_table(self) -> tuple[tuple[int, ...], ...]:
        """Explicit stage layers: those that the request names, then those partitioned here."""
        balanced = (
            layout.layers for layouts in self._balanced_layouts.values() for layout in layouts
        )
        return tuple(dict.fromkeys((*self.explicit_splits, *balanced)))

    def least_partition_share(self, pp: int) -> float:
        """The work a micro-batch adds in the best balanced layout over the best usual split's."""
        return min((layout.share for layout in self._balanced_layouts.get(pp, ())), default=1.0)

    @property
    def free_partition(self) -> bool:
        """Whether layers may be partitioned freely, since the request limits no stage's layers."""
        return not any(
            map(self._axes.limited, ("first_stage_layers", "last_stage_layers", "stage_layers"))
        )

    @cached_property
    def _balanced_layouts(self) -> dict[int, tuple[RoughLayout, ...]]:
        """Layouts balanced by FLOP, by pipeline size, where no usual split is as even.

        Where all layers are alike the usual splits are as even, if there are any.
        """
        model, training = self._axes.request.model, self._axes.request.training
        mixed = len(layers_of(model).kinds) > 1
        by_pp = {}
        for pp in self._axes.values["pp"] if self.free_partition else ():
            ends = self._usual_ends(pp)
            if pp == 1 or not (mixed or (model.num_layers % pp and len(ends) == 1)):
                continue
            layouts = rough_layouts(model, training, pp, self._shapes(pp), tuple(ends))
            by_pp[pp] = tuple(layouts)
        return by_pp

    def _shapes(self, pp: int) -> list[tuple[Placement, int]]:
        """Placements and chunks per rank of the schedules to be tried."""
        fullest = divisors(-(-self._axes.request.model.num_layers // pp))
        shapes = []
        for name in self._axes.values["schedule"]:
            schedule = SCHEDULES[name]
            if schedule.placement == "two-way":
                continue  # both directions hold a copy of the same even stages
            counts = schedule.chunk_counts or tuple(v for v in fullest if v > 1)
            shapes += [(schedule.placement, v) for v in counts if self._axes.allows("vpp", v)]
        limit = self._axes.request.model.num_layers
        return [shape for shape in dict.fromkeys(shapes) if pp * shape[1] <= limit]

    @property
    def _usual_splits(self) -> bool:
        """Whether first, middle and last stages are tried, beside explicit splits or alone."""
        bounds = self._axes.request.search.limits.get("stage_layers")
        return bounds is None or bounds.values is None or () in bounds.values

    def layout_rows(self, pp: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(schedule, vpp, first, last, 1 + place in split_table or 0) for one pipeline."""
        names = self._axes.values["schedule"]
        if pp == 1 and self._usual_splits:
            if (plain := _schedule_without_pipeline(names)) and self._axes.allows("vpp", 1):
                yield code("schedule", plain), 1, 0, 0, 0
            return
        useful = [name for name in names if name != "gpipe" or not self.gpipe_dominated]
        for first, last, explicit, divisible in self._splits(pp):
            uneven = bool(first or last or explicit)
            for name in useful:
                schedule = SCHEDULES[name]
                if uneven and schedule.placement != "loop":
                    continue  # waves and two directions split evenly, see virtual_stages
                for v in self._chunk_counts(schedule, divisible):
                    yield (code("schedule", name), v, first, last, explicit)
        yield from self._balanced_rows(pp, useful)

    def _balanced_rows(
        self, pp: int, names: Sequence[str]
    ) -> Iterator[tuple[int, int, int, int, int]]:
        for placement, v, sizes, _ in self._balanced_layouts.get(pp, ()):
            for name in names:
                if _is_placed(SCHEDULES[name], placement, v):
                    yield code("schedule", name), v, 0, 0, 1 + self.split_table.index(sizes)

    def _chunk_counts(self, schedule: PipelineSchedule, divisible: int) -> Iterable[int]:
        """Chunks per rank to try for a schedule; `divisible`: layers its stages share out."""
        if schedule.chunk_counts:
            return (v for v in schedule.chunk_counts if self._axes.allows("vpp", v))
        counts = [v for v in divisors(divisible) if v > 1]
        return (v for v in self._axes.allowed("vpp", counts) if v > 1)

    @property
    def gpipe_dominated(self) -> bool:
        """Whether gpipe is left out beside 1f1b."""
        if self._axes.own is not None and self._axes.own.schedule == "gpipe":
            return False
        return not self._axes.full and {"gpipe", "1f1b"} <= set(self._axes.values["schedule"])

    def _splits(self, pp: int) -> Iterator[tuple[int, int, int, int]]:
        """(first, last, explicit, what vpp divides): the splits to try for one pipeline."""
        layers = self._axes.request.model.num_layers
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
        layers = self._axes.request.model.num_layers
        ends = self._usual_ends(pp)
        if self._axes.limited("first_stage_layers") or self._axes.limited("last_stage_layers"):
            firsts = self._allowed_layers("first_stage_layers", [first for first, _ in ends])
            lasts = self._allowed_layers("last_stage_layers", [last for _, last in ends])
            return [(f, last) for f in firsts for last in lasts if f + last <= layers]
        if self._axes.own is not None and self._axes.own.pp == pp > 1:
            ends.append((self._axes.own.first_stage_layers, self._axes.own.last_stage_layers))
        return list(dict.fromkeys(ends))

    def _allowed_layers(self, field: str, default: list[int]) -> tuple[int, ...]:
        """The layers of one end: the usual ones, or all that a limit on this field leaves."""
        every = (
            range(self._axes.request.model.num_layers)
            if self._axes.limited(field)
            else sorted(set(default))
        )
        return self._axes.allowed(field, every)

    def _usual_ends(self, pp: int) -> list[tuple[int, int]]:
        """Even, and ends lighter by what the head weighs."""
        layers = self._axes.request.model.num_layers
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
        """Layers an end stage may have fewer: what the head weighs, 1 to MAX_LAYERS_LIGHTER."""
        model = self._axes.request.model
        head = model.hidden_size * model.vocab_size
        layers = layers_of(model)
        layer = layer_matrix_parameters(model, layers.kinds[layers.order[-1]])
        return min(max(ceil(head / layer), 1), MAX_LAYERS_LIGHTER)


def _schedule_without_pipeline(names: Sequence[str]) -> str | None:
    """The schedule of a plan without a pipeline, where there is none to choose."""
    plain = [name for name in names if 1 in SCHEDULES[name].chunk_counts]
    return "1f1b" if "1f1b" in plain else next(iter(plain), None)


def _is_placed(schedule: PipelineSchedule, placement: str, chunks: int) -> bool:
    """Whether a schedule places so many chunks on a rank, and in this way."""
    counts = schedule.chunk_counts
    return schedule.placement == placement and (chunks in counts if counts else chunks > 1)
