"""Commands of a script that set variables: assignments, `((...))`, `let` and `printf -v`."""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

from planner.frameworks.bash import arithmetic, tree
from planner.frameworks.bash.conditions import plain_text
from planner.frameworks.bash.reads import Reads
from planner.frameworks.bash.substitutions import formatted
from planner.frameworks.bash.tree import Value, Word

_NAME = r"([A-Za-z_]\w*)"
_RANGE = re.compile(r"\{(-?\d{1,6})\.\.(-?\d{1,6})\}", re.ASCII)
_STEP = re.compile(rf"\s*(?:{_NAME}\s*(\+\+|--)|(\+\+|--)\s*{_NAME})\s*", re.ASCII)
_ASSIGNED = re.compile(rf"\s*{_NAME}\s*([*/%+&^|-]|<<|>>)?=(?!=)(.*)", re.ASCII | re.DOTALL)


class Calculations(Reads, ABC):
    """Evaluation of assignments and of arithmetic that changes variables."""

    def assign(self, assignment: tree.Assignment) -> None:
        new: Value | list[Value]
        if assignment.elements is not None:
            new = [value for word in assignment.elements for value in self.fields(word)]
            if assignment.append:
                new = [*self.cells(assignment.name), *new]
            new = self.counted(new)
        elif assignment.index is not None:
            new = self.with_cell(assignment, self.number(assignment.index))
        else:
            new = self.value(assignment.value)
            old = self.variables.get(assignment.name)  # `${NAME:=...}` in the value may have set it
            if isinstance(old, list):
                new = [(*(old[0] if old and assignment.append else ()), *new), *old[1:]]
            elif assignment.append:
                new = (*(old or ()), *new)
        for value in new if isinstance(new, list) else [new]:
            self.charge(sum(len(text) + 1 for text, _ in value))
        self.variables[assignment.name] = new

    def cells(self, name: str) -> list[Value]:
        """The elements of a variable; one that is no array is its only element."""
        old = self.variables.get(name)
        return list(old) if isinstance(old, list) else [old] if old else []

    def with_cell(self, assignment: tree.Assignment, place: int | None) -> list[Value]:
        """An array after an assignment to its element at this place."""
        added, cells = self.value(assignment.value), self.cells(assignment.name)
        if place is None or not 0 <= place <= len(cells):
            return [((self.unknown(f"${{{assignment.name}[...]}}"), assignment.line),)]
        before = cells[place] if assignment.append and place < len(cells) else ()
        return [*cells[:place], (*before, *added), *cells[place + 1 :]]

    def calculate(self, expression: Word) -> int | None:
        """The value of an arithmetic command, whose assignments are made; None if unknown."""
        return self.calculated(plain_text(self.value(expression)))

    def calculated(self, text: str) -> int | None:
        """The value of the last of several expressions with commas between them."""
        found: int | None = 0
        self.charge(len(text))
        for one in _parts(text):
            if step := _STEP.fullmatch(one):
                found = self.stepped(step)
            elif assigned := _ASSIGNED.fullmatch(one):
                name, operator, right = assigned.groups()
                found = self.kept(name, f"{name} {operator} ({right})" if operator else right)
            else:
                found = self.valued(one)
        return found

    def stepped(self, step: re.Match[str]) -> int | None:
        """The value of `i++` before it counts, or of `++i` after."""
        name = step[1] or step[4]
        before = self.valued(name)
        after = self.kept(name, f"{name} {(step[2] or step[3])[0]} 1")
        return before if step[1] else after

    def kept(self, name: str, text: str) -> int | None:
        """The value of an expression, which the variable has from here."""
        found = self.valued(text)
        new = self.unknown(f"${name}") if found is None else str(found)
        self.variables[name] = ((new, self.line),)
        return found

    def sets(self, name: str, words: Sequence[Value], names: Sequence[str | None]) -> None:
        """`let EXPRESSION...`, or `printf -v NAME FORMAT ARGUMENT...` from the name on."""
        if name == "let":
            for word in words:
                self.calculated(plain_text(word))
            return
        if not names or not names[0]:
            return
        known = [one for one in names[1:] if one is not None]
        text = formatted(known) if len(known) == len(names) - 1 else None
        new = self.unknown(f"${names[0]}") if text is None else text
        self.variables[names[0]] = ((new, self.line),)

    def choices(self, word: Word) -> list[Value]:
        """The fields of a word of `for`, which may be a range: `{0..7}`."""
        (first, *more) = word
        span = _RANGE.fullmatch(first.source) if isinstance(first, tree.Opaque) else None
        if span is None or more:
            return self.fields(word)
        start, end = int(span[1]), int(span[2])
        self.charge(abs(end - start))
        numbers = range(start, end + 1) if start <= end else range(start, end - 1, -1)
        return [((str(one), first.line),) for one in numbers]

    def forget(self, body: tree.Statements) -> None:
        """What a body assigns is unknown from here: not all of its rounds were followed."""
        for name in _assigned(body):
            self.variables[name] = ((self.unknown(f"${name}"), self.line),)

    def valued(self, text: str) -> int | None:
        known = self.known(text)
        if known is None or len(known) > 10_000 or self.unset_in(text):
            return None
        return arithmetic.evaluate(known, self.counted_as)


def _parts(text: str) -> Iterator[str]:
    """The expressions between commas that no parentheses hold."""
    depth, start = 0, 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _assigned(node: object) -> Iterator[str]:
    """The names of the variables that some commands assign."""
    if isinstance(node, tree.Assignment | tree.For):
        yield node.name
    if isinstance(node, tree.Calculation):
        yield from re.findall(rf"{_NAME}\s*(?:\+\+|--|[*/%+&^|-]?=(?!=))", node.source)
    if isinstance(node, tuple):
        for one in node:
            yield from _assigned(one)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _assigned(getattr(node, field.name))
