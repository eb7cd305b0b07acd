"""What a command writes: a screen, a document or files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from planner.documents.saving import write_picture

# At the end of a line, and the codes of colours behind them.
_BLANKS = re.compile(r" +((?:\x1b\[[\d;]*m)*)$", re.MULTILINE)


class Screen(Console):
    """A console that shows control characters of a document as ?, and dies of no closed pipe."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments of a renderable, their text printable; colours are not in the text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(_printable(segment.text), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, without the blanks that fill a column up to the end of its line."""
        with self.capture() as page:
            super().print(*objects, **options)
        self.file.write(_BLANKS.sub(r"\1", page.get()))

    def on_broken_pipe(self) -> None:
        """Leave it to the command line, as for any other output."""
        raise BrokenPipeError


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def print_json(answer: BaseModel) -> None:
    """Print an answer as its document."""
    print(answer.model_dump_json(indent=2))


def show(
    answer: BaseModel,
    json: bool,
    draw: Callable[[Screen], RenderableType],
    lines: Iterable[str] = (),
) -> None:
    """Print an answer as its document, or as a screen with plain lines below."""
    if json:
        print_json(answer)
        return
    screen = Screen()
    screen.print(draw(screen))
    for line in lines:
        screen.print(line, soft_wrap=True, markup=False)


def print_document(document: Mapping[str, Any]) -> None:
    """Print plain data as JSON."""
    import json

    print(json.dumps(document, indent=2))


def write_figures(
    paths: Mapping[str, Path | None], draw: Callable[[Any], bytes] | None
) -> list[Path]:
    """Draw all that have a file, by kind, then write: what is refused leaves nothing half done.

    draw: None where there is nothing to draw, which the screen says.
    """
    if draw is None:
        return []
    drawn = {path: draw(kind) for kind, path in paths.items() if path is not None}
    for path, data in drawn.items():
        write_picture(path, data)
    return list(drawn)
