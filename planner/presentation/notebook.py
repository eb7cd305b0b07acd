"""What a notebook shows of an answer: its screen, and the pictures that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from planner.answers.pipelines.timeline import TimelineAnswer
from planner.answers.plans.ranks import RanksAnswer
from planner.answers.sensitivities.documents import SensitivityAnswer
from planner.answers.sizing.answer import SizingAnswer
from planner.documents.answer import PlanAnswer
from planner.presentation.answer_screens import SCREENS
from planner.presentation.drawing.best_timeline import best_timeline
from planner.presentation.drawing.page import fragment, paper
from planner.presentation.drawing.rank_map import ranks_svg
from planner.presentation.drawing.sizing_figure import sizing_figure
from planner.presentation.drawing.svg import svg
from planner.presentation.drawing.tornado_svg import tornado_svg

PICTURES: dict[type[BaseModel], Callable[[Any], list[str]]] = {
    PlanAnswer: best_timeline,
    SizingAnswer: lambda a: [sizing_figure(a)],
    TimelineAnswer: lambda a: [svg(a, "light")],
    SensitivityAnswer: lambda a: [tornado_svg(a, "light")],
    RanksAnswer: lambda a: [ranks_svg(a, "light")],
}


def html(answer: Any) -> str:
    """The fragment of HTML that shows an answer."""
    pictures = PICTURES.get(type(answer), lambda _: [])
    return fragment(SCREENS[type(answer)](answer, paper()), pictures(answer))


def install() -> None:
    """Have every answer show itself where a notebook asks an object for its HTML."""
    for kind in SCREENS:
        kind._repr_html_ = html  # type: ignore[attr-defined]
