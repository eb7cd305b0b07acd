"""Rows of a sizing compared with its limits and each other, given the error of their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import inf, log, sqrt
from statistics import NormalDist

from planner.answers.sizing.answer import Limit, Offer, Rival, Row
from planner.answers.sizing.request import SizingRequest, SizingSpec
from planner.evidence.uncertainty.error_band import COVERED, chance_above

# The order of rows from the cheapest; where no price is known, from the smallest.
_CHEAPEST = ("cost_usd", "accelerators", "days")
# Half the width of the error band in standard deviations, with errors taken as normal.
# A run is to keep deadline and budget with this chance where it is recommended.
SAFE = 0.9
BAND_HALF_WIDTH_SIGMAS = NormalDist().inv_cdf(0.5 + int(COVERED) / 200)


def limited(row: Row, sizing: SizingSpec) -> Row:
    """The row with the limits that it exceeds; an unknown value exceeds none."""
    exceeds = tuple(name for name, value, most in _limits(row, sizing) if value > most)
    return row.model_copy(update={"exceeds": exceeds, "chance_kept": _chance_kept(row, sizing)})


def _limits(row: Row, sizing: SizingSpec) -> Iterator[tuple[Limit, float, float]]:
    """The limits that apply: name, the row's value, the maximum; unknown values are skipped."""
    checks: tuple[tuple[Limit, float | None, float | None], ...] = (
        ("deadline", row.days, sizing.deadline_days),
        ("budget", row.cost_usd, sizing.budget_usd),
        ("power", row.power_watts, sizing.power_watts),
    )
    for name, value, most in checks:
        if value is not None and most is not None:
            yield name, value, most


def _chance_kept(row: Row, sizing: SizingSpec) -> float | None:
    """The chance that a run keeps deadline and budget; days and cost both scale with its time."""
    room = [log(most / value) for name, value, most in _limits(row, sizing) if name != "power"]
    if not room or row.error_band is None:
        return None
    mean, deviation = _log_error(row)
    return chance_above(min(room) - mean, deviation)


def _log_error(row: Row) -> tuple[float, float]:
    """Mean and standard deviation of ln(true / estimated) of a row's time, by its error band."""
    band, estimated = row.error_band, row.iteration_time_s
    assert band is not None
    assert estimated is not None
    low, high = log(band.low_s / estimated), log(band.high_s / estimated)
    return 0.5 * (low + high), max(0.5 * (high - low) / BAND_HALF_WIDTH_SIGMAS, 1e-9)


def least_of(rows: list[Row], places: Iterable[int], *names: str) -> int | None:
    """The row with the least value of the first field; ties go to the next fields."""
    order = {i: [_or_infinity(getattr(rows[i], name)) for name in names] for i in places}
    return min(order, key=order.__getitem__, default=None)


def keeps(row: Row, sizing: SizingSpec) -> bool:
    """Whether a row is known to keep all limits: what has no price keeps no budget."""
    priced = sizing.budget_usd is None or row.cost_usd is not None
    return row.days is not None and not row.exceeds and priced


def recommended(rows: list[Row], allowed: list[int]) -> int | None:
    """The cheapest row that surely keeps the limits and whose accelerator has published runs.

    Where there is none, the cheapest with published runs, then the cheapest of all.
    """

    def has_runs(row: Row) -> bool:
        return row.error_band is not None and row.error_band.accelerator_rows > 0

    evident = [i for i in allowed if has_runs(rows[i])]
    sure = [i for i in evident if meets_limits_likely(rows[i])]
    return least_of(rows, sure or evident or allowed, *_CHEAPEST)


def meets_limits_likely(row: Row) -> bool:
    """Whether a run keeps deadline and budget with the chance that a recommendation needs."""
    return row.chance_kept is None or row.chance_kept >= SAFE


def sizes_between(rows: list[Row], sizing: SizingSpec) -> Iterator[tuple[str, int]]:
    """Kinds, with sizes between the largest that misses a limit and the next one, which keeps it.

    A quarter, a half and three quarters more of the smaller one: a multiple of 5, 3 or 7.
    """
    for kind in sizing.accelerators:
        own = [row for row in rows if row.accelerator == kind and row.days is not None]
        for low, high in pairwise(own):
            if not meets_limits_likely(low) and meets_limits_likely(high):
                between = (low.accelerators * k // 4 for k in (5, 6, 7))
                yield from ((kind, size) for size in between if size < high.accelerators)


def best_of_kind(rows: list[Row], sizing: SizingSpec) -> dict[str, int | None]:
    """The cheapest row of each kind that keeps the limits, or the one that misses them least."""
    found: dict[str, int | None] = {}
    for kind in sizing.accelerators:
        own = [i for i, row in enumerate(rows) if row.accelerator == kind and row.days is not None]
        kept = [i for i in own if keeps(rows[i], sizing)]
        nearest = min(own, key=lambda i: _worst_ratio(rows[i], sizing), default=None)
        found[kind] = least_of(rows, kept, *_CHEAPEST) if kept else nearest
    return found


def _worst_ratio(row: Row, sizing: SizingSpec) -> float:
    """The largest ratio of a row's value to its limit."""
    return max((value / most for _, value, most in _limits(row, sizing)), default=inf)


def offers(rows: list[Row], request: SizingRequest) -> Iterator[Offer]:
    """For each limit, the value at which a row would keep all limits; then fewer tokens."""
    sizing = request.sizing
    of_limit: dict[Limit, str] = {
        "deadline": "days", "budget": "cost_usd", "power": "power_watts",
    }  # fmt: skip
    for name, field in of_limit.items():
        alone = [i for i, row in enumerate(rows) if row.exceeds == (name,)]
        if (place := least_of(rows, alone, field)) is not None:
            yield Offer(limit=name, value=getattr(rows[place], field), row=place)
    tokens = request.base.training.tokens
    powered = [i for i, row in enumerate(rows) if row.exceeds and "power" not in row.exceeds]
    if tokens is not None and powered:
        place = min(powered, key=lambda i: _worst_ratio(rows[i], sizing))
        yield Offer(limit="tokens", value=tokens / _worst_ratio(rows[place], sizing), row=place)


def rivals(rows: list[Row], chosen: int | None, of_kind: dict[str, int | None]) -> Iterator[Rival]:
    """The best row of every other kind, compared with the chosen one."""
    if chosen is None:
        return
    for place in of_kind.values():
        if place is None or rows[place].accelerator == rows[chosen].accelerator:
            continue
        yield Rival(
            row=place,
            chance_sooner=_chance_less(rows[place], rows[chosen], "days"),
            chance_cheaper=None
            if rows[place].cost_usd is None or rows[chosen].cost_usd is None
            else _chance_less(rows[place], rows[chosen], "cost_usd"),
        )


def _chance_less(row: Row, other: Row, field: str) -> float:
    """The chance that the days or the cost of one row are less than another's."""
    (mean, deviation), (other_mean, other_deviation) = _log_error(row), _log_error(other)
    gap = log(getattr(other, field) / getattr(row, field)) + other_mean - mean
    return chance_above(gap, sqrt(deviation**2 + other_deviation**2))


def _or_infinity(value: float | None) -> float:
    return inf if value is None else value
