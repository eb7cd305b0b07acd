"""Expansion of bash words: parameters expanded, fields split, unknown values marked."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter

from planner.frameworks.bash import arithmetic, tree
from planner.frameworks.bash.conditions import plain_text
from planner.frameworks.bash.launches import Argument, Outcome
from planner.frameworks.bash.patterns import NO_FILES, WILDCARDS
from planner.frameworks.bash.source import short
from planner.frameworks.bash.tree import Value, Word
from planner.frameworks.launch_files import given_with
from planner.frameworks.read_results import Unreadable

MAX_EXPANDED = 1 << 23
MAX_DEPTH = 50
MAX_WORDS = 4_096  # of one array or command
MAX_MARKS = 50_000
# Private-use characters from here on are placeholders for unknown values.
_FIRST_MARK = 0xF0000
MARK = re.compile(f"[{chr(_FIRST_MARK)}-{chr(_FIRST_MARK + 0xFFFD)}]")
# Variables that bash, the login or Slurm sets, to values that no script shows.
_AMBIENT = frozenset(
    re.findall(
        r"\S+",
        "BASH BASH_SOURCE BASHPID HOME HOSTNAME LINENO LOGNAME OLDPWD PATH PPID PWD RANDOM SECONDS "
        "SHELL SLURM_JOBID SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_LOCALID SLURM_NODEID "
        "SLURM_NODELIST SLURM_PROCID SLURM_SUBMIT_DIR TMPDIR UID USER 0 $ ! ? -",
    )
)
# Which process or node this is; a launch is read as the first one runs it.
_RANKS = re.compile(r"\$\{?(?:(?:\w+_)?RANK|SLURM_(?:PROC|NODE|LOCAL)ID|NODE_ID)\}?")


class _Fields:
    """The fields of a word under expansion.

    charge: counts characters against the limit; unknown: makes the placeholder of a value.
    """

    def __init__(self, charge: Callable[[int], None], unknown: Callable[[str], str]) -> None:
        self.done: list[Value] = []
        self.current: list[tuple[str, int, bool]] | None = None
        self.charge, self.unknown = charge, unknown

    def close(self) -> None:
        """End the current field, if one has begun."""
        if self.current is not None:
            self.done.append(self.without_files(self.current))
        self.current = None

    def without_files(self, runs: list[tuple[str, int, bool]]) -> Value:
        """The field, with its wildcards unknown if bash may replace it by file names."""
        pattern = "".join(
            re.sub(r"[^/]", "\0", text) if quoted else text for text, _, quoted in runs
        )
        if not WILDCARDS.search(pattern) or NO_FILES.search("".join(run[0] for run in runs)):
            return tuple(run[:2] for run in runs)
        return tuple(
            (text if quoted else re.sub(r"[*?[]", lambda one: self.unknown(one[0]), text), line)
            for text, line, quoted in runs
        )

    def push(self, text: str, line: int, quoted: bool) -> None:
        """Append text to the current field."""
        if self.current is None:
            self.current = []
        self.current.append((text, line, quoted))

    def spread(self, value: Value) -> None:
        """Append unquoted text, split into fields at blanks."""
        for text, line in value:
            self.charge(len(text))
            for number, piece in enumerate(re.split(r"[ \t\n]+", text)):
                if number:
                    self.close()
                if piece:
                    self.push(piece, line, False)

    def all_of(self, part: tree.Parameter, elements: Sequence[Value], between: str) -> bool:
        """Append the elements of an array; True for a quoted `${array[@]}` without elements."""
        star = "*" in (part.name, part.place)
        if part.quoted and not elements and star:
            self.push("", part.line, True)
        for number, element in enumerate(elements):
            if number and part.quoted and star:
                self.push(between, part.line, True)
            elif number:
                self.close()
            if not part.quoted:
                self.spread(element)
                continue
            self.push("", part.line, True)
            for text, line in element:
                self.charge(len(text))
                self.push(text, line, True)
        return part.quoted and not elements and not star


class Expansion(ABC):
    """The variables of a script under evaluation, and the expansion of words with them."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files, self.outcome = files, Outcome()
        self.variables: dict[str, Value | list[Value]] = {}
        self.exported: set[str] = set()
        self.functions: dict[str, tree.Command] = {}
        given = given_with(files)
        self.variables.update({name: ((text, 0),) for name, text in given.variables.items()})
        self.exported |= set(given.variables)
        self.parameters = given.positional
        self.positional: tuple[Value, ...] = ()
        self.called = False
        # Depth of nested loops, for break, and of functions and sourced files, for return.
        self.loops = self.inside = 0
        self.slurm: tuple[Argument, ...] = ()
        self.marks: list[tuple[str, bool]] = []
        self.marked: dict[tuple[str, bool], str] = {}
        self.defaults: dict[str, None] = {}
        self.current = self.main = ""
        self.line = 0
        self.depth = self.commands = self.expanded = 0

    # Limits and notes.

    def error(self, text: str) -> Unreadable:
        return Unreadable(text, self.current, self.line)

    def charge(self, size: int) -> None:
        self.expanded += size + 1
        if self.expanded > MAX_EXPANDED:
            raise self.error(f"variables expand to more than {MAX_EXPANDED} characters")

    def counted(self, words: list[Value]) -> list[Value]:
        """The same words, of an array or a command, if they are not too many.

        Readers look at each one of a launch, several times.
        """
        if len(words) > MAX_WORDS:
            raise self.error(f"an array or a command has more than {MAX_WORDS} words")
        return words

    @contextmanager
    def deeper(self) -> Iterator[None]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"commands nest more than {MAX_DEPTH} deep")
        try:
            yield
        finally:
            self.depth -= 1

    def note(self, text: str, line: int = 0) -> None:
        sentence = f"{self.current}:{line or self.line}: {text}"
        if sentence not in self.outcome.notes and len(self.outcome.notes) < 100:
            self.outcome.notes.append(sentence)

    def conclude(self) -> None:
        if self.defaults:
            names = ", ".join(list(self.defaults)[:20])
            self.outcome.notes.append(
                f"variables that the environment could set have their defaults: {names}"
            )

    # Unknown values.

    def unknown(self, source: str, unset: bool = False) -> str:
        """The placeholder character of an unknown value or of an unset variable."""
        key = (short(source), unset)
        if key not in self.marked:
            if len(self.marks) >= MAX_MARKS:
                raise self.error("too many values are unknown")
            self.marked[key] = chr(_FIRST_MARK + len(self.marks))
            self.marks.append(key)
        return self.marked[key]

    def shown(self, text: str) -> str:
        """The text with placeholders replaced by their source."""
        return MARK.sub(lambda match: self.marks[ord(match[0]) - _FIRST_MARK][0], text)

    def known(self, text: str) -> str | None:
        """The text with unset variables empty; None if another value in it is unknown."""
        text = MARK.sub(
            lambda match: "" if self.marks[ord(match[0]) - _FIRST_MARK][1] else match[0], text
        )
        return None if MARK.search(text) else text

    def tested(self, text: str) -> str | None:
        """The text as a test sees it on the first node, in its first process."""
        return "0" if _RANKS.fullmatch(self.shown(text)) else self.known(text)

    def unset_in(self, text: str) -> list[str]:
        """The unset variables in a text, as they are written."""
        found = (self.marks[ord(mark) - _FIRST_MARK] for mark in MARK.findall(text))
        return [source for source, unset in found if unset]

    # Words.

    def lookup(self, name: str, line: int, source: str) -> Value | None:
        """The value of a variable; None if it is unset."""
        if name.isdigit() and name != "0":
            index = int(name[:4])
            if index <= len(self.positional):
                return self.positional[index - 1]
            given = None if self.called else self.parameters.get(index)
            return None if given is None else ((given, 0),)
        if name == "#":
            return ((str(len(self.positional)), line),)
        if name in ("0", "BASH_SOURCE") and self.current:
            return ((f"./{self.main if name == '0' else self.current}", line),)
        if name in self.variables:
            value = self.variables[name]
            if isinstance(value, list):
                return value[0] if value else None
            return value
        if name in _AMBIENT:
            return ((self.unknown(source), line),)
        return None

    def elements(self, part: tree.Parameter) -> list[Value] | None:
        """The values of `$@` or `${array[@]}`; None for anything else."""
        if part.name in ("@", "*") and part.index is None:
            return list(self.positional)
        if part.place not in ("@", "*"):
            return None
        value = self.variables.get(part.name)
        if value is None:
            if part.name in _AMBIENT:
                return [((self.unknown(part.source), part.line),)]
            return []
        found = value if isinstance(value, list) else [value]
        return [((str(i), part.line),) for i in range(len(found))] if part.indices else found

    def number(self, expression: Word) -> int | None:
        """The value of an arithmetic expression; None if unknown."""
        text = self.known(plain_text(self.value(expression)))
        if text is None or len(text) > 10_000 or self.unset(expression):
            return None
        return arithmetic.evaluate(text, self.counted_as)

    def counted_as(self, name: str) -> int | None:
        """The number that a variable holds; None if it is unknown or holds none."""
        found = self.lookup(name, 0, name)
        inner = None if found is None else self.known(plain_text(found))
        # bash would evaluate a variable's value recursively; only numbers are read here.
        return int(inner) if inner and re.fullmatch(r"-?\d{1,18}", inner.strip()) else None

    def unset(self, word: Word) -> bool:
        """Whether the word contains an unknown value or an unset variable."""
        return bool(MARK.search(plain_text(self.value(word))))

    def held(self, part: tree.Parameter) -> Value | None:
        """The value of a scalar parameter before its operator applies; None if unset."""
        if part.index is None:
            return self.lookup(part.name, part.line, part.source)
        found = self.variables.get(part.name)
        place = self.number(part.index)
        if part.name == "BASH_SOURCE" and place == 0:
            return self.lookup(part.name, part.line, part.source)
        if place is None or part.name in _AMBIENT:
            return ((self.unknown(part.source), part.line),)
        if isinstance(found, list):
            return found[place] if -len(found) <= place < len(found) else None
        return found if place == 0 else None

    def replacing(self, part: tree.Parameter, value: Value | None) -> Word | None:
        """The word after `-`, `=` or `+`, if it replaces the value; else None."""
        text = plain_text(value or ())
        self.charge(len(text))
        empty = value is None or (":" in part.operator and self.known(text) == "")
        # A variable that holds only an unset variable counts as unset.
        empty = empty or (bool(text) and self.known(text) == "")
        sign = part.operator[-1:]
        if sign == "+":
            return () if empty else part.argument
        if sign not in ("-", "=") or not empty:
            return None
        if not part.name.isdigit():
            self.defaults[part.name] = None
        return part.argument

    def scalar(self, part: tree.Parameter) -> Value:
        """The value of a scalar parameter with its operator applied."""
        value, sign = self.held(part), part.operator[-1:]
        written = plain_text(value or ())
        self.charge(len(written))
        text = self.known(written)
        settled = value is not None or self.settled(part.name)
        if part.length:
            size = None if text is None or not settled else str(len(text))
            return ((size or self.unknown(part.source), part.line),)
        word = self.replacing(part, value)
        if word is not None:
            replaced = self.value(word)
            if sign == "=":
                self.variables[part.name] = replaced
            return replaced
        if text and sign in (",", "^"):
            return ((text.lower() if sign == "," else text.upper(), part.line),)
        if not settled and sign not in ("-", "="):
            return ((self.unknown(part.source, unset=True), part.line),)
        return value or ()

    def settled(self, name: str) -> bool:
        """Whether the script alone decides the value, not its environment or its caller."""
        return self.called if name.isdigit() else name in self.variables

    def runs(self, part: tree.Literal | tree.Arithmetic | tree.Opaque | tree.Parameter) -> Value:
        """The value of a part that expands to one text."""
        if isinstance(part, tree.Literal):
            return ((part.text, part.line),)
        if isinstance(part, tree.Parameter):
            return self.scalar(part)
        if isinstance(part, tree.Opaque):
            found = self.substituted(part)
            return ((self.unknown(part.source) if found is None else found, part.line),)
        number = self.number(part.expression) if isinstance(part, tree.Arithmetic) else None
        return ((self.unknown(part.source) if number is None else str(number), part.line),)

    def plainly(self, name: str) -> str:
        """The known text of a variable; "" without one."""
        return self.known(plain_text(self.lookup(name, self.line, name) or ())) or ""

    @abstractmethod
    def substituted(self, part: tree.Opaque) -> str | None:
        """What a command substitution prints; None if it is not known."""

    def between(self, part: tree.Parameter) -> str:
        """What joins elements to one text: for `*` the first character of IFS."""
        star = "*" in (part.name, part.place) and "IFS" in self.variables
        return self.plainly("IFS")[:1] if star else " "

    def value(self, word: Word) -> Value:
        """The word expanded without field splitting, as in an assignment."""
        found: list[tuple[str, int]] = []
        for part in word:
            elements = self.elements(part) if isinstance(part, tree.Parameter) else None
            if isinstance(part, tree.Parameter) and elements is not None:
                if part.length:
                    found.append((str(len(elements)), part.line))
                    continue
                between = self.between(part)
                for number, element in enumerate(elements):
                    found.extend([(between, part.line)] if number else [])
                    found.extend(element)
            else:
                found.extend(self.runs(part))
        self.charge(sum(len(text) + 1 for text, _ in found))
        # One run for each line: `A=$A$A` over and over would make millions of them.
        lines = groupby((run for run in found if run[0]), key=itemgetter(1))
        return tuple(("".join(text for text, _ in runs), line) for line, runs in lines)

    def fields(self, word: Word) -> list[Value]:
        """The fields of a word: expanded and, outside quotes, split."""
        made = _Fields(self.charge, self.unknown)
        # A word of only "${S[@]}" with an empty array gives no field.
        vanishes = self.fill(made, word)
        if (
            not vanishes
            or any(isinstance(part, tree.Literal) for part in word)
            or any(run[0] for run in made.current or ())
        ):
            made.close()
        return made.done

    def fill(self, made: _Fields, word: Word) -> bool:
        """Append the parts of a word; True if one is a quoted `${array[@]}` without elements."""
        vanishes = False
        for part in word:
            elements = self.elements(part) if isinstance(part, tree.Parameter) else None
            if isinstance(part, tree.Parameter) and elements is not None and not part.length:
                vanishes |= made.all_of(part, elements, self.between(part))
            elif part.quoted:
                for text, line in self.value((part,)) or (("", part.line),):
                    made.push(text, line, True)
            elif (
                isinstance(part, tree.Parameter)
                and part.operator[-1:] in ("-", "+")
                and (other := self.replacing(part, self.held(part))) is not None
            ):
                vanishes |= self.fill(made, other)
            else:
                made.spread(self.value((part,)))
        return vanishes

    def argument(self, value: Value) -> Argument:
        text = plain_text(value)
        line = value[0][1] if value else self.line
        for piece, number in value:
            if piece:
                line = number
                break
        return Argument(self.shown(text), self.current, line, not MARK.search(text))
