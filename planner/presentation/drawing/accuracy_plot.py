"""Two pictures of the scored rows as SVG: predicted against measured, and their ratio by source."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from planner.documents.formats import seconds
from planner.learning.accuracy.accuracy_answer import Row, ratio_words
from planner.presentation.drawing.theme import MARKS, SERIES, sheet

BAND = 0.10
MAX_POINTS, MOST_SOURCES = 5_000, 40
_SIZE, _LEFT, _TOP, _RIGHT, _BOTTOM = 560, 66, 14, 14, 52
_STRIP_LEFT, _LANE = 150, 26
_STRIP_LIMIT = math.log(2)
STYLE = sheet("accuracy_plot") + "".join(
    f".s{i}{{fill:var(--s{i})}}.open.s{i},.range.s{i}{{stroke:var(--s{i})}}\n"
    for i in range(SERIES)
)


def drawable(rows: Sequence[Row]) -> list[Row]:
    """The rows with two times that are scored or open; of very many, evenly spread ones."""
    drawn = [row for row in rows if row.table in ("scored", "open")]
    step = max(len(drawn) / MAX_POINTS, 1.0)
    return [drawn[int(i * step)] for i in range(min(len(drawn), MAX_POINTS))]


def sources(rows: Sequence[Row]) -> list[str]:
    """The sources in the order of the first of their rows: that decides colour and mark."""
    return list(dict.fromkeys(row.source_key for row in rows))


def scatter(rows: Sequence[Row], order: Sequence[str]) -> str:
    """Predicted over measured time, both logarithmic, with the line of equality."""
    index = {source: i for i, source in enumerate(order)}
    times = [
        time
        for row in rows
        for time in (row.predicted_iteration_time_s, _measured(row), row.lowest_s, row.highest_s)
        if time
    ]
    low, high = math.log10(min(times)), math.log10(max(times))
    margin = max(0.04 * (high - low), 0.1)
    low, high = low - margin, high + margin
    width, height = _SIZE - _LEFT - _RIGHT, _SIZE - _TOP - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - low) / (high - low) * width

    def y(value: float) -> float:
        return _TOP + (high - math.log10(value)) / (high - low) * height

    parts = [
        f'<svg class="plot" viewBox="0 0 {_SIZE} {_SIZE}" role="img" aria-labelledby="sc-title">',
        '<title id="sc-title">Predicted against measured time, logarithmic</title>',
        f'<clipPath id="sc"><rect x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}"/>'
        "</clipPath>",
    ]
    for value in _decades(low, high):
        parts.append(
            f'<path class="grid" d="M{x(value):.1f} {_TOP}V{_TOP + height}M{_LEFT} '
            f'{y(value):.1f}H{_LEFT + width}"/><text x="{x(value):.1f}" y="{_TOP + height + 18}">'
            f'{_tick(value)}</text><text class="name" x="{_LEFT - 7}" y="{y(value) + 4:.1f}">'
            f"{_tick(value)}</text>"
        )
    first, last = 10**low, 10**high
    up, down = 1 + BAND, 1 - BAND
    parts.append(
        f'<g clip-path="url(#sc)"><path class="band" d="M{x(first):.1f} {y(first * up):.1f}'
        f"L{x(last):.1f} {y(last * up):.1f}V{y(last * down):.1f}L{x(first):.1f} "
        f'{y(first * down):.1f}z"/><path class="one" d="M{x(first):.1f} {y(first):.1f}'
        f'L{x(last):.1f} {y(last):.1f}"/></g>'
    )
    for row in rows:
        predicted, measured = row.predicted_iteration_time_s, _measured(row)
        if not predicted or not measured:
            continue
        i = index[row.source_key]
        if row.table == "open" and row.lowest_s and row.highest_s:
            parts.append(
                _range(i, f"M{x(measured):.1f} {y(row.lowest_s):.1f}V{y(row.highest_s):.1f}")
            )
        parts.append(_dot(row, i, x(measured), y(predicted)))
    middle = _TOP + height / 2
    parts.append(
        f'<text class="label" x="{_LEFT + width / 2}" y="{_SIZE - 10}">measured</text>'
        f'<text class="label" transform="translate(16 {middle}) rotate(-90)">predicted</text></svg>'
    )
    return "\n".join(parts)


def strip(rows: Sequence[Row], order: Sequence[str], medians: dict[str, float]) -> str:
    """Predicted over measured, a lane per source; the bars are the medians of what is scored."""
    index = {source: i for i, source in enumerate(order)}
    lanes = {source: lane for lane, source in enumerate(list(order)[:MOST_SOURCES])}
    height = _TOP + _LANE * len(lanes) + _BOTTOM
    width = _SIZE - _STRIP_LEFT - _RIGHT
    bottom = _TOP + _LANE * len(lanes)

    def x(log_ratio: float) -> float:
        clipped = max(-_STRIP_LIMIT, min(_STRIP_LIMIT, log_ratio))
        return _STRIP_LEFT + (clipped / _STRIP_LIMIT + 1) / 2 * width

    parts = [
        f'<svg class="plot" viewBox="0 0 {_SIZE} {height}" role="img" aria-labelledby="st-title">',
        '<title id="st-title">Predicted over measured time by source</title>',
        f'<rect class="band" x="{x(math.log(1 - BAND)):.1f}" y="{_TOP}" height="{bottom - _TOP}" '
        f'width="{x(math.log(1 + BAND)) - x(math.log(1 - BAND)):.1f}"/>',
    ]
    for value in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0):
        at, kind = x(math.log(value)), "one" if value == 1 else "grid"
        parts.append(f'<path class="{kind}" d="M{at:.1f} {_TOP}V{bottom}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 18}">{value:g}</text>')
    for source, lane in lanes.items():
        y, i = _TOP + _LANE * (lane + 0.5), index[source]
        parts.append(
            f'<text class="name" x="{_STRIP_LEFT - 26}" y="{y + 4:.1f}">{_cut(source)}</text>'
            f'<path class="dot s{_colour(i)}" d="{_mark(i)}" '
            f'transform="translate({_STRIP_LEFT - 14} {y:.1f})"/>'
        )
    seen: dict[str, int] = {}
    for row in rows:
        if row.source_key not in lanes or row.ln_ratio is None:
            continue
        i = index[row.source_key]
        # Spread over the height of the lane, evenly and always alike.
        count = seen[row.source_key] = seen.get(row.source_key, -1) + 1
        spread = ((count * 0.618) % 1 - 0.5) * (_LANE - 12)
        y = _TOP + _LANE * (lanes[row.source_key] + 0.5) + spread
        parts.append(_dot(row, i, x(row.ln_ratio), y))
    for source, median in medians.items():
        if source in lanes:
            at, y = x(median), _TOP + _LANE * lanes[source]
            parts.append(f'<path class="median" d="M{at:.1f} {y + 3}v{_LANE - 6}"/>')
    parts.append(
        f'<text class="label" x="{_STRIP_LEFT + width / 2}" y="{height - 10}">'
        "predicted / measured (beyond 0.5 and 2: at the edge)</text></svg>"
    )
    return "\n".join(parts)


def _dot(row: Row, i: int, x: float, y: float) -> str:
    kind = "dot open" if row.table == "open" else "dot"
    return (
        f'<path class="{kind} s{_colour(i)}" d="{_mark(i)}" transform="translate({x:.1f} {y:.1f})">'
        f"<title>{_tooltip(row)}</title></path>"
    )


def _range(i: int, path: str) -> str:
    return f'<path class="range s{_colour(i)}" d="{path}"/>'


def _colour(i: int) -> int:
    return i % SERIES


def _mark(i: int) -> str:
    return MARKS[i % len(MARKS)]


def _tooltip(row: Row) -> str:
    """What pointing at a mark says."""
    predicted, measured = row.predicted_iteration_time_s or 0.0, _measured(row) or 0.0
    kind = " of one layer" if row.quantity == "layer" else ""
    lines = [
        row.id,
        f"{row.model} on {row.cluster}",
        row.plan or "",
        f"predicted {seconds(predicted)}, measured {seconds(measured)}{kind}: {ratio_words(row)}",
    ]
    if row.table == "open" and row.lowest_s and row.highest_s:
        opened = ", ".join(row.open_inputs)
        lines.append(f"{seconds(row.lowest_s)} to {seconds(row.highest_s)}: {opened} not stated")
    return escape("\n".join(line for line in lines if line))


def _measured(row: Row) -> float | None:
    return row.published_iteration_time_s


def _decades(low: float, high: float) -> Iterator[float]:
    """Powers of ten between two logarithms; with twos and fives where there are few."""
    step = max(1, math.ceil((high - low) / 8))
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    for exponent in range(math.floor(low), math.ceil(high) + 1, step):
        for factor in steps:
            if low <= math.log10(factor) + exponent <= high:
                yield factor * 10.0**exponent


def _tick(value: float) -> str:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale * 0.999:
            return f"{value / scale:.6g} {unit}" if value < 1e6 else f"{value:.0e} s"
    return f"{value:.0e} s"


def _cut(name: str) -> str:
    return escape(name if len(name) <= 17 else f"{name[:16]}…")
