"""Writes Python: calls with a comment on every argument, and the imports that they need."""

from __future__ import annotations

import re
from collections.abc import Iterable

from planner.frameworks.base import Flag
from planner.frameworks.bash_writer import comment


def call(head: str, flags: Iterable[Flag], indent: int, end: str = "") -> str:
    """`head(...)` with a keyword argument per line: the last part of a flag's name = its value."""
    space = " " * indent
    lines = [
        f"{space}    {one.name.rpartition('.')[2]}={one.words[1]},  {comment(one.why)}"
        for one in flags
    ]
    if not lines:
        return f"{space}{head}(){end}"
    return "\n".join([f"{space}{head}(", *lines, f"{space}){end}"])


def imports(lines: str, body: str) -> str:
    """The import lines whose last word is a name that the body uses; empty lines stay."""
    used = set(re.findall(r"\w+", body))
    return "\n".join(line for line in lines.splitlines() if not line or line.split()[-1] in used)
