"""Variables of a script whose assignments say the values of its options."""

from __future__ import annotations

import re
from collections.abc import Mapping

from planner.answers.lint.findings import FlagChange

# A value that is one variable, after an option.
_VARIABLE = r"""(?:\s+|=)["']?\$\{?(\w+)\}?["']?(?![\w$/.-])"""


def variable_of(line: str, option: str) -> str:
    """The variable that is the whole value of an option of a line; empty: another value."""
    found = re.search(rf"(?<![\w-]){re.escape(option)}{_VARIABLE}", line, re.ASCII)
    return found[1] if found else ""


def assign(lines: Mapping[str, list[str]], variable: str, change: FlagChange) -> bool:
    """Whether the variable's only assignment, of the value before, now has the one after."""
    if change.before is None or change.after is None:
        return False
    found = _assignments(lines, variable)
    if len(found) != 1:
        return False
    ((rows, place),) = found
    value = rf"(\b{variable}=[\"']?(?:\$\{{\w+:?-)?){re.escape(change.before)}(?![\w.$-])"
    new, count = re.subn(value, lambda match: f"{match[1]}{change.after}", rows[place])
    if count == 1:
        rows[place] = new
    return count == 1


def drop(lines: Mapping[str, list[str]], variable: str) -> None:
    """Empties the line that only assigns a variable of which nothing else speaks."""
    named = [
        (rows, place)
        for rows in lines.values()
        for place, row in enumerate(rows)
        if re.search(rf"\b{variable}\b", row) and not row.lstrip().startswith("#")
    ]
    if len(named) == 1:
        ((rows, place),) = named
        if re.fullmatch(rf"\s*{variable}=[\w.\"']*\s*(#.*)?", rows[place]):
            rows[place] = ""


def _assignments(lines: Mapping[str, list[str]], variable: str) -> list[tuple[list[str], int]]:
    sets = re.compile(rf"^[^#]*(?<![\w$]){variable}\+?=(?!=)|\b(?:read|for)\b.*\b{variable}\b")
    return [
        (rows, place)
        for rows in lines.values()
        for place, row in enumerate(rows)
        if sets.search(row)
    ]
