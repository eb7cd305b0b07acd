"""Command substitutions whose output the script itself decides: `$(seq 1 4)`, `$(echo "$A")`."""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Callable, Sequence

from planner.frameworks.bash import arithmetic, patterns, tree
from planner.frameworks.bash.conditions import plain_text
from planner.frameworks.bash.expansion import Expansion
from planner.frameworks.bash.source import Source
from planner.frameworks.bash.syntax import parse
from planner.frameworks.read_results import Unreadable

MAX_PRINTED = 10_000
_CALL = 500  # characters that a call of a function counts as: those that call each other add up
# `$(echo "$NAME" | tr '\n' ' ' | sed 's/  */ /g')`: filters that join lines.
_FILTER = r"""\|\s*(?:xargs|tr\s+(?:-s\s+)?['"](?:\\n|\s)+['"](?:\s+['"]\s['"])?|""" + (
    r"""sed\s+(?:-E\s+)?['"]s/[\s\\+*]+/\s/g['"])\s*"""
)
_JOINED = re.compile(
    rf"""\$\(\s*echo\s+("?)\$\{{?([A-Za-z_]\w{{0,200}})\}}?\1\s*(?:{_FILTER}){{1,5}}\)"""
)
_WHOLE = re.compile(r"-?\d{1,6}", re.ASCII)
_FORMAT = re.compile(r"%(?:%|0?(\d*)d|(?:\.(\d+))?s)|\\n")


class Substitutions(Expansion, ABC):
    """Evaluation of command substitutions."""

    def substituted(self, part: tree.Opaque) -> str | None:
        if part.source.startswith("${"):
            return self.part_of(part)
        found = self.joined(part)
        if found is None:
            found = arithmetic.of_expr(part.source, self.plainly)
        return self.printed(part) if found is None else found

    def part_of(self, part: tree.Opaque) -> str | None:
        """The part of a variable's text that an expansion leaves; None if it is not known."""

        def held(name: str) -> str | None:
            found = self.lookup(name, part.line, part.source) if self.settled(name) else None
            return None if found is None else plain_text(found)

        found = patterns.part_of(part.source, held, self.charge)
        if found is None:
            return None
        text, whatever = found
        name = re.sub(r"\W.*", "", part.source[2:], flags=re.DOTALL)
        marked = self.known(held(name) or "") is None
        return None if self.known(text) is None or (marked and not whatever) else text

    def joined(self, part: tree.Opaque) -> str | None:
        """A variable's lines joined, for a command substitution that only joins them; else None."""
        match = _JOINED.fullmatch(part.source)
        value = self.lookup(match[2], part.line, part.source) if match else None
        return None if value is None else " ".join(plain_text(value).split())

    def printed(self, part: tree.Opaque) -> str | None:
        """What commands print that only print; None if they do anything else."""
        if not part.source.startswith("$(") or part.source.startswith("$(("):
            return None
        try:
            body = parse(Source(((part.source[2:-1], part.line),), self.current))
        except Unreadable:
            return None
        texts: list[str] = []
        self.charge(len(self.variables))
        kept = dict(self.variables)
        with self.deeper():
            folder = self.entered(body)
            if folder is not None:
                return folder
            for chain in body:
                text = self.one_printed(chain)
                if text is None or sum(map(len, texts)) > MAX_PRINTED:
                    self.variables = kept
                    return None
                texts.append(text)
        self.variables = kept
        return "".join(texts).rstrip("\n")

    def entered(self, body: tree.Statements) -> str | None:
        """The folder that `cd FOLDER && pwd` prints, as it is written; None for anything else."""
        pipelines = [
            one for chain in body for one in (chain.first, *(rest for _, rest in chain.rest))
        ]
        steps = [command for one in pipelines for command in one.commands]
        if len(steps) != 2:
            return None
        texts = [self.known_words(one) for one in steps if isinstance(one, tree.Simple)]
        if len(texts) != 2:
            return None
        match [one for one in texts[0] if not one.startswith("-")], texts[1][:1]:
            case ["cd", folder], ["pwd"]:
                return folder.rstrip("/") or "/"
        return None

    def one_printed(self, chain: tree.Chain) -> str | None:
        """What one command prints, or an assignment, which prints nothing; None for any other."""
        (command, *more), rest = chain.first.commands, chain.rest
        if rest or more or not isinstance(command, tree.Simple) or command.redirects:
            return None
        if not command.words:
            return "" if all(map(self.plain_assignment, command.assignments)) else None
        texts = [] if command.assignments else self.known_words(command)
        if texts and (own := self.functions.get(texts[0])) is not None:
            return self.printed_by(own, [((text, command.line),) for text in texts[1:]])
        show = _PRINTERS.get(texts[0]) if texts else None
        return None if show is None else show(texts[1:])

    def printed_by(self, function: tree.Command, arguments: Sequence[tree.Value]) -> str | None:
        """What a function of the script prints; None if it does anything else."""
        if not isinstance(function, tree.Group):
            return None
        self.charge(_CALL)
        kept = self.positional, self.called
        self.positional, self.called = tuple(arguments), True
        try:
            with self.deeper():
                texts = [self.one_printed(chain) for chain in function.body]
        finally:
            self.positional, self.called = kept
        printed = [text for text in texts if text is not None]
        return "".join(printed) if len(printed) == len(texts) else None

    def known_words(self, command: tree.Simple) -> list[str]:
        """The words of a command; empty where one of them is not known."""
        words = [plain_text(word) for each in command.words for word in self.fields(each)]
        known = (self.known(word) for word in words if not self.unset_in(word))
        texts = [one for one in known if one is not None]
        return texts if len(texts) == len(words) else []

    def plain_assignment(self, one: tree.Assignment) -> bool:
        """Assign a text to a whole variable; False for any other assignment."""
        if one.append or one.index is not None or one.elements is not None:
            return False
        self.variables[one.name] = self.value(one.value)
        return True


def _echo(words: Sequence[str]) -> str | None:
    if words[:1] and re.fullmatch(r"-[neE]+", words[0]):
        return _echo(words[1:]) if words[0] == "-n" else None
    return " ".join(words) + "\n"


def _seq(words: Sequence[str]) -> str | None:
    if not 1 <= len(words) <= 3 or not all(map(_WHOLE.fullmatch, words)):
        return None
    first, *rest = (1, int(words[0])) if len(words) == 1 else map(int, words)
    by, last = (1, rest[0]) if len(rest) == 1 else rest
    numbers = range(first, last + (1 if by > 0 else -1), by) if by else range(0)
    return "".join(f"{one}\n" for one in numbers) if len(numbers) < MAX_PRINTED else None


def formatted(words: Sequence[str]) -> str | None:
    """What printf prints: the format once for each set of arguments.

    None where the format has more than numbers (d), texts (s) and line ends.
    """
    if not words or re.search(r"\\(?!n)", words[0]) or words[0].startswith("-"):
        return None
    places = list(_FORMAT.finditer(words[0]))
    if words[0].count("%") != sum(one[0].count("%") for one in places):
        return None
    takes = sum(one[0] not in ("%%", "\\n") for one in places)
    left, made = list(words[1:]), list[str]()
    while True:
        given = iter([*left[:takes], *[""] * takes])
        made.append(_FORMAT.sub(lambda one, g=given: _filled(one, g), words[0]))  # type: ignore[misc]
        left = left[takes:]
        if not takes or not left:
            return "".join(made)


def _filled(place: re.Match[str], given: object) -> str:
    if place[0] in ("%%", "\\n"):
        return "%" if place[0] == "%%" else "\n"
    text: str = next(given)  # type: ignore[call-overload]
    if place[0].endswith("d"):
        return (text or "0").zfill(int(place[1] or 0))
    return text if place[2] is None else text[: int(place[2])]


def _operands(words: Sequence[str]) -> Sequence[str]:
    return [one for one in words if not one.startswith("-")]


def _itself(words: Sequence[str]) -> str | None:
    """A path as it is written: where links lead changes no launch."""
    paths = _operands(words)
    return paths[0] + "\n" if len(paths) == 1 else None


def _basename(words: Sequence[str]) -> str | None:
    words = _operands(words)
    if not 1 <= len(words) <= 2 or not words[0].strip("/"):
        return None
    name = words[0].rstrip("/").rsplit("/", 1)[-1]
    ending = words[1] if len(words) == 2 else ""
    return (name.removesuffix(ending) or name) + "\n"


def _dirname(words: Sequence[str]) -> str | None:
    words = _operands(words)
    if len(words) != 1 or not words[0].strip("/"):
        return None
    folder, slash, _ = words[0].rstrip("/").rpartition("/")
    return (folder if slash else ".") + "\n"


def _which(words: Sequence[str]) -> str | None:
    """The program by its name alone: where it lies changes no launch."""
    return words[0] + "\n" if len(words) == 1 and not words[0].startswith("-") else None


def _command(words: Sequence[str]) -> str | None:
    return _which(words[1:]) if words[:1] == ["-v"] else None


def _nothing(words: Sequence[str]) -> str:
    return ""


_PRINTERS: dict[str, Callable[[Sequence[str]], str | None]] = {
    ":": _nothing,
    "true": _nothing,
    "echo": _echo,
    "seq": _seq,
    "printf": formatted,
    "basename": _basename,
    "dirname": _dirname,
    "readlink": _itself,
    "realpath": _itself,
    "which": _which,
    "command": _command,
}
