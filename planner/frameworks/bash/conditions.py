"""Tests of bash, `[ ... ]` and `[[ ... ]]`, evaluated if their operands are known."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from planner.frameworks.bash.tree import Value, Word

if TYPE_CHECKING:
    from planner.frameworks.bash.expansion import Expansion


def plain_text(value: Value) -> str:
    """The text of a value, without the lines that it was written on."""
    return "".join(text for text, _ in value)


def matches(text: str, pattern: str) -> bool:
    """Glob match; patterns that could be slow are compared as plain text."""
    if pattern.count("*") > 4 or len(text) > 4096 or len(pattern) > 4096:
        return text == pattern
    return fnmatchcase(text, pattern)


class Tests:
    """`[ ... ]` and `[[ ... ]]`: True, False, or None if unknown."""

    def __init__(self, shell: Expansion) -> None:
        self.shell = shell

    def plain(self, operands: list[Value]) -> bool | None:
        return self.disjunction(
            [self.shell.known(plain_text(word)) for word in operands], "-o", "-a"
        )

    def compound(self, tokens: Sequence[str | Word]) -> bool | None:
        items: list[str | None] = []
        patterns = []
        for token in tokens:
            if isinstance(token, str):
                items.append(f"\0{token}")
            else:
                items.append(self.shell.known(plain_text(self.shell.value(token))))
                if any(not part.quoted for part in token):
                    patterns.append(len(items) - 1)
        self.patterns = patterns
        return self.disjunction(items, "\0||", "\0&&")

    def disjunction(self, items: list[str | None], either: str, both: str) -> bool | None:
        """A disjunction of conjunctions of single tests; None if there are parentheses."""
        if any(item in ("(", "\0(") for item in items):
            return None
        result: bool | None = False
        for part in _cut(items, either):
            every: bool | None = True
            for one in _cut(part, both):
                value = self.single(one)
                if every is not False and value is not True:
                    every = value
            if result is not True and every is not False:
                result = every
        return result

    def single(self, items: list[str | None]) -> bool | None:
        negated = False
        while items and items[0] in ("!", "\0!") and len(items) > 1:
            negated, items = not negated, items[1:]
        status = self.compare([item.lstrip("\0") if item else item for item in items])
        return None if status is None else status != negated

    def compare(self, items: list[str | None]) -> bool | None:
        if not items:
            return False
        if len(items) == 1:
            return None if items[0] is None else items[0] != ""
        if len(items) == 2 and items[0] in ("-z", "-n"):
            return None if items[1] is None else (items[1] == "") == (items[0] == "-z")
        if len(items) == 2 and items[0] == "-v" and items[1]:
            return items[1] in self.shell.variables
        if len(items) != 3 or items[0] is None or items[2] is None:
            return None
        left, sign, right = items[0], items[1], items[2]
        if sign in ("=", "=="):
            return matches(left, right) if hasattr(self, "patterns") else left == right
        if sign == "!=":
            return not (matches(left, right) if hasattr(self, "patterns") else left == right)
        if sign in ("<", ">"):
            return left < right if sign == "<" else left > right
        order = {
            "-eq": lambda a, b: a == b,
            "-ne": lambda a, b: a != b,
            "-lt": lambda a, b: a < b,
            "-le": lambda a, b: a <= b,
            "-gt": lambda a, b: a > b,
            "-ge": lambda a, b: a >= b,
        }.get(sign or "")
        if order is None:
            return None
        try:
            return bool(order(int(left[:18] or 0), int(right[:18] or 0)))
        except ValueError:
            return None


def _cut(items: list[str | None], separator: str) -> list[list[str | None]]:
    parts: list[list[str | None]] = [[]]
    for item in items:
        if item == separator:
            parts.append([])
        else:
            parts[-1].append(item)
    return parts
