"""A timeline as one self-contained static SVG: a lane per rank, with its memory below."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap
from xml.sax.saxutils import escape

import numpy as np

from planner.answers.pipelines import timeline_lanes
from planner.answers.pipelines.timeline import TimelineAnswer
from planner.documents.formats import share
from planner.presentation.drawing.theme import PATTERNS, STYLE, Theme, colours

WIDTH = 1200
LEFT, RIGHT, BOTTOM = 64, 100, 34
SPAN = WIDTH - LEFT - RIGHT
FONT = 11.0
_LINE = 16
_LINE_LENGTH = 170  # per line
_MIN_ACTION_PX = 4.0  # below this average width, columns are drawn instead of actions
_SEPARATED_PX = 3.5  # least width of an action that gets an outline
_MAX_ACTIONS = 40_000  # over all lanes; above this, columns are drawn instead
_MAX_COLUMNS = 60_000  # over all lanes


@dataclass(frozen=True)
class Rows:
    """Heights in pixels: a rank's bar, its memory area, and the pitch from one rank to the next."""

    bar: float
    memory: float
    pitch: float

    @classmethod
    def of(cls, ranks: int) -> Rows:
        """Tall lanes for few ranks, low ones for many."""
        for limit, bar, memory, gap in ((8, 26, 18, 14), (20, 18, 12, 9), (72, 10, 7, 4)):
            if ranks <= limit:
                return cls(bar, memory, bar + memory + gap)
        return cls(6, 4, 12)


def svg(answer: TimelineAnswer, theme: Theme = "auto") -> str:
    """The SVG document; theme: auto follows the reader's colour scheme.

    If there are too many actions, or they are too narrow on average, columns show each kind's share
    of the time.
    """
    drawn = timeline_lanes.lanes(answer)
    rows = Rows.of(answer.stages)
    above = top(answer)
    height = above + rows.pitch * answer.stages + BOTTOM
    p10_px = timeline_lanes.p10_action_s(drawn) / answer.makespan_s * SPAN
    mean_px = timeline_lanes.mean_s(drawn) / answer.makespan_s * SPAN
    dense = mean_px < _MIN_ACTION_PX or sum(map(len, answer.actions)) > _MAX_ACTIONS
    css = ' class="apart"' * (not dense and p10_px >= _SEPARATED_PX)
    name = f"{answer.title}: {timeline_lanes.headline(answer)}"
    described = "; ".join([*timeline_lanes.facts(answer), *timeline_lanes.basis(answer)])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" '
        f'viewBox="0 0 {WIDTH} {height:g}" class="timeline" role="img" '
        'aria-labelledby="tl-title tl-desc">',
        f'<title id="tl-title">{escape(name)}</title>',
        f'<desc id="tl-desc">{escape(described)}</desc>',
        f"<style>{colours(theme)}{STYLE}</style>",
        f"<defs>{PATTERNS}</defs>",
        '<rect class="page" width="100%" height="100%"/>',
        *_heading(answer, legend_notes(answer, dense, p10_px > FONT)),
        *_axis(answer, above, height - BOTTOM),
    ]
    peak = max(answer.peak_in_flight)
    for lane in drawn:
        y = above + rows.pitch * lane.rank
        parts += _lane_labels(answer, lane, rows, y)
        parts.append(
            f'<svg x="{LEFT}" y="{y:g}" width="{SPAN}" height="{rows.bar + rows.memory:g}" '
            f'class="lane"><rect class="idle" width="{SPAN}" height="{rows.bar:g}"/>'
            f"<g{css}>"
        )
        if dense:
            parts += _columns(answer, lane, rows)
        else:
            parts += _actions(answer, lane, rows)
        parts.append(_memory(answer, lane, rows, peak) + "</g>")
        if not dense:
            parts += _numbers(answer, lane, rows)
        parts.append("</svg>")
    return "\n".join([*parts, "</svg>\n"])


def top(answer: TimelineAnswer) -> float:
    """The y coordinate of the first lane, in pixels."""
    return 112.0 + _LINE * len(_caveat(answer))


def _caveat(answer: TimelineAnswer) -> list[str]:
    return wrap(answer.staleness, _LINE_LENGTH)


def legend_notes(answer: TimelineAnswer, dense: bool, numbered: bool) -> str:
    """The notes of the legend beside its colour swatches.

    dense: columns are drawn instead of actions; numbered: actions show their micro-batch numbers.
    """
    notes = [f"activations held, full height {max(answer.peak_in_flight):.4g}"]
    if dense:
        notes.append("height of a colour: its share of the time")
    else:
        notes += ["number: micro-batch"] * numbered
        notes += ["fainter: odd chunks"] * (answer.chunks > 1)
    return "; ".join(notes)


def _heading(answer: TimelineAnswer, notes: str) -> Iterator[str]:
    yield (
        f'<text class="title" x="{LEFT}" y="26">{escape(answer.title)}'
        f'<tspan class="quiet" dx="10">{escape(timeline_lanes.headline(answer))}</tspan></text>'
    )
    lines = [
        " · ".join(timeline_lanes.facts(answer)),
        " · ".join(timeline_lanes.basis(answer)),
        *_caveat(answer),
    ]
    for i, line in enumerate(lines):
        yield f'<text class="quiet" x="{LEFT}" y="{44 + _LINE * i}">{escape(line)}</text>'
    x, y = float(LEFT), top(answer) - 40
    entries = [(kind, timeline_lanes.KINDS[kind]) for kind in timeline_lanes.kinds_in(answer)] + [
        ("idle", "idle")
    ]
    for kind, label in entries:
        yield f'<rect class="swatch {kind}" x="{x:g}" y="{y:g}" width="22" height="12"/>'
        yield f'<text class="key" x="{x + 27:g}" y="{y + 10:g}">{label}</text>'
        x += 46 + 6.1 * len(label)
    yield f'<path class="memory" d="M{x:g} {y + 12:g}v-4h6v-4h6v-4h6v6h5v6z"/>'
    yield f'<text class="key notes" x="{x + 28:g}" y="{y + 10:g}">{notes}</text>'


def _axis(answer: TimelineAnswer, above: float, bottom: float) -> Iterator[str]:
    scale, sign = timeline_lanes.unit(answer.makespan_s)
    yield '<g class="axis">'
    for value in timeline_lanes.ticks(answer.makespan_s / scale):
        x = LEFT + value * scale / answer.makespan_s * SPAN
        yield f'<path d="M{x:.1f} {above - 6:g}V{bottom:g}"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15:g}">{value:g}</text>'
    yield f'<text class="unit" x="{WIDTH - RIGHT + 10}" y="{bottom + 15:g}">{sign}</text></g>'
    yield f'<text class="head" x="{LEFT - 8}" y="{above - 8:g}">rank</text>'
    yield f'<text class="head" x="{WIDTH - 12}" y="{above - 8:g}">idle / peak</text>'


def _lane_labels(
    answer: TimelineAnswer, lane: timeline_lanes.Lane, rows: Rows, y: float
) -> Iterator[str]:
    """The rank's name on the left; its idle share and peak on the right."""
    size = min(FONT, rows.pitch - 1)
    low = y + rows.bar / 2 + size * 0.36
    yield f'<text class="rank" x="{LEFT - 8}" y="{low:.1f}" font-size="{size:g}">{lane.rank}</text>'
    idle = share(max(0.0, 1 - lane.busy_s / answer.makespan_s))
    peak = f"{answer.peak_in_flight[lane.rank]:.4g}"
    end = f'class="side" x="{WIDTH - 12}" font-size="{size:g}"'
    if rows.memory < FONT:
        yield f'<text {end} y="{low:.1f}">{idle} / {peak}</text>'
        return
    yield f'<text {end} y="{low:.1f}">{idle}</text>'
    yield f'<text {end} y="{y + rows.bar + rows.memory - 3:g}">{peak}</text>'


def _actions(answer: TimelineAnswer, lane: timeline_lanes.Lane, rows: Rows) -> Iterator[str]:
    """One path for each kind and tone."""
    scale = SPAN / answer.makespan_s
    x = np.round(lane.start_s * scale, 1)
    width = np.round(lane.end_s * scale, 1) - x
    tone = np.where(lane.kind == timeline_lanes.WAIT, 0, lane.chunk % 2)
    for kind, letter in enumerate(timeline_lanes.KINDS):
        for odd in (0, 1):
            chosen = np.flatnonzero((lane.kind == kind) & (tone == odd) & (width > 0))
            if not len(chosen):
                continue
            boxes = "".join(
                f"M{a:.4g} 0h{w:.4g}v{rows.bar:g}h-{w:.4g}z"
                for a, w in zip(x[chosen].tolist(), width[chosen].tolist(), strict=True)
            )
            yield f'<path class="{letter}{" odd" * odd}" d="{boxes}"/>'


def _numbers(answer: TimelineAnswer, lane: timeline_lanes.Lane, rows: Rows) -> Iterator[str]:
    """The micro-batch numbers of the actions that have room for them."""
    scale = SPAN / answer.makespan_s
    size = min(FONT, rows.bar * 0.62)
    width = (lane.end_s - lane.start_s) * scale
    digits = np.char.str_len(lane.micro_batch.astype(str))
    fits = np.flatnonzero((width >= digits * size * 0.6 + 2.5) & (lane.kind != timeline_lanes.WAIT))
    middle = ((lane.start_s + lane.end_s) / 2 * scale)[fits].tolist()
    spans = "".join(
        f'<tspan x="{x:.4g}">{batch}</tspan>'
        for x, batch in zip(middle, lane.micro_batch[fits].tolist(), strict=True)
    )
    low = rows.bar / 2 + size * 0.36
    yield f'<text class="number" y="{low:.1f}" font-size="{size:.3g}">{spans}</text>'


def _columns(answer: TimelineAnswer, lane: timeline_lanes.Lane, rows: Rows) -> Iterator[str]:
    """Columns in which the height of each kind is its share of the time."""
    edges = timeline_lanes.column_edges(answer, min(SPAN // 2, _MAX_COLUMNS // answer.stages))
    x = edges * SPAN / answer.makespan_s
    count = len(edges) - 1
    # Rounded to a fifth of a pixel, so that equal neighbours merge into one box.
    tops = np.round(np.cumsum(lane.shares(edges), axis=1) * rows.bar * 5) / 5
    for kind, letter in enumerate(timeline_lanes.KINDS):
        low = tops[:, kind - 1] if kind else np.zeros(count)
        high = tops[:, kind]
        changes = np.flatnonzero((np.diff(low) != 0) | (np.diff(high) != 0)) + 1
        starts = np.concatenate([[0], changes])
        ends = np.concatenate([changes, [count]])
        boxes = "".join(
            f"M{x[a]:.5g} {rows.bar - high[a]:.3g}H{x[b]:.5g}v{high[a] - low[a]:.3g}H{x[a]:.5g}z"
            for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
            if high[a] > low[a]
        )
        if boxes:
            yield f'<path class="{letter}" d="{boxes}"/>'


def _memory(answer: TimelineAnswer, lane: timeline_lanes.Lane, rows: Rows, peak: float) -> str:
    """The activations that the rank holds over time, as an area scaled to the fullest rank."""
    scale = SPAN / answer.makespan_s
    if len(lane.held) > 2 * SPAN:
        edges = np.linspace(0, answer.makespan_s, SPAN + 1)
        at, counts = edges[:-1], lane.most_held(edges)
    else:
        at, counts = lane.held_at_s, lane.held
    foot = rows.bar + rows.memory
    x = np.round(at * scale, 1)
    y = np.round(foot - np.maximum(counts, 0) / peak * (rows.memory - 2), 1)
    # Of several changes at the same moment only the last is drawn.
    final = np.append(np.diff(x) > 0, True)
    x, y = x[final], y[final]
    differs = np.diff(y, prepend=foot) != 0
    steps = (
        f"H{a:.5g}V{b:.4g}" for a, b in zip(x[differs].tolist(), y[differs].tolist(), strict=True)
    )
    return f'<path class="memory" d="M0 {foot:g}{"".join(steps)}H{SPAN}V{foot:g}z"/>'
