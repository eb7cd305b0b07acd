"""Jupyter notebooks as one Python text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

from planner.frameworks.read_results import Unreadable

# Magics of IPython, and commands for a shell.
_MAGIC = re.compile(r"^(\s*)([%!?]|.*\?$).*$")
_CONTINUES = re.compile(r"\\\s*$")
_OTHER_CELL = re.compile(r"^\s*%%(?!time|capture)")


def cells(text: str) -> tuple[str, list[int], list[int]]:
    """The code of a notebook, for each of its lines that of the file, and what is left out.

    Lines of magics are empty.  Third: where cells begin that are no Python, whose lines are empty
    too.  Raises Unreadable.
    """
    lines: list[str] = []
    places: list[int] = []
    left_out: list[int] = []
    position, line = 0, 1
    for source in _sources(text):
        begins = len(places)
        for one in source.splitlines():
            stands = text.find(json.dumps(one, ensure_ascii=False)[1:-1], position)
            if stands >= 0:
                line += text.count("\n", position, stands)
                position = stands
            places.append(line)
        code = list(_code(source))
        if not is_python("\n".join(code)):
            left_out.append(places[begins])
            code = [""] * len(code)
        lines += code
    return "\n".join(lines), [*places, line], left_out


def of_cells(text: str) -> str:
    """A script that was saved from a notebook, its lines of magics without what they do."""
    return "\n".join(_code(text))


def _code(source: str) -> Iterator[str]:
    """The lines of a cell, those of magics without what they do."""
    continued = False
    for one in source.splitlines():
        if continued or _MAGIC.match(one):
            yield "" if continued else _MAGIC.sub(r"\1pass", one)
            continued = bool(_CONTINUES.search(one))
        else:
            yield one


def is_python(code: str) -> bool:
    """Whether a text can be parsed."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _sources(text: str) -> list[str]:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"no notebook: {error}") from None
    found = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise Unreadable("no notebook: it has no cells")
    code = [one for one in found if isinstance(one, dict) and one.get("cell_type") == "code"]
    sources = (one.get("source", "") for one in code)
    joined = ["".join(map(str, one)) if isinstance(one, list) else str(one) for one in sources]
    return [one for one in joined if not _OTHER_CELL.match(one)]
