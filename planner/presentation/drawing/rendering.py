"""SVG drawings as PNG and PDF, made by typst (the extra `plot`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal

from planner.documents.problems import refuse
from planner.presentation.drawing.theme import Theme

Kind = Literal["svg", "png", "pdf"]
PAGE_INCH, SCREEN_INCH = 7.0, 12.0  # the text of a paper, where a figure needs no scaling; a screen
_PNG_WIDE_PX = 2100
_PAGE = b"""
#set page(width: auto, height: auto, margin: 0pt)
#image(bytes(sys.inputs.svg), format: "svg", width: float(sys.inputs.inch) * 1in)
"""


def drawing(
    draw: Callable[[Theme], str], kind: Kind, theme: Theme = "auto", wide_inch: float = PAGE_INCH
) -> bytes:
    """A drawing as a file of a kind; fonts are embedded in a PDF, and auto is light in all but SVG.

    draw: the SVG in a theme.  Raises RequestError if typst is needed and not installed.
    """
    if kind == "svg":
        return draw(theme).encode()
    if find_spec("typst") is None:
        raise refuse("", "not_installed", f"--{kind} needs typst: pip install typst, or use --svg")
    import typst

    svg = _without_variables(draw("light" if theme == "auto" else theme))
    inputs = {"svg": svg, "inch": str(wide_inch)}
    # Without a date, so that the same answer gives the same file.
    file = typst.compile(
        _PAGE, format=kind, ppi=_PNG_WIDE_PX / wide_inch, sys_inputs=inputs, timestamp=0
    )
    assert isinstance(file, bytes)
    return file


def _without_variables(svg: str) -> str:
    """The drawing with its style sheet's variables written out, which typst does not know."""
    head, sheet, drawing = re.split("(<style>.*?</style>)", svg, maxsplit=1, flags=re.S)
    values = dict(re.findall(r"--(\w+):([^;}]+)", sheet))
    return head + re.sub(r"var\(--(\w+)\)", lambda name: values[name[1]], sheet) + drawing
