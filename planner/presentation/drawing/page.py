"""HTML of a command-line screen and its pictures: a whole page or a fragment."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from io import StringIO
from pathlib import Path

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

from planner.documents.saving import write_picture
from planner.presentation.drawing.theme import sheet

WIDTH = 100  # characters
# A terminal's black, red, green, yellow, blue, magenta, cyan and white, and their bright variants,
# adjusted to be readable on white.
_INKS = TerminalTheme(
    (255, 255, 255),
    (28, 33, 40),
    [(28, 33, 40), (179, 38, 30), (26, 127, 55), (138, 97, 0), (5, 80, 174), (130, 80, 223),
     (27, 124, 131), (95, 103, 112)],
    [(87, 96, 106), (207, 34, 46), (31, 136, 61), (154, 103, 0), (9, 105, 218), (125, 63, 201),
     (23, 112, 131), (87, 96, 106)],
)  # fmt: skip
_STYLE = sheet("page")


def write_page(
    path: Path, title: str, screen: RenderableType, pictures: Iterable[str] = ()
) -> None:
    """Write a self-contained HTML file.  Raises RequestError if it cannot be written.

    pictures: as SVG.
    """
    name = escape(title)
    body = f"<main>\n<h1>{name}</h1>\n{fragment(screen, pictures)}\n</main>"
    write_picture(path, document(name, _STYLE, body).encode())


def document(title: str, style: str, body: str) -> str:
    """A whole HTML document; title: as HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def fragment(screen: RenderableType, pictures: Iterable[str] = ()) -> str:
    """The screen and its pictures as an HTML fragment."""
    console = paper()
    console.print(screen)
    text = console.export_html(theme=_INKS, inline_styles=True, code_format="<pre>{code}</pre>")
    return "\n".join([text, *(f"<figure>{svg}</figure>" for svg in pictures)])


def paper() -> Console:
    """A console as wide as a page, which records its output."""
    return Console(file=StringIO(), record=True, width=WIDTH, highlight=False)
