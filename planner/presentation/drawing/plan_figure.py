"""Memory by stage, the parts of an iteration, and speed against memory, as an SVG for a paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from cost_models.units import GIB
from planner.answers.pipelines.timeline_lanes import ticks
from planner.documents.answer import PlanAnswer
from planner.documents.formats import plan_words, seconds, share
from planner.documents.plan_report import PlanReport
from planner.presentation.drawing.theme import MARKS, SERIES, SIGNS, Theme, colours, sheet

_MIN_SHARE = 0.001  # share of an iteration; smaller parts are not drawn
_SIGNS = ("", *SIGNS.values())
_PATTERNS = SERIES * 2  # of parts, each a colour and a sign; more than there are parts
_STAR = "M0-8L1.9-2.6L7.6-2.5L3.1 1L4.7 6.5L0 3.2L-4.7 6.5L-3.1 1L-7.6-2.5L-1.9-2.6z"
_STYLE = sheet("plan_figure") + "".join(
    f".figure .s{i}{{fill:var(--s{i})}}\n" for i in range(SERIES)
)


@dataclass(frozen=True)
class _Plot:
    """A rectangle of the page with two linear axes, each from a lowest to a highest value."""

    left: float
    top: float
    wide: float
    high: float
    across: tuple[float, float]
    up: tuple[float, float]

    def x(self, value: float) -> float:
        return self.left + self.wide * (value - self.across[0]) / (self.across[1] - self.across[0])

    def y(self, value: float) -> float:
        return self.top + self.high * (self.up[1] - value) / (self.up[1] - self.up[0])

    @property
    def foot(self) -> float:
        return self.top + self.high

    def title(self, text: str) -> str:
        return f'<text class="title" x="{self.left:g}" y="{self.top - 12:g}">{text}</text>'

    def x_axis(self, name: str, marks: Iterable[float], grid: bool = True) -> Iterator[str]:
        for value in marks:
            at = self.x(value)
            if grid:
                yield f'<path class="grid" d="M{at:.1f} {self.top:g}V{self.foot:g}"/>'
            yield f'<text class="middle" x="{at:.1f}" y="{self.foot + 18:g}">{value:,g}</text>'
        middle = self.left + self.wide / 2
        yield f'<text class="middle" x="{middle:g}" y="{self.foot + 38:g}">{name}</text>'

    def y_axis(self, name: str, marks: Iterable[float], room: float) -> Iterator[str]:
        for value in marks:
            at, end = self.y(value), self.left + self.wide
            yield f'<path class="grid" d="M{self.left:g} {at:.1f}H{end:g}"/>'
            yield f'<text class="end" x="{self.left - 6:g}" y="{at + 4:.1f}">{value:,g}</text>'
        transform = f"translate({self.left - room:g} {self.top + self.high / 2:g}) rotate(-90)"
        yield f'<text class="middle" transform="{transform}">{name}</text>'


def plan_figure(answer: PlanAnswer, theme: Theme = "auto") -> str:
    """The SVG document for an answer with a plan."""
    best = answer.best
    assert best is not None
    title = f"{answer.request['model']['name']}: {', '.join(plan_words(best.plan.model_dump()))}"
    return "\n".join([
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 566" width="900" height="566" '
        'class="figure" role="img" aria-labelledby="pf-title">',
        f"<style>{colours(theme, '.figure')}{_STYLE}</style><defs>",
        *map(_pattern, range(_PATTERNS)),
        '</defs><rect class="page" width="100%" height="100%"/>',
        f'<text id="pf-title" x="14" y="22">{escape(title)}</text>',
        *_memory(best),
        *_pareto(answer, best),
        *_time(best),
        "</svg>\n",
    ])  # fmt: skip


def _pattern(index: int) -> str:
    return (
        f'<pattern id="pf-{index}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect class="s{index % SERIES}" width="6" height="6"/>'
        f'<path class="sign" d="{_SIGNS[index % len(_SIGNS)]}"/></pattern>'
    )


def _box(index: int, x: float, y: float, wide: float, high: float) -> str:
    return (
        f'<rect fill="url(#pf-{index % _PATTERNS})" x="{x:.1f}" y="{y:.1f}" '
        f'width="{wide:.1f}" height="{high:.1f}"/>'
    )


def _legend(names: Iterable[str], x: float, y: float) -> Iterator[str]:
    for i, name in enumerate(names):
        yield _box(i, x, y + 19 * i, 16, 11)
        yield f'<text x="{x + 23:g}" y="{y + 10 + 19 * i:g}">{name}</text>'


def _memory(best: PlanReport) -> Iterator[str]:
    stages, capacity = best.memory.stages, best.memory.capacity_bytes / GIB
    top = max(capacity, best.memory.peak_bytes / GIB)
    plot = _Plot(58, 62, 250, 280, across=(-0.5, len(stages) - 0.5), up=(0.0, 1.05 * top))
    names = [name for name in stages[0].parts if any(stage.parts[name] for stage in stages)]
    yield plot.title("Memory by stage, and what there is")
    yield from plot.y_axis("GiB", ticks(top), room=40)
    yield from plot.x_axis("pipeline stage", _stage_ticks(len(stages)), grid=False)
    for stage in stages:
        low = 0.0
        for index, name in enumerate(names):
            high = low + stage.parts[name] / GIB
            start, end = plot.x(stage.stage - 0.4), plot.x(stage.stage + 0.4)
            yield _box(index, start, plot.y(high), end - start, plot.y(low) - plot.y(high))
            low = high
    yield f'<path class="limit" d="M{plot.left:g} {plot.y(capacity):.1f}h{plot.wide:g}"/>'
    yield from _legend((name.replace("_", " ") for name in names), 320, 66)


def _stage_ticks(stages: int) -> list[float]:
    """The stages with a number below their bar: all, or as many as there is room for."""
    return [tick for tick in ticks(stages - 1, 16) if tick.is_integer()] if stages > 1 else [0.0]


def _pareto(answer: PlanAnswer, best: PlanReport) -> Iterator[str]:
    front = sorted(answer.pareto, key=lambda row: row.memory.peak_bytes)
    points = [(row.memory.peak_bytes / GIB, row.tokens_per_s) for row in (*front, best)]
    memory, speed = (_padded_axis(values) for values in zip(*points, strict=True))
    plot = _Plot(548, 62, 334, 280, memory, speed)
    yield plot.title("Speed against memory")
    yield from plot.x_axis("peak memory, GiB", _ticks_between(*memory))
    yield from plot.y_axis("tokens per second", _ticks_between(*speed), room=70)
    *drawn, star = [(f"{plot.x(x):.1f}", f"{plot.y(y):.1f}") for x, y in points]
    if drawn:
        steps = "".join(f"H{x}V{y}" for x, y in drawn[1:])
        yield f'<path class="front" d="M{drawn[0][0]} {drawn[0][1]}{steps}"/>'
    for x, y in drawn:
        yield f'<path class="dot" d="{MARKS[0]}" transform="translate({x} {y})"/>'
    legend = (f"{plot.left + plot.wide - 90:g}", f"{plot.foot - 18:g}")
    for x, y in (star, legend):
        yield f'<path class="best" d="{_STAR}" transform="translate({x} {y})"/>'
    yield f'<text x="{plot.left + plot.wide - 76:g}" y="{plot.foot - 14:g}">best plan</text>'


def _padded_axis(values: Iterable[float]) -> tuple[float, float]:
    """An axis that holds the values with some room beside them."""
    low, high = min(points := list(values)), max(points)
    room = 0.06 * (high - low) or 0.1 * high
    return low - room, high + room


def _ticks_between(low: float, high: float) -> list[float]:
    step = ticks(high - low, 6)[1]
    return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _time(best: PlanReport) -> Iterator[str]:
    total = best.iteration_time_s
    plot = _Plot(58, 424, 600, 84, (0.0, total), (0.0, 1.0))
    taken = sorted(best.time_parts_s.items(), key=lambda part: -part[1])
    parts = [(name, s) for name, s in taken if s >= _MIN_SHARE * total]
    yield plot.title(f"Where the {seconds(total)} of an iteration go")
    yield from plot.x_axis("seconds", ticks(total), grid=False)
    low = 0.0
    for i, (_, s) in enumerate(parts):
        yield _box(i, plot.x(low), plot.top, plot.x(s) - plot.left, plot.high)
        low += s
    labels = (f"{name.replace('_', ' ')} {seconds(s)}, {share(s / total)}" for name, s in parts)
    yield from _legend(labels, plot.left + plot.wide + 20, plot.top - 4)
