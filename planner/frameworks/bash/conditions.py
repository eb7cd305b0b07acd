"""Tests of bash, `[ ... ]` and `[[ ... ]]`, evaluated if their operands are known."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from planner.frameworks.bash.tree import Value, Word

if TYPE_CHECKING:
    from planner.frameworks.bash.expansion import Expansion


_ORDERS = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt,
    "-le": operator.le, "-gt": operator.gt, "-ge": operator.ge,
}  # fmt: skip

_COMPARED = {*_ORDERS, "=", "==", "!="}


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
        self.globs = False  # whether `=` compares with a pattern

    def plain(self, operands: list[Value]) -> bool | None:
        self.say_unset([plain_text(word) for word in operands])
        return self.disjunction(
            [self.shell.tested(plain_text(word)) for word in operands], "-o", "-a"
        )

    def say_unset(self, texts: Sequence[str]) -> None:
        """Note what a comparison looks at and nothing here sets: the caller may."""
        names = [
            name
            for text in texts
            if self.shell.tested(text) == self.shell.known(text)
            for name in self.shell.unset_in(text)
        ]
        if names and any(text in _COMPARED for text in texts):
            shown = ", ".join(dict.fromkeys(names))[:200]
            self.shell.note(f"{shown} is not given: this test is taken as without it")

    def compound(self, tokens: Sequence[str | Word]) -> bool | None:
        self.globs = True
        texts = [
            one if isinstance(one, str) else plain_text(self.shell.value(one)) for one in tokens
        ]
        self.say_unset(texts)
        items = [
            f"\0{token}" if isinstance(token, str) else self.shell.tested(text)
            for token, text in zip(tokens, texts, strict=True)
        ]
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
        match items:
            case []:
                return False
            case [text]:
                return None if text is None else text != ""
            case ["-z" | "-n" as sign, text]:
                return None if text is None else (text == "") == (sign == "-z")
            case ["-v", str(name)] if name:
                return name in self.shell.variables
            case [str(left), str(sign), str(right)]:
                return self.ordered(left, sign, right)
        return None

    def ordered(self, left: str, sign: str, right: str) -> bool | None:
        """Whether two operands, as text or as numbers, stand in the order that a sign asks for."""
        if sign in ("=", "==", "!="):
            same = matches(left, right) if self.globs else left == right
            return same == (sign != "!=")
        if sign in ("<", ">"):
            return left < right if sign == "<" else left > right
        try:
            return bool(_ORDERS[sign](int(left[:18] or 0), int(right[:18] or 0)))
        except (KeyError, ValueError):
            return None


def _cut(items: list[str | None], separator: str) -> list[list[str | None]]:
    parts: list[list[str | None]] = [[]]
    for item in items:
        if item == separator:
            parts.append([])
        else:
            parts[-1].append(item)
    return parts


def searches(names: Sequence[str | None]) -> bool:
    """Whether a command is a `grep -q`, whose answer depends on what it reads."""
    quiet = (one and re.fullmatch("-[a-zA-Z]*q[a-zA-Z]*", one) for one in names[1:])
    return names[:1] == ["grep"] and any(quiet)


def found_in(text: str, names: Sequence[str | None]) -> bool | None:
    """Whether a plain word that `grep` looks for is in a text; None for patterns and options."""
    options = [one for one in names if one is None or one.startswith("-")]
    words = [one for one in names if one is not None and not one.startswith("-")]
    known = all(one is not None and re.fullmatch("--|-[qiEF]+", one) for one in options)
    if not known or len(words) != 1 or not re.fullmatch(r"[\w -]+", words[0]):
        return None
    low = any("i" in (one or "") for one in options)
    return (words[0].lower() in text.lower()) if low else words[0] in text
