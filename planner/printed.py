"""What `print` shows of an answer in Python: its screen, not its document."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from planner.commands.shared import asked_of
from planner.documents.answer import EstimateAnswer, PlanAnswer, WhyAnswer
from planner.intake.parsing import parse_request
from planner.terminal.screens import estimate_screen, plan_screen, why_screen

_MOST_COLUMNS = 100
SCREENS: dict[type[BaseModel], Callable[..., Any]] = {
    PlanAnswer: plan_screen,
    EstimateAnswer: estimate_screen,
    WhyAnswer: why_screen,
}


def text(answer: Any) -> str:
    """The screen of an answer, as wide as the terminal."""
    page = io.StringIO()
    width = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
    console = Console(file=page, width=width, color_system=None, highlight=False)
    asked = asked_of(parse_request(answer.request))
    console.print(SCREENS[type(answer)](answer, asked, console))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def install() -> None:
    """Have every answer print its screen."""
    for kind in SCREENS:
        kind.__str__ = text  # type: ignore[method-assign]
