"""The files of a launch with the options of a better plan written in."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from planner.answers.lint.assignments import assign, drop, variable_of
from planner.answers.lint.findings import Better, FlagChange, LintAnswer
from planner.frameworks.named_files import PYTHON

# An option of a command line as a key of YAML.
_OPTION_KEY = re.compile(r"""(\s*)["']?--[\w-]+["']?\s*:""")
# A value after an option: quoted, a variable with its braces, or plain.
_VALUE = r"""(?:"[^"\n]*"|'[^'\n]*'|\$\{[^}\n]*\}|[^\s"'\\)#]+)"""


@dataclass(frozen=True)
class FixedFiles:
    """The new texts by name, and the changes that must be made by hand."""

    files: dict[str, str]
    left: tuple[FlagChange, ...]


def change_to_write(answer: LintAnswer) -> Better | None:
    """The plan to write: the fewest changes where the script cannot run, else the fastest."""
    return answer.mended or answer.best


def fixed_files(
    files: Mapping[str, str], changes: Iterable[FlagChange], by_variable: bool = False
) -> FixedFiles:
    """The files with the changes made; added options follow one that changes.

    by_variable: an option whose value is a variable changes where that is assigned.
    """
    text = _Text({name: text.split("\n") for name, text in files.items()}, by_variable)
    added = []
    for change in changes:
        if change.line:
            text.change(change)
        elif not _assigned(text.lines, change):
            added.append(change)
    text.add(added)
    for variable in filter(None, text.replaced):
        drop(text.lines, variable)
    texts = {name: _joined(rows, files[name].split("\n")) for name, rows in text.lines.items()}
    return FixedFiles(texts, tuple(text.left))


@dataclass
class _Text:
    """The lines of files while they change.

    left: changes that could not be made.  replaced: variables that stood for a value.  anchor: the
    file and line, from 0, that an added option follows.
    """

    lines: dict[str, list[str]]
    by_variable: bool
    left: list[FlagChange] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    anchor: tuple[str, int] | None = None

    def change(self, change: FlagChange) -> None:
        """Changes an option where it stands, or the variable that says its value."""
        if change.file not in self.lines:  # the script of a job, which is not a file of its own
            self.left.append(change)
            return
        rows, place = self.lines[change.file], change.line - 1
        variable = variable_of(rows[place], change.option)
        if not (self.by_variable and variable and assign(self.lines, variable, change)):
            new = _line_with_change(rows[place], change, _inside_quotes(rows[:place]))
            if new is None:
                self.left.append(change)
                return
            rows[place] = new
            self.replaced.append(variable)
        if change.option.startswith("-") and (change.after is not None or self.anchor is None):
            self.anchor = change.file, place

    def add(self, changes: Iterable[FlagChange]) -> None:
        """Adds options after one that changed, or one that every launch has."""
        anchor = self.anchor or _line_of_a_common_option(self.lines)
        for change in changes:
            if anchor is None or not change.option.startswith("-") or change.after is None:
                self.left.append(change)
                continue
            rows, place = self.lines[anchor[0]], anchor[1]
            rows[place] = _line_with_option(rows[place], change, _inside_quotes(rows[:place]))


def _assigned(lines: dict[str, list[str]], change: FlagChange) -> bool:
    """Whether the only assignment of an environment variable now has its new value."""
    if change.before is None or change.after is None or not change.option.isupper():
        return False
    pattern = re.compile(rf"(^|\s)({change.option}=){re.escape(change.before)}(?=\s|;|$)")
    found = [
        (rows, place)
        for rows in lines.values()
        for place, row in enumerate(rows)
        if pattern.search(row) and not row.lstrip().startswith("#")
    ]
    if len(found) != 1:
        return False
    ((rows, place),) = found
    rows[place] = pattern.sub(rf"\g<1>\g<2>{change.after}", rows[place])
    return True


def _joined(rows: Sequence[str], before: Sequence[str]) -> str:
    """The text of a file; a line without anything but what a removed option left is removed too."""
    kept = (
        row
        for row, was in zip(rows, before, strict=True)
        if row.strip() not in ("", "\\") or was.strip() == row.strip()
    )
    return "\n".join(kept)


def with_files(
    files: Mapping[str, str],
    better: Better | None,
    alike: Callable[[Mapping[str, str], Mapping[str, str]], bool],
) -> Better | None:
    """A better plan with the files that change for it.

    alike: whether two versions of the files launch the same.  A variable may say more than one
    option: it is assigned another value only where that changes nothing else.
    """
    if better is None:
        return None
    found = fixed_files(files, better.changes)
    assigned = fixed_files(files, better.changes, by_variable=True)
    if assigned.files != found.files and alike(found.files, assigned.files):
        found = assigned
    changed = {name: text for name, text in found.files.items() if text != files[name]}
    return better.model_copy(update={"files": changed, "by_hand": found.left})


def _line_of_a_common_option(lines: Mapping[str, list[str]]) -> tuple[str, int] | None:
    """The line of an option that every launch has."""
    for name, rows in lines.items():
        for place, row in enumerate(rows):
            if re.search(r"(?<![\w-])--(?:micro-batch-size|num-layers)(?![\w-])", row):
                return name, place
    return None


def _inside_quotes(rows: Iterable[str], rest: str = "") -> bool:
    """Whether a text in double quotes is open after some lines."""
    code = [row for row in (*rows, rest) if not row.lstrip().startswith("#")]
    return sum(len(re.findall(r'(?<!\\)"', row)) for row in code) % 2 == 1


def _quoted(text: str, inside: bool) -> str:
    """Words of a value as bash takes them; inside: of a text in double quotes."""
    return text if inside else " ".join(shlex.quote(word) for word in text.split(" "))


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The changes as a unified diff."""
    parts = [
        line
        for name, text in before.items()
        for line in difflib.unified_diff(
            text.splitlines(keepends=True),
            after[name].splitlines(keepends=True),
            f"a/{name}",
            f"b/{name}",
        )
    ]
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in parts)


def _line_with_change(line: str, change: FlagChange, inside: bool) -> str | None:
    """The line with one change; None if the option is not in it literally.

    inside: the line begins in double quotes.
    """
    if not change.option.startswith("-") or _OPTION_KEY.match(line):
        return _key_changed(line, change)
    value = "" if change.before in (None, "") else rf"(?P<gap>\s+|=){_VALUE}"
    name = re.escape(change.misspelled or change.option)
    found = re.search(rf"(?<![\w-]){name}(?![\w-]){value}", line)
    if found is None:
        return None
    if change.after is None:
        cut = line[: found.start()].rstrip(" ") + line[found.end() :]
        return cut if line[: found.start()].strip() else line[: found.start()] + cut.lstrip()
    gap = found["gap"] if value else " "
    inside ^= _inside_quotes((), line[: found.start()])
    told = _quoted(change.after, inside)
    new = f"{change.option}{gap}{told}" if change.after else change.option
    return line[: found.start()] + new + line[found.end() :]


def _key_changed(line: str, change: FlagChange) -> str | None:
    """The same of a key of YAML or JSON, or of an argument of a Python call or a field."""
    # GPT-NeoX takes dashes for underscores.
    key = re.escape(change.option.rpartition(".")[2]).replace("_", "[-_]")
    # In Python a colon follows keys in quotes; after a bare name it declares a type.
    colon = rf"""["']{key}["']""" if change.file.endswith(PYTHON) else rf"""["']?{key}["']?"""
    found = re.search(
        rf"""(?<![\w.])({colon}\s*:\s*)("[^"]*"|'[^']*'|[^\s,#}}]+)"""
        rf"""|(?<![\w.])({key}(?:\s*:\s*\w+)?\s*=\s*)(True|False|\d+)(?=\s*(?:[,)#]|$))""", line,
    )  # fmt: skip
    if found is None or change.after is None:
        return None
    return line[: found.end(1) if found[1] else found.end(3)] + change.after + line[found.end() :]


def _line_with_option(line: str, change: FlagChange, inside: bool) -> str:
    """The line with one more option, before the characters that end or continue it."""
    if key := _OPTION_KEY.match(line):
        return f"{line}\n{key[1]}{change.option}: {change.after or 'true'}"
    end = re.search(r"""\s*(?:["')]+|\\)?\s*(?:#.*)?$""", line)
    assert end is not None  # the pattern may be empty
    inside ^= _inside_quotes((), line[: end.start()])
    option = f"{change.option} {_quoted(change.after, inside)}" if change.after else change.option
    return f"{line[: end.start()]} {option}{line[end.start() :]}"
