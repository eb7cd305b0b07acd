"""The tornado chart as PNG or PDF, drawn by matplotlib (the extra `plot`)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Literal

from planner.drawing.png import require_matplotlib
from planner.drawing.theme import COLOURS, Mode
from planner.sensitivities.documents import SensitivityAnswer
from planner.sensitivities.tornado import (
    base_words,
    ends_words,
    heading,
    of_what,
    quiet,
    reach,
    rows,
    ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 150
_WIDTH_INCH, _HEAD_INCH, _FOOT_INCH, _ROW_INCH = 12.0, 1.2, 0.6, 0.34
_LEFT, _RIGHT = 0.23, 0.81  # edges of the plot, as shares of the width
_BESIDE = 1.55  # axis range over the longest bar, which leaves room for the numbers
_HIGH, _THIN = 0.5, 0.18  # bar heights, as shares of a row


def tornado_png(
    answer: SensitivityAnswer, mode: Mode = "light", kind: Literal["png", "pdf"] = "png"
) -> bytes:
    """The picture as PNG or PDF.  Raises RequestError if matplotlib is not installed."""
    require_matplotlib()
    # A canvas of its own, since pyplot would look for a display and keep every figure.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    paint, drawn = COLOURS[mode], rows(answer)
    height = _HEAD_INCH + _FOOT_INCH + _ROW_INCH * len(drawn)
    figure = Figure(figsize=(_WIDTH_INCH, height), dpi=_DPI, facecolor=paint["page"])
    FigureCanvasAgg(figure)
    area = (_LEFT, _FOOT_INCH / height, _RIGHT - _LEFT, _ROW_INCH * len(drawn) / height)
    axes = figure.add_axes(area)
    most = reach(drawn)
    looks = {up: _look(up, paint) for up in (False, True)}
    for y, row in enumerate(drawn):
        for bar in sorted(row.bars, key=lambda bar: -abs(bar.fixed or 0.0)):
            axes.barh(y + 0.32, bar.fixed or 0.0, _HIGH, **looks[bar.factor > 1])
        for bar in sorted(row.bars, key=lambda bar: -abs(bar.replanned or 0.0)):
            axes.barh(y + 0.7, bar.replanned or 0.0, _THIN, color=paint["ink"], alpha=0.75)
        axes.vlines(row.inner, y + 0.07, y + 0.57, color=paint["ink"], alpha=0.55, linewidth=0.7)
        for right, (longest, words) in ends_words(row).items():
            side = 1 if right else -1
            axes.annotate(
                words, (side * longest, y + 0.32), (5 * side, 0), textcoords="offset points",
                ha="left" if right else "right", va="center", fontsize=7.5, color=paint["ink"],
            )  # fmt: skip
        axes.text(
            1.02, y + 0.32, row.changes or "-", transform=axes.get_yaxis_transform(),
            va="center", fontsize=7.5, color=paint["quiet"],
        )  # fmt: skip
    _frame(axes, [f"{row.title}   {row.value}" for row in drawn], most, paint)
    _heading(figure, answer, looks, paint)
    page = io.BytesIO()
    figure.savefig(page, format=kind, facecolor=paint["page"])
    return page.getvalue()


def _look(higher: bool, paint: dict[str, str]) -> dict[str, Any]:
    if higher:
        return {"facecolor": paint["I"], "edgecolor": paint["page"], "hatch": "////"}
    return {"facecolor": paint["F"], "edgecolor": paint["page"]}


def _frame(axes: Axes, names: list[str], most: float, paint: dict[str, str]) -> None:
    marks = list(ticks(most, most / 6))
    axes.set_xlim(-most * _BESIDE, most * _BESIDE)
    axes.set_ylim(len(names), -0.1)
    axes.set_yticks([y + 0.32 for y in range(len(names))], names)
    axes.set_xticks([x for x, _ in marks], [label for _, label in marks])
    axes.tick_params(length=0, labelsize=8, labelcolor=paint["quiet"])
    axes.tick_params(axis="y", labelcolor=paint["ink"])
    axes.grid(axis="x", color=paint["grid"], linewidth=0.7)
    axes.axvline(0, color=paint["ink"], linewidth=1)
    axes.set_axisbelow(True)
    axes.set_facecolor(paint["page"])
    axes.set_frame_on(False)


def _heading(
    figure: Figure,
    answer: SensitivityAnswer,
    looks: dict[bool, dict[str, Any]],
    paint: dict[str, str],
) -> None:
    from matplotlib.patches import Patch

    height = figure.get_figheight()
    title = f"{heading(answer)}   {of_what(answer)}"
    figure.text(0.02, 1 - 0.28 / height, title, fontsize=12, color=paint["ink"], parse_math=False)
    words = " · ".join(base_words(answer))
    figure.text(0.02, 1 - 0.5 / height, words, fontsize=7.5, color=paint["quiet"], parse_math=False)
    again = "and in brackets: planned again, where another plan is best"
    handles = [
        Patch(label="input lower", **looks[False]),
        Patch(label="input higher", **looks[True]),
        Patch(label=again, color=paint["ink"], alpha=0.75),
    ]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.015, 1 - 0.58 / height),
        ncols=len(handles), frameon=False, fontsize=8, labelcolor=paint["quiet"],
    )  # fmt: skip
    above = 1 - (_HEAD_INCH - 0.1) / height
    figure.text(_RIGHT + 0.012, above, "best plan changes", fontsize=7.5, color=paint["quiet"])
    if still := quiet(answer):
        words = f"little effect:  {', '.join(still)}"
        figure.text(0.02, 0.1 / height, words, fontsize=7.5, color=paint["quiet"], parse_math=False)
