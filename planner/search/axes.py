"""The axes of the search space: which values each plan field may take.

Values come from the model and cluster, narrowed or replaced by the request's limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from cost_models.plans import FIELDS, ParallelPlan, encoded
from cost_models.schedules import SCHEDULES
from planner.documents.problems import problem
from planner.documents.request import OPENED, Bounds, PlanRequest

# Fields without effect in a model without experts.
EXPERT_FIELDS = ("moe_dispatcher", "overlap_ep")
GROUP_FIELDS = ("tp", "cp", "pp", "ep", "etp", "sequence_parallel")
LAYOUT_FIELDS = ("schedule", "vpp", "first_stage_layers", "last_stage_layers", "stage_layers")
SEARCHED = (
    *GROUP_FIELDS, *LAYOUT_FIELDS, "dp", "zero_stage", "micro_batch_size", "recompute",
    "recompute_modules", "recompute_num_layers",
)  # fmt: skip
# Limits on the work of one request: rows of the table of process groups, and candidates in all.
MAX_COMBINATIONS = 4_000_000
MAX_CANDIDATES = 50_000_000


class SpaceTooLarge(ValueError):
    """A request whose limits leave more candidates than one search may price."""

    def __init__(self, noun: str, count: int, limit: int) -> None:
        self._arguments = noun, count, limit
        super().__init__(
            f"the space is too large: {count:,} {noun}, at most {limit:,}; "
            "fix or bound more plan fields"
        )
        detail = str(self)
        self.problems = (problem("/search", "space_too_large", detail),)

    def __reduce__(self) -> tuple[Any, ...]:
        """How to make the error again in another process."""
        return type(self), self._arguments


# Derived, or values of the layout and recompute axes (LayoutAxes, OptionAxes).
_ELSEWHERE = ({*LAYOUT_FIELDS} - {"schedule"}) | {
    "dp", "recompute_modules", "recompute_num_layers", "recompute_layers",
}  # fmt: skip


class Axes:
    """The values of every axis for one request.

    full: keep the plans that dominance rules leave out.  own: a plan whose values are added to the
    usual ones on every axis, so that the space has the plans around it.  sizes: numbers of
    accelerators that the plans may take, ascending; none: as many as the request's cluster has.
    """

    def __init__(
        self,
        request: PlanRequest,
        full: bool = False,
        own: ParallelPlan | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        self.request, self.full, self.own = request, full, own
        self.sizes = tuple(sizes) or (request.cluster.accelerators,)

    def limited(self, field: str) -> bool:
        """Whether the request limits a field."""
        return field in self.request.search.limits

    def allowed(self, field: str, values: Iterable[Any]) -> tuple[Any, ...]:
        """The values that a request's limits allow; values that it lists replace the default."""
        bounds = self.request.search.limits.get(field)
        if bounds is None:
            return tuple(values)
        if bounds.values is not None:
            return tuple(_in_type_of_field(field, v) for v in bounds.values)
        return tuple(v for v in values if within(bounds, v))

    def allows(self, field: str, value: int) -> bool:
        """Whether a request's limits allow a value."""
        bounds = self.request.search.limits.get(field)
        return bounds is None or within(bounds, value)

    @cached_property
    def values(self) -> dict[str, tuple[Any, ...]]:
        """Allowed values of every plan field that is not derived from others."""
        model = self.request.model
        degrees = divisors_of_any(self.sizes)
        moe = model.moe is not None
        chosen: dict[str, tuple[Any, ...]] = {
            "tp": degrees,
            "cp": degrees,
            "pp": tuple(p for p in degrees if p <= model.num_layers),
            "ep": divisors(model.moe.num_experts) if model.moe is not None else (1,),
            "etp": degrees if moe else (1,),
            "sequence_parallel": (False, True),
            "zero_stage": (0, 1, 2, 3),
            "schedule": tuple(name for name, s in SCHEDULES.items() if s.synchronous),
            "micro_batch_size": divisors(self.request.training.global_batch_size),
            "recompute": ("none", "selective", "full"),
        }
        opened: dict[str, tuple[Any, ...]] = {
            n: OPENED[n] for n in self.request.search.open if n in OPENED
        }
        default = ParallelPlan()
        for field in FIELDS:
            if field in _ELSEWHERE:
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


def divisors(n: int) -> tuple[int, ...]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def divisors_of_any(numbers: Iterable[int]) -> tuple[int, ...]:
    """All divisors of any of the numbers, ascending."""
    return tuple(sorted({divisor for n in numbers for divisor in divisors(n)}))


def within(bounds: Bounds, value: Any) -> bool:
    """Whether a value respects the bounds of a request."""
    if bounds.values is not None:
        return value in bounds.values
    low = bounds.min if bounds.min is not None else 0
    return low <= int(value) <= (bounds.max if bounds.max is not None else value)


def _in_type_of_field(field: str, value: Any) -> Any:
    """A limit's value in the type of the plan field."""
    default = getattr(ParallelPlan(), field)
    return bool(value) if isinstance(default, bool) else value
