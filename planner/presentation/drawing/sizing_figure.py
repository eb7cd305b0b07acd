"""Days against cost as one static SVG: a line per kind, sizes as dots, the Pareto front ringed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from planner.answers.sizing.answer import Row, SizingAnswer
from planner.documents.formats import days, dollars, short
from planner.presentation.drawing.theme import MARKS, SERIES, Theme, colours, sheet

WIDTH, HEIGHT = 900, 560
_LEFT, _TOP, _RIGHT, _BOTTOM = 84, 44, 190, 56
_STYLE = sheet("sizing_figure")


def sizing_figure(answer: SizingAnswer, theme: Theme = "auto") -> str:
    """The SVG document; kinds without a price are listed below instead of drawn."""
    priced = [row for row in answer.rows if row.cost_usd and row.days]
    kinds = list(dict.fromkeys(row.accelerator for row in priced))
    title = (
        f"{answer.request['model']['name']}, {short(answer.request['training']['tokens'])} tokens"
    )
    missing = sorted({row.accelerator for row in answer.rows} - set(kinds))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" aria-labelledby="size-title">',
        f"<style>{colours(theme, 'svg')}{_STYLE}{_shades(len(kinds))}</style>",
        '<rect class="page" width="100%" height="100%"/>',
        f'<text class="title" id="size-title" x="{_LEFT}" y="26">'
        f"{escape(title)}: days against cost; numbers: accelerators</text>",
    ]
    if priced:
        parts += _plot(answer, priced, kinds)
    if missing:
        text = f"no price, or nothing fits: {', '.join(missing)}"
        parts.append(f'<text x="{_LEFT}" y="{HEIGHT - 8}" font-size="11">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _shades(count: int) -> str:
    return "".join(
        f".k{i} .line{{stroke:{shade}}}.k{i} .dot{{fill:{shade};stroke:{shade}}}"
        f".k{i} text{{fill:{shade}}}"
        for i in range(count)
        if (shade := f"var(--s{i % SERIES})")
    )


def _plot(answer: SizingAnswer, priced: list[Row], kinds: list[str]) -> Iterator[str]:
    costs = [row.cost_usd or 0.0 for row in priced]
    taken = [row.days or 0.0 for row in priced]
    x = _Scale(min(costs), max(costs), _LEFT, WIDTH - _RIGHT)
    y = _Scale(min(taken), max(taken), HEIGHT - _BOTTOM, _TOP)
    yield from _axes(x, y)
    yield from _limits(answer, x, y)
    at = WIDTH - _RIGHT + 24
    for i, kind in enumerate(kinds):
        mark, legend = MARKS[i % len(MARKS)], _TOP + 12 + 22 * i
        yield f'<g class="kind k{i}">'
        yield from _line([row for row in priced if row.accelerator == kind], x, y, mark)
        yield f'<path class="dot" transform="translate({at} {legend - 4})" d="{mark}"/>'
        yield f'<text x="{at + 14}" y="{legend}">{escape(kind)}</text></g>'
    yield from _sizes([answer.rows[i] for i in answer.front], x, y)
    legend = _TOP + 12 + 22 * len(kinds)
    yield f'<circle class="front" cx="{at}" cy="{legend - 4}" r="7"/>'
    yield f'<text x="{at + 14}" y="{legend}">none beats it in both</text>'


def _axes(x: _Scale, y: _Scale) -> Iterator[str]:
    for value in x.ticks():
        yield f'<path class="grid" d="M{x(value):.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>'
        yield (
            f'<text x="{x(value):.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{dollars(value)}</text>"
        )
    for value in y.ticks():
        yield f'<path class="grid" d="M{_LEFT} {y(value):.1f}H{WIDTH - _RIGHT}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{days(value)}</text>'
    yield (
        f'<text class="axis" x="{(_LEFT + WIDTH - _RIGHT) / 2:.0f}" y="{HEIGHT - 22}" '
        'text-anchor="middle">cost of the training</text>'
    )


def _limits(answer: SizingAnswer, x: _Scale, y: _Scale) -> Iterator[str]:
    """The deadline and the budget, where they lie within the axes."""
    deadline = answer.request["sizing"].get("deadline_days")
    if deadline and y.low <= deadline <= y.high:
        yield f'<path class="limit" d="M{_LEFT} {y(deadline):.1f}H{WIDTH - _RIGHT}"/>'
        at = WIDTH - _RIGHT - 6
        yield f'<text x="{at}" y="{y(deadline) - 5:.1f}" text-anchor="end">deadline</text>'
    budget = answer.request["sizing"].get("budget_usd")
    if budget and x.low <= budget <= x.high:
        yield f'<path class="limit" d="M{x(budget):.1f} {_TOP}V{HEIGHT - _BOTTOM}"/>'
        yield f'<text x="{x(budget) + 5:.1f}" y="{_TOP + 12}">budget</text>'


def _line(rows: list[Row], x: _Scale, y: _Scale, mark: str) -> Iterator[str]:
    """The sizes of one kind of accelerator, joined; rings around those on the front."""
    points = [(f"{x(row.cost_usd or 0.0):.1f}", f"{y(row.days or 0.0):.1f}") for row in rows]
    yield f'<path class="line" d="M{"L".join(f"{px} {py}" for px, py in points)}"/>'
    for row, (px, py) in zip(rows, points, strict=True):
        yield (
            f'<path class="dot{" over" * bool(row.exceeds)}" transform="translate({px} {py})" '
            f'd="{mark}"><title>{_tooltip(row)}</title></path>'
        )
        if row.on_front:
            yield f'<circle class="front" cx="{px}" cy="{py}" r="8"/>'


def _sizes(front: list[Row], x: _Scale, y: _Scale) -> Iterator[str]:
    """How many accelerators each of the front has, where the numbers do not overlap."""
    last = None
    for row in front:
        px, py = x(row.cost_usd or 0.0), y(row.days or 0.0)
        if last is None or abs(px - last[0]) >= 30 or abs(py - last[1]) >= 16:
            yield f'<text x="{px - 8:.1f}" y="{py + 19:.1f}" text-anchor="end" font-size="11">'
            yield f"{row.accelerators:,}</text>"
            last = px, py


def _tooltip(row: Row) -> str:
    text = f"{row.accelerators:,} x {row.accelerator}: {days(row.days or 0)}, "
    return escape(text + dollars(row.cost_usd or 0))


class _Scale:
    """A logarithmic axis with a small margin at its ends."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high = low / 1.15, high * 1.15
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Ticks at 1, 2 and 5 of each decade; over many only at 1, within one at more."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1, 2, 5) if self.high > 8 * self.low else (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
        every = [
            step * 10.0**decade for decade in decades for step in (steps, (1,))[len(decades) > 4]
        ]
        return [value for value in every if self.low <= value <= self.high]
