"""A timeline as PNG or PDF, drawn by matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from importlib.util import find_spec
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from planner.documents.formats import share
from planner.documents.problems import refuse
from planner.drawing.theme import COLOURS, Mode
from planner.pipelines.timeline import TimelineAnswer
from planner.pipelines.timeline_lanes import (
    KINDS,
    WAIT,
    FloatArray,
    Lane,
    basis,
    column_edges,
    facts,
    headline,
    kinds_in,
    lanes,
    mean_s,
    unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HATCHES = {"F": "", "B": "////", "I": "....", "W": "----", "C": "\\\\\\\\\\\\"}
_DPI = 150
_WIDTH_INCH = 12.0
_FOOT_INCH, _LINE_INCH = 0.45, 0.18
_CHARACTERS = 190  # per line
_LEFT, _RIGHT = 0.05, 0.925  # edges of the plot, as shares of the width
_SPAN_INCH = _WIDTH_INCH * (_RIGHT - _LEFT)
_BAR, _FOOT = 0.58, 0.86  # where the bar and the memory area end, as shares of a lane's height
_LEAST_INCH = 0.04  # below this average width, columns are drawn instead of actions
_NUMBER_INCH = 0.16  # least width of an action that shows its micro-batch number
_MOST_COLUMNS = 600


def png(answer: TimelineAnswer, mode: Mode = "light", kind: Literal["png", "pdf"] = "png") -> bytes:
    """The picture as PNG or PDF.  Raises RequestError if matplotlib is not installed."""
    require_matplotlib()
    # A canvas of its own, since pyplot would look for a display and keep every figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paint = COLOURS[mode]
    head = _head_inch(answer)
    height = head + _FOOT_INCH + _lane_inch(answer) * answer.stages
    figure = Figure(figsize=(_WIDTH_INCH, height), dpi=_DPI, facecolor=paint["page"])
    FigureCanvasAgg(figure)
    area = (_LEFT, _FOOT_INCH / height, _RIGHT - _LEFT, 1 - (head + _FOOT_INCH) / height)
    axes = figure.add_axes(area)
    drawn = lanes(answer)
    dense = mean_s(drawn) / answer.makespan_s * _SPAN_INCH < _LEAST_INCH
    for lane in drawn:
        (_columns if dense else _actions)(axes, answer, lane, paint)
        _held(axes, answer, lane, paint)
    _frame(axes, answer, drawn, paint)
    _heading(figure, answer, paint, dense)
    page = io.BytesIO()
    figure.savefig(page, format=kind, facecolor=paint["page"])
    return page.getvalue()


def require_matplotlib() -> None:
    """Raise RequestError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        detail = "needs matplotlib: pip install matplotlib, or use --svg"
        raise refuse("", "not_installed", f"a figure {detail}")


def _head_inch(answer: TimelineAnswer) -> float:
    return 1.3 + _LINE_INCH * len(wrap(answer.staleness, _CHARACTERS))


def _lane_inch(answer: TimelineAnswer) -> float:
    return min(0.62, max(0.12, 14 / answer.stages))


def _look(kind: str, paint: dict[str, str]) -> dict[str, Any]:
    """The colours and hatch of a kind: a wait has the idle background, and its own hatch colour."""
    if kind == "C":
        return {"facecolor": paint["idle"], "edgecolor": paint["C"], "hatch": _HATCHES[kind]}
    return {"facecolor": paint[kind], "edgecolor": paint["page"], "hatch": _HATCHES[kind]}


def _actions(axes: Axes, answer: TimelineAnswer, lane: Lane, paint: dict[str, str]) -> None:
    scale, _ = unit(answer.makespan_s)
    inch = _SPAN_INCH / answer.makespan_s
    length = lane.end_s - lane.start_s
    axes.broken_barh([(0, answer.makespan_s / scale)], (lane.rank, _BAR), color=paint["idle"])
    for kind, letter in enumerate(KINDS):
        mine = lane.kind == kind
        spans = np.column_stack([lane.start_s[mine], length[mine]]) / scale
        look = _look(letter, paint)
        axes.broken_barh(spans.tolist(), (lane.rank, _BAR), linewidth=0.5, **look)
    numbered = (length * inch >= _NUMBER_INCH) & (lane.kind != WAIT) & (_lane_inch(answer) > 0.25)
    middle = ((lane.start_s + lane.end_s) / 2 / scale)[numbered].tolist()
    for x, batch in zip(middle, lane.micro_batch[numbered].tolist(), strict=True):
        axes.text(
            x, lane.rank + _BAR / 2, str(batch), ha="center", va="center", fontsize=8,
            color=paint["ink"],
        )  # fmt: skip


def _columns(axes: Axes, answer: TimelineAnswer, lane: Lane, paint: dict[str, str]) -> None:
    """Draw columns that each sum up many actions, coloured by each kind's share of the time."""
    scale, _ = unit(answer.makespan_s)
    edges = column_edges(answer, _MOST_COLUMNS)
    tops = np.cumsum(lane.shares(edges), axis=1) * _BAR
    foot = lane.rank + _BAR
    axes.broken_barh([(0, answer.makespan_s / scale)], (lane.rank, _BAR), color=paint["idle"])
    low = np.zeros(len(tops))
    for kind, letter in enumerate(KINDS):
        look = _look(letter, paint)
        axes.fill_between(
            edges / scale,
            foot - _to_end(low),
            foot - _to_end(tops[:, kind]),
            step="post",
            linewidth=0,
            **look,
        )
        low = tops[:, kind]


def _to_end(values: FloatArray) -> FloatArray:
    return np.append(values, values[-1])


def _held(axes: Axes, answer: TimelineAnswer, lane: Lane, paint: dict[str, str]) -> None:
    scale, _ = unit(answer.makespan_s)
    foot, high = lane.rank + _FOOT, _FOOT - _BAR
    at = np.append(lane.held_at_s, answer.makespan_s) / scale
    held = np.append(lane.held, 0.0) / max(answer.peak_in_flight)
    axes.fill_between(
        at, foot - high * held, foot, step="post", color=paint["memory"], alpha=0.6, linewidth=0
    )


def _frame(axes: Axes, answer: TimelineAnswer, lanes: list[Lane], paint: dict[str, str]) -> None:
    scale, sign = unit(answer.makespan_s)
    axes.set_xlim(0, answer.makespan_s / scale)
    axes.set_ylim(answer.stages, -0.1)
    axes.set_yticks([lane.rank + _BAR / 2 for lane in lanes], [str(lane.rank) for lane in lanes])
    axes.set_xlabel(sign, color=paint["quiet"], fontsize=9)
    axes.set_ylabel("rank", color=paint["quiet"], fontsize=9)
    size = min(8.0, 60 * _lane_inch(answer))
    axes.tick_params(colors=paint["quiet"], labelsize=size, length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_frame_on(False)
    for lane in lanes:
        idle = share(max(0.0, 1 - lane.busy_s / answer.makespan_s))
        words = f" {idle} / {answer.peak_in_flight[lane.rank]:.4g}"
        axes.text(
            answer.makespan_s / scale, lane.rank + _BAR / 2, words, va="center", fontsize=size,
            color=paint["quiet"],
        )  # fmt: skip


def _heading(figure: Figure, answer: TimelineAnswer, paint: dict[str, str], dense: bool) -> None:
    from matplotlib.patches import Patch

    height = figure.get_figheight()
    title = f"{answer.title}  {headline(answer)}"
    figure.text(_LEFT, 1 - 0.28 / height, title, fontsize=12, color=paint["ink"])
    lines = [" · ".join(facts(answer)), " · ".join(basis(answer))]
    for i, words in enumerate([*lines, *wrap(answer.staleness, _CHARACTERS)]):
        down = 0.52 + _LINE_INCH * i
        figure.text(_LEFT, 1 - down / height, words, fontsize=7.5, color=paint["quiet"])
    handles = [Patch(label=KINDS[kind], **_look(kind, paint)) for kind in kinds_in(answer)]
    handles.append(Patch(facecolor=paint["idle"], label="idle"))
    held = f"activations held, at most {max(answer.peak_in_flight):.4g}"
    handles.append(Patch(facecolor=paint["memory"], alpha=0.6, label=held))
    shares = "height of a colour: its share of the time; " * dense
    above = 1 - _head_inch(answer) / height
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(_LEFT - 0.005, above + 0.54 / height),
        ncols=len(handles), frameon=False, fontsize=8, labelcolor=paint["quiet"],
    )  # fmt: skip
    figure.text(
        0.99, above + 0.08 / height, f"{shares}idle / peak", ha="right", fontsize=7.5,
        color=paint["quiet"],
    )  # fmt: skip
