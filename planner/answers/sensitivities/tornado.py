"""Common parts of all tornado charts: rows, bars on a logarithmic axis, ticks, labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from planner.answers.sensitivities.documents import InputSensitivity, Point, SensitivityAnswer
from planner.answers.sensitivities.format import factor_words, signed, value_of
from planner.documents.formats import days, dollars, memory_words, plan_words, seconds, share, size

_QUIET = 0.001  # inputs that move the measure by less are only listed by name
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 33, 50, 100, 200, 400, 900)  # %


@dataclass(frozen=True)
class Bar:
    """The change of the measure at one end of an input's range, as ln of the ratio.

    fixed: of the held plan, None if it does not fit; replanned: of the best plan, None if that is
    the held plan or nothing fits.
    """

    factor: float
    fixed: float | None
    replanned: float | None
    fixed_words: str
    replanned_words: str


@dataclass(frozen=True)
class Row:
    """One input: the bars at its ends, and the held plan's changes between them (inner)."""

    title: str
    value: str
    bars: tuple[Bar, ...]
    inner: tuple[float, ...]
    changes: str
    elasticity: str

    @property
    def again(self) -> bool:
        """Whether a plan other than the held one is best at an end."""
        return any(bar.replanned is not None or bar.replanned_words for bar in self.bars)


def rows(answer: SensitivityAnswer) -> list[Row]:
    """The inputs that move the measure, most first."""
    return [_row(one) for one in answer.inputs if one.title not in quiet(answer)]


def quiet(answer: SensitivityAnswer) -> list[str]:
    """The titles of the inputs that hardly move the measure; none if that is all of them."""
    still = [one.title for one in answer.inputs if not any(map(_moves, one.points))]
    return still if len(still) < len(answer.inputs) else []


def _moves(point: Point) -> bool:
    changes = (point.fixed_change, point.replanned_change)
    fits = point.fixed is not None and point.fixed.fits
    return not fits or any(c is None or abs(c) >= _QUIET for c in changes)


def _row(sensitivity: InputSensitivity) -> Row:
    lower = [point for point in sensitivity.points if point.factor < 1]
    higher = [point for point in sensitivity.points if point.factor > 1]
    ends = [*lower[:1], *higher[-1:]]
    inner = [point for point in sensitivity.points if point not in ends]
    return Row(
        title=sensitivity.title,
        value=value_of(sensitivity.value, sensitivity.unit),
        bars=tuple(map(_bar, ends)),
        inner=tuple(x for x in map(_fixed, inner) if x is not None),
        changes=_changes(sensitivity),
        elasticity="-"
        if sensitivity.elasticity is None
        else f"{sensitivity.elasticity + 0.0:+.2f}",
    )


def _fixed(point: Point) -> float | None:
    if point.fixed is None or point.fixed_change is None or not point.fixed.fits:
        return None
    return math.log1p(point.fixed_change)


def _bar(point: Point) -> Bar:
    other = point.replanned != point.fixed
    change = point.replanned_change if other else None
    words = "no fit" if point.fixed is not None else "no run"
    fixed = _fixed(point)
    if fixed is not None and point.fixed_change is not None:
        words = signed(point.fixed_change)
    again = "" if not other else "no fit" if change is None else signed(change)
    return Bar(
        factor=point.factor,
        fixed=fixed,
        replanned=None if change is None else math.log1p(change),
        fixed_words=words,
        replanned_words=again,
    )


def _changes(sensitivity: InputSensitivity) -> str:
    """The nearest change of plan on each side, in words."""
    below = [c.factor_after for c in sensitivity.changes if c.factor_after < c.factor_before]
    above = [c.factor_after for c in sensitivity.changes if c.factor_after > c.factor_before]
    words = [f"{factor_words(max(below))} and below"] if below else []
    words += [f"{factor_words(min(above))} and above"] if above else []
    return ", ".join(words)


def reach(rows: list[Row]) -> float:
    """The largest change of all bars, as ln of the ratio."""
    ends = [bar for row in rows for bar in row.bars]
    sizes = [abs(x) for bar in ends for x in (bar.fixed, bar.replanned) if x is not None]
    return max([*sizes, math.log1p(_QUIET)])


def ticks(most: float, apart: float) -> Iterator[tuple[float, str]]:
    """(ln of the ratio, label) of round percentages, at least `apart` from each other."""
    yield 0.0, "0"
    for sign in (1, -1):
        last = 0.0
        largest = [percent for percent in _TICKS if sign > 0 or percent < 100]
        for percent in largest:
            x = math.log1p(sign * percent / 100)
            if abs(x) <= most * 1.0001 and abs(x) - last >= apart:
                yield x, f"{'+' if sign > 0 else '-'}{percent:g} %"
                last = abs(x)


def heading(answer: SensitivityAnswer) -> str:
    return f"What moves the {answer.measure}"


def base_words(answer: SensitivityAnswer) -> list[str]:
    """The held plan and its results at the base, in words."""
    report = answer.held
    plan = report.plan.model_dump()
    words = [" ".join(plan_words(plan)), *memory_words(plan)]
    if answer.measure == "peak memory":
        words.append(size(report.memory.peak_bytes))
    words += [f"{seconds(report.iteration_time_s)} per iteration", f"MFU {share(report.mfu)}"]
    words += [] if report.days is None else [days(report.days)]
    words += [] if report.cost_usd is None else [dollars(report.cost_usd)]
    return words


def model_and_cluster(answer: SensitivityAnswer) -> str:
    """The model and its cluster, in words."""
    request = answer.request
    groups = " + ".join(
        f"{g['nodes']} x {g['accelerators_per_node']} {g['accelerator']['name']}"
        for g in request["cluster"]["groups"]
    )
    return f"{request['model']['name']} on {groups}"


def ends_words(row: Row) -> dict[bool, tuple[float, str]]:
    """By side (True: right of the base): the length of its longest bar, and its end values."""
    sides: dict[bool, list[tuple[float, str]]] = {}
    for bar in row.bars:
        longest = max(abs(bar.fixed or 0.0), abs(bar.replanned or 0.0))
        again = f" ({bar.replanned_words})" if bar.replanned_words else ""
        words = f"{factor_words(bar.factor)}: {bar.fixed_words}{again}"
        sides.setdefault(_is_right_of_base(bar, row), []).append((longest, words))
    return {
        right: (max(size for size, _ in ends), ", ".join(words for _, words in sorted(ends)))
        for right, ends in sides.items()
    }


def _is_right_of_base(bar: Bar, row: Row) -> bool:
    """Whether a bar lies right of the base; a bar of length zero lies opposite the other one."""
    change = bar.fixed or bar.replanned
    if change:
        return change > 0
    others = [one.fixed or one.replanned or 0.0 for one in row.bars if one is not bar]
    return not others or others[0] < 0
