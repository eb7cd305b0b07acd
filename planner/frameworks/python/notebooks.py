"""Jupyter notebooks as one Python text."""

from __future__ import annotations

import json
import re
from typing import Any

from planner.frameworks.read_results import Unreadable

# Magics of IPython, and commands for a shell.
_MAGIC = re.compile(r"^(\s*)([%!?]|.*\?$).*$")
_OTHER_CELL = re.compile(r"^\s*%%(?!time|capture)")


def cells(text: str) -> tuple[str, list[int]]:
    """The code of a notebook, and for each of its lines that of the file.

    Lines of magics are empty.  Raises Unreadable.
    """
    lines: list[str] = []
    places: list[int] = []
    position, line = 0, 1
    for source in _sources(text):
        for one in source.splitlines():
            stands = text.find(json.dumps(one, ensure_ascii=False)[1:-1], position)
            if stands >= 0:
                line += text.count("\n", position, stands)
                position = stands
            lines.append(_MAGIC.sub(r"\1pass", one))
            places.append(line)
    return "\n".join(lines), [*places, line]


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
