"""Days against cost as a figure for a paper: a line per kind, and the Pareto front over them."""

from __future__ import annotations

from planner.documents.formats import dollars, short
from planner.drawing.figure import MARKERS, Kind, log_ticks, saved, styled_figure
from planner.drawing.palette import COLOURS
from planner.sizing.answer import SizingAnswer

_NEAR = 1.12  # ratio in cost and days below which labels would overlap


def sizing_figure(answer: SizingAnswer, kind: Kind) -> bytes:
    """The figure as a file.  Raises RequestError if matplotlib is not installed."""
    model, training = answer.request["model"], answer.request["training"]
    with styled_figure(3.6) as figure:
        axes = figure.add_subplot()
        shades = COLOURS["light"]
        rows = [row for row in answer.rows if row.cost_usd and row.days]
        kinds = list(dict.fromkeys(row.accelerator for row in rows))
        for place, name in enumerate(kinds):
            own = [row for row in rows if row.accelerator == name]
            axes.plot(
                [row.cost_usd or 0.0 for row in own], [row.days or 0.0 for row in own],
                marker=MARKERS[place % len(MARKERS)], markersize=4, label=name,
                color=shades[place % len(shades)],
            )  # fmt: skip
        front = [answer.rows[i] for i in answer.front]
        axes.plot(
            [row.cost_usd or 0.0 for row in front], [row.days or 0.0 for row in front],
            color="black", linewidth=0.8, linestyle="--", marker="o", markersize=8,
            markerfacecolor="none", label="no other is cheaper and faster",
        )  # fmt: skip
        last = None
        for row in front:
            at = (row.cost_usd or 0.0, row.days or 0.0)
            if last is not None and at[0] < _NEAR * last[0] and at[1] * _NEAR * _NEAR > last[1]:
                continue
            axes.annotate(
                f"{row.accelerators:,}", at, (-6, -3), textcoords="offset points", fontsize=7,
                ha="right", va="top",
            )  # fmt: skip
            last = at
        axes.margins(0.07)
        axes.set_xscale("log")
        axes.set_yscale("log")
        log_ticks(axes.xaxis, dollars)
        log_ticks(axes.yaxis, lambda value: f"{value:,g}")
        axes.set_xlabel("cost of the training")
        axes.set_ylabel("days")
        axes.set_title(
            f"{model['name']}, {short(training['tokens'])} tokens; numbers: accelerators"
        )
        axes.grid()
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return saved(figure, kind)
