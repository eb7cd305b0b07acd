"""What a notebook shows of an answer: its screen, and the pictures that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import RenderableType

from planner.answer import Document, EstimateAnswer, PlanAnswer, WhyAnswer
from planner.command import asked_of
from planner.documents import parse_request
from planner.drawing.page import fragment, paper
from planner.drawing.rank_map import ranks_screen, ranks_svg
from planner.drawing.svg import svg
from planner.drawing.text import timeline_screen
from planner.mixed.answer import MixedAnswer
from planner.mixed.screen import mixed_screen
from planner.ranks import RanksAnswer
from planner.sensitivities.analysis import PART
from planner.sensitivities.document import SensitivityAnswer
from planner.sensitivities.screen import sensitivity_screen
from planner.sensitivities.svg import tornado_svg
from planner.sizing.answer import SizingAnswer
from planner.sizing.picture import picture
from planner.sizing.request import parse_sizing
from planner.sizing.screen import sizing_screen
from planner.terminal import estimate_screen, plan_screen, why_screen
from planner.timeline import TimelineAnswer
from planner.timeline_commands import best_timeline

Parts = tuple[RenderableType, list[str]]


def _asked(answer: Any) -> Any:
    # A sensitivity's request has a part of its own.
    asked = {name: part for name, part in answer.request.items() if name != PART}
    return asked_of(parse_request(asked))


# Of each kind of answer its screen and its pictures.
PARTS: dict[type[Document], Callable[[Any], Parts]] = {
    PlanAnswer: lambda a: (plan_screen(a, _asked(a), paper()), best_timeline(a)),
    EstimateAnswer: lambda a: (estimate_screen(a, _asked(a), paper()), []),
    WhyAnswer: lambda a: (why_screen(a, _asked(a), paper()), []),
    SizingAnswer: lambda a: (sizing_screen(a, parse_sizing(a.request)), [picture(a)]),
    MixedAnswer: lambda a: (mixed_screen(a), []),
    TimelineAnswer: lambda a: (timeline_screen(a, paper()), [svg(a, "light")]),
    SensitivityAnswer: lambda a: (
        sensitivity_screen(a, _asked(a), paper()),
        [tornado_svg(a, "light")],
    ),
    RanksAnswer: lambda a: (ranks_screen(a, paper()), [ranks_svg(a)]),
}


def install() -> None:
    """Have every answer show itself where a notebook asks an object for its HTML."""
    for kind, parts in PARTS.items():
        kind._repr_html_ = lambda answer, of=parts: fragment(*of(answer))  # type: ignore[attr-defined]
