"""What `print` shows of an answer in Python: its screen, not its document."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from planner.documents.answer import EstimateAnswer, PlanAnswer, WhyAnswer

_MAX_COLUMNS = 100
SHOWN: tuple[type[BaseModel], ...] = (PlanAnswer, EstimateAnswer, WhyAnswer)


def text(answer: Any) -> str:
    """The screen of an answer, as wide as the terminal; its fields where rich is not installed."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return BaseModel.__str__(answer)
    from planner.inputs.requests.parser import parse_request
    from planner.presentation.terminal.plan_rows import asked_of

    page = io.StringIO()
    width = min(shutil.get_terminal_size().columns, _MAX_COLUMNS)
    console = Console(file=page, width=width, color_system=None, highlight=False)
    summary = asked_of(parse_request(answer.request))
    console.print(_screen(answer)(answer, summary, console))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())


def _screen(answer: Any) -> Callable[..., Any]:
    from planner.presentation.terminal import screens

    shown: dict[type[BaseModel], Callable[..., Any]] = {
        PlanAnswer: screens.plan_screen,
        EstimateAnswer: screens.estimate_screen,
        WhyAnswer: screens.why_screen,
    }
    return shown[type(answer)]


def install() -> None:
    """Have every answer print its screen."""
    for kind in SHOWN:
        kind.__str__ = text  # type: ignore[method-assign]
