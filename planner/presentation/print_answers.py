"""What `print` shows of an answer in Python: its screen, not its document."""

from __future__ import annotations

import io
import shutil

from pydantic import BaseModel

_MAX_COLUMNS = 100


def short(answer: BaseModel) -> str:
    """What a Python prompt shows: a whole answer would fill hundreds of screens."""
    return f"<{type(answer).__name__}: print it to see its screen; .model_dump() has every field>"


def text(answer: BaseModel) -> str:
    """The screen of an answer, as wide as the terminal; its fields where rich is not installed."""
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        return BaseModel.__str__(answer)
    from planner.presentation.answer_screens import SCREENS

    page = io.StringIO()
    width = min(shutil.get_terminal_size().columns, _MAX_COLUMNS)
    console = Console(file=page, width=width, color_system=None, highlight=False)
    console.print(SCREENS[type(answer)](answer, console))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines())
