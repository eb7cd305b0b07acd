"""The tornado chart as one self-contained static SVG, readable without colour."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from planner.answers.sensitivities.documents import SensitivityAnswer
from planner.answers.sensitivities.tornado import (
    Row,
    base_words,
    ends_words,
    heading,
    model_and_cluster,
    quiet,
    reach,
    rows,
    ticks,
)
from planner.presentation.drawing.theme import Theme, colours, sheet

WIDTH = 1330
_LEFT, _RIGHT, _TOP, _BOTTOM = 340, 230, 124, 44
_LABEL_PX = 138  # px beside the longest bars for their numbers
_PITCH, _HIGH, _THIN = 34, 16, 6
_STYLE = sheet("tornado")


def tornado_svg(answer: SensitivityAnswer, theme: Theme = "auto") -> str:
    """The SVG document; theme: auto follows the reader's colour scheme."""
    drawn, still = rows(answer), quiet(answer)
    foot = _TOP + _PITCH * len(drawn)
    height = foot + _BOTTOM + 18 * bool(still)
    limit = reach(drawn)
    scale = ((WIDTH - _LEFT - _RIGHT) / 2 - _LABEL_PX) / limit
    middle = _LEFT + (WIDTH - _LEFT - _RIGHT) / 2
    described = "; ".join(sentence for shift in answer.inputs for sentence in shift.words)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" class="tornado" role="img" '
        'aria-labelledby="to-title to-desc">',
        f'<title id="to-title">{escape(heading(answer))}: '
        f"{escape(model_and_cluster(answer))}</title>",
        f'<desc id="to-desc">{escape(described)}</desc>',
        f"<style>{colours(theme, '.tornado')}{_STYLE}</style>",
        '<defs><pattern id="to-high" width="6" height="6" patternUnits="userSpaceOnUse">'
        '<rect class="ground" width="6" height="6"/>'
        '<path class="stripe" d="M-1 7L7-1M-1 1L1-1M5 7L7 5"/></pattern></defs>',
        '<rect class="page" width="100%" height="100%"/>',
        f'<text class="title" x="24" y="30">{escape(heading(answer))}'
        f'<tspan class="quiet" dx="12">{escape(model_and_cluster(answer))}</tspan></text>',
        f'<text class="quiet" x="24" y="50">{escape(" · ".join(base_words(answer)))}</text>',
        *_legend(),
        f'<text class="quiet name" x="{_LEFT - 92}" y="{_TOP - 14}">input</text>',
        f'<text class="quiet name" x="{_LEFT - 10}" y="{_TOP - 14}">base</text>',
        f'<text class="quiet" x="{WIDTH - _RIGHT + 14}" y="{_TOP - 14}">best plan changes</text>',
        *_axis(limit, scale, middle, foot),
    ]
    for i, row in enumerate(drawn):
        parts += _row(row, _TOP + _PITCH * i, scale, middle)
    if still:
        label = f"little effect:  {', '.join(still)}"
        parts.append(f'<text class="quiet" x="24" y="{height - 14}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _legend() -> Iterator[str]:
    x, y = 24.0, 74
    for mark, label in (
        (f'<rect class="low" x="{{x:g}}" y="{y}" width="22" height="12"/>', "input lower"),
        (f'<rect class="high" x="{{x:g}}" y="{y}" width="22" height="12"/>', "input higher"),
        (f'<path class="inner" d="M{{x:g}} {y + 6}m11-7v14"/>', "values between"),
        (f'<rect class="again" x="{{x:g}}" y="{y + 3}" width="22" height="{_THIN}"/>',
         "and in brackets: planned again, where another plan is best"),
    ):  # fmt: skip
        yield mark.format(x=x)
        yield f'<text class="quiet" x="{x + 28:g}" y="{y + 10}">{label}</text>'
        x += 52 + 6.0 * len(label)


def _axis(limit: float, scale: float, middle: float, foot: float) -> Iterator[str]:
    yield '<g class="axis">'
    for at, label in ticks(limit, 46 / scale):
        x = middle + at * scale
        css = ' class="base"' * (at == 0)
        yield f'<path{css} d="M{x:.1f} {_TOP - 8}V{foot}"/>'
        yield f'<text x="{x:.1f}" y="{foot + 16}">{label}</text>'
    yield "</g>"


def _row(row: Row, y: float, scale: float, middle: float) -> Iterator[str]:
    text = y + 14
    yield f'<text class="name" x="{_LEFT - 92}" y="{text}">{escape(row.title)}</text>'
    yield f'<text class="quiet name" x="{_LEFT - 10}" y="{text}">{escape(row.value)}</text>'
    yield (
        f'<text class="quiet" x="{WIDTH - _RIGHT + 14}" y="{text}">'
        f"{escape(row.changes or '-')}</text>"
    )
    for bar in sorted(row.bars, key=lambda bar: -abs(bar.fixed or 0.0)):
        css = "high" if bar.factor > 1 else "low"
        yield _box(bar.fixed, css, y + 2, _HIGH, scale, middle)
    for at in row.inner:
        yield f'<path class="inner" d="M{middle + at * scale:.1f} {y + 2}v{_HIGH}"/>'
    for bar in sorted(row.bars, key=lambda bar: -abs(bar.replanned or 0.0)):
        yield _box(bar.replanned, "again", y + 3 + _HIGH, _THIN, scale, middle)
    yield from _numbers(row, y, scale, middle)


def _box(change: float | None, css: str, y: float, high: float, scale: float, middle: float) -> str:
    if not change:
        return ""
    x, width = middle + min(change, 0.0) * scale, abs(change) * scale
    return f'<rect class="{css}" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{high:g}"/>'


def _numbers(row: Row, y: float, scale: float, middle: float) -> Iterator[str]:
    for right, (longest, label) in ends_words(row).items():
        x = middle + (longest * scale + 6) * (1 if right else -1)
        css = "end" if right else "end left"
        yield f'<text class="{css}" x="{x:.1f}" y="{y + 15:g}">{escape(label)}</text>'
