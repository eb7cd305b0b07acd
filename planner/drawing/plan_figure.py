"""Memory by stage, the parts of an iteration, and speed against memory, as a figure for a paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cost_models.units import GIB
from planner.documents.answer import PlanAnswer
from planner.documents.formats import plan_words, seconds, share
from planner.documents.plan_report import PlanReport
from planner.drawing.figure import Kind, saved, styled_figure
from planner.drawing.palette import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HATCHES = ("", "////", "....", "\\\\\\\\", "----", "xxxx", "||||", "++++", "")
_LEAST = 0.001  # share of an iteration; smaller parts are not drawn
_MOST_MARKED = 16  # up to this many stages, each has its number on the axis


def plan_figure(answer: PlanAnswer, kind: Kind) -> bytes:
    """The file for an answer with a plan.  Raises RequestError if matplotlib is not installed."""
    best = answer.best
    assert best is not None
    with styled_figure(4.4) as figure:
        model = answer.request["model"]["name"]
        figure.suptitle(
            f"{model}: {', '.join(plan_words(best.plan.model_dump()))}", fontsize=9, x=0.01,
            ha="left",
        )  # fmt: skip
        grid = figure.add_gridspec(2, 2, height_ratios=(3, 1), width_ratios=(3, 2))
        _memory(figure.add_subplot(grid[0, 0]), best)
        _pareto(figure.add_subplot(grid[0, 1]), answer, best)
        _time(figure.add_subplot(grid[1, :]), best)
        return saved(figure, kind)


def _look(place: int) -> dict[str, Any]:
    shades = (*COLOURS["light"], "#b9c0c8")
    return {
        "facecolor": shades[place % len(shades)], "hatch": _HATCHES[place % len(_HATCHES)],
        "edgecolor": "white",
    }  # fmt: skip


def _memory(axes: Axes, best: PlanReport) -> None:
    stages = best.memory.stages
    places = [stage.stage for stage in stages]
    low = [0.0] * len(stages)
    names = [name for name in stages[0].parts if any(stage.parts[name] for stage in stages)]
    for place, name in enumerate(names):
        held = [stage.parts[name] / GIB for stage in stages]
        axes.bar(places, held, bottom=low, width=0.8, label=name, linewidth=0.2, **_look(place))
        low = [a + b for a, b in zip(low, held, strict=True)]
    axes.axhline(best.memory.capacity_bytes / GIB, color="black", linewidth=0.8, linestyle="--")
    if len(places) <= _MOST_MARKED:
        axes.set_xticks(places)
    axes.set_title("Memory by stage, and what there is")
    axes.set_xlabel("pipeline stage")
    axes.set_ylabel("GiB")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), handlelength=1.2)


def _time(axes: Axes, best: PlanReport) -> None:
    total = best.iteration_time_s
    parts = sorted(best.time_parts_s.items(), key=lambda part: -part[1])
    low = 0.0
    for place, (name, taken) in enumerate(parts):
        if taken < _LEAST * total:
            continue
        label = f"{name.replace('_', ' ')} {seconds(taken)}, {share(taken / total)}"
        axes.barh(0, taken, left=low, height=0.6, label=label, linewidth=0.2, **_look(place))
        low += taken
    axes.set_xlim(0, total)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("seconds")
    axes.set_title(f"Where the {seconds(total)} of an iteration go")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=1.2)


def _pareto(axes: Axes, answer: PlanAnswer, best: PlanReport) -> None:
    front = sorted(answer.pareto, key=lambda one: one.memory.peak_bytes)

    def points(reports: list[PlanReport]) -> tuple[list[float], list[float]]:
        return (
            [one.memory.peak_bytes / GIB for one in reports],
            [one.tokens_per_s for one in reports],
        )

    shade = COLOURS["light"][0]
    axes.step(*points(front), where="post", color=shade, marker="o", markersize=3)
    axes.plot(*points([best]), "*", color="black", markersize=9, label="best plan")
    axes.set_title("Speed against memory")
    axes.legend(loc="lower right")
    axes.set_xlabel("peak memory, GiB")
    axes.set_ylabel("tokens per second")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid()
