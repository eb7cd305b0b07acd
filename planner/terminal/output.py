"""What a command writes: a screen, a document or files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from planner.documents.problems import refuse, shown

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


def write_picture(path: Path, data: bytes) -> None:
    """Write what a person asked to see, over what was there; RequestError where that cannot be."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise refuse("", "cannot_write", f"cannot write {path}: {error.strerror}") from None


def write_figures(paths: Mapping[str, Path | None], draw: Callable[[Any], bytes]) -> list[Path]:
    """Draw all that have a file, by kind, then write: what is refused leaves nothing half done."""
    drawn = {path: draw(kind) for kind, path in paths.items() if path is not None}
    for path, data in drawn.items():
        write_picture(path, data)
    return list(drawn)


def write_files(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write files into a folder that has none of them; where they are now.

    Raises RequestError where that cannot be.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise refuse("", "cannot_write", f"{folder} is not a folder")
        present = [name for name in files if (folder / name).exists()]
        if present:
            raise refuse("", "file_exists", f"{folder} already has {', '.join(present)}")
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(0o755)
    except OSError as error:
        detail = f"cannot write {shown(str(error.filename or folder))}: {error.strerror}"
        raise refuse("", "cannot_write", detail) from None
    return [folder / name for name in files]
