"""Formats sensitivities as text: values with units, changes, and plan fields that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cost_models.plans import ParallelPlan
from planner.answers.sensitivities.documents import (
    InputSensitivity,
    Measure,
    Outcome,
    PlanChange,
    Point,
    Unit,
)
from planner.documents.formats import gib, recompute_words, seconds, share, short, value_words

SMALL = 0.0005  # smaller changes are shown as none

_UNITS: dict[Unit, Callable[[float], str]] = {
    "bytes/s": lambda v: f"{v / 1e12:.3g} TB/s" if v >= 1e12 else f"{v / 1e9:.3g} GB/s",
    "FLOP/s": lambda v: f"{v / 1e15:.3g} PFLOP/s" if v >= 1e15 else f"{v / 1e12:.3g} TFLOP/s",
    "bytes": lambda v: f"{gib(v)} GiB",
    "s": seconds,
    "USD/h": lambda v: f"${v:.2f}/h",
    "W": lambda v: f"{v / 1e3:.3g} kW",
    "share": share,
    "count": lambda v: f"{v:,.0f}",
    "ratio": short,
}
_NOUNS: dict[Measure, str] = {
    "time per token": "time",
    "cost per token": "cost",
    "peak memory": "memory",
}
# Plan fields that are shown in combined form, and dp, which follows from the others.
_TOGETHER = frozenset(
    (
        "dp", "recompute", "recompute_modules", "recompute_num_layers", "recompute_layers",
        "recompute_method",
        "first_stage_layers", "last_stage_layers", "stage_layers",
    )
)  # fmt: skip
_SHORT = {"zero_stage": "zero", "micro_batch_size": "mbs", "sequence_parallel": "sp"}
_MOST_FIELDS = 6


def value_of(value: float, unit: Unit) -> str:
    """A value of an input with its unit."""
    return _UNITS[unit](value)


def factor_words(factor: float) -> str:
    return f"x{factor:.3g}"


def signed(change: float) -> str:
    """A change as text for a table: +1.3 %."""
    if abs(change) < SMALL:
        return "0 %"
    return f"{100 * change:+,.{0 if abs(change) >= 0.995 else 1}f} %"


def quantity(change: float, noun: str) -> str:
    """A change as text for a sentence: 1.3 % more time."""
    if abs(change) < SMALL:
        return f"the same {noun}"
    return f"{100 * abs(change):.1f} % {'more' if change > 0 else 'less'} {noun}"


def difference(before: ParallelPlan | None, after: ParallelPlan | None) -> list[str]:
    """The fields that differ between two plans, as "name old -> new"."""
    if before is None or after is None:
        return ["nothing fits" if after is None else "a plan fits"]
    was, now = _described(before), _described(after)
    words = [f"{name} {was[name]} -> {now[name]}" for name in was if was[name] != now[name]]
    rest = len(words) - _MOST_FIELDS
    return [*words[:_MOST_FIELDS], *([f"{rest} more"] if rest > 0 else [])]


def _described(plan: ParallelPlan) -> dict[str, str]:
    fields = plan.model_dump()
    ends = plan.first_stage_layers, plan.last_stage_layers
    told = {
        "recompute": recompute_words(fields).replace(",", ""),
        "layers": value_words(plan.stage_layers or (ends if any(ends) else "even")),
    }
    rest = {
        _SHORT.get(name, name.replace("_", " ")): value_words(value) or "none"
        for name, value in fields.items()
        if name not in _TOGETHER
    }
    return rest | told


def input_words(sensitivity: InputSensitivity, measure: Measure, base: Outcome) -> Iterator[str]:
    """Sentences on one input: one per value, then one per change of plan."""
    for point in sensitivity.points:
        value = value_of(point.value, sensitivity.unit)
        at = f"{_amount(point.factor, sensitivity.title)} ({value})"
        yield f"{at}: {_point(point, measure, base)}"
    for change in sensitivity.changes:
        words = ", ".join(difference(change.before, change.after))
        yield f"{change_place(sensitivity, change)}: {words}"
    if not sensitivity.all_changes:
        yield "the best plan changes again beyond these values"
    if sensitivity.factors_left_out:
        factors = ", ".join(map(factor_words, sensitivity.factors_left_out))
        yield f"{factors}: no value of its own that makes sense or can be run"


def change_place(sensitivity: InputSensitivity, change: PlanChange) -> str:
    """The value from which on another plan is best, as words."""
    below = change.factor_after < change.factor_before
    at = f"{factor_words(change.factor_after)} ({value_of(change.value_after, sensitivity.unit)})"
    return f"from {at} {'down' if below else 'up'}"


def _amount(factor: float, title: str) -> str:
    """A factor in words: 20 % less network bandwidth."""
    spoken = {0.5: f"half the {title}", 2.0: f"twice the {title}"}
    less_or_more = "less" if factor < 1 else "more"
    return spoken.get(factor, f"{100 * abs(factor - 1):.3g} % {less_or_more} {title}")


def _point(point: Point, measure: Measure, base: Outcome) -> str:
    noun = _NOUNS[measure]
    words = []
    if point.fixed is None or point.fixed_change is None:
        words.append(f"the plan cannot run ({point.reasons[0].text})")
    elif not point.fixed.fits:
        words.append("the plan does not fit")
    else:
        words.append(quantity(point.fixed_change, noun))
        words += _money(point.fixed, point.fixed_change, base)
    if point.replanned is None or point.replanned_change is None:
        words.append("no plan fits")
    elif point.replanned != point.fixed:
        words.append(f"planned again {quantity(point.replanned_change, noun)}")
    return ", ".join(words)


def _money(outcome: Outcome, change: float, base: Outcome) -> Iterator[str]:
    """The changes of cost and energy if they are not proportional to the time."""
    pairs = (
        (outcome.cost_usd, base.cost_usd, "cost"),
        (outcome.energy_kwh, base.energy_kwh, "energy"),
    )
    for value, usual, noun in pairs:
        if value is not None and usual:
            own = value / usual - 1.0
            if abs(own - change) >= SMALL:
                yield quantity(own, noun)
