"""Finds what a launch script passes to the training program, without running any of it.

Variables, arrays, quotes, arithmetic, tests, functions and loops are evaluated as bash would with
an empty environment and no arguments.  Values known only at run time (`$(...)`, `$HOSTNAME`,
files) are unknown, and so is every word that contains one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count, takewhile

from planner.frameworks.bash.conditions import Tests, matches, plain_text
from planner.frameworks.bash.launches import (
    Outcome,
    slurm_variables,
)
from planner.frameworks.bash.programs import Copy, Exit, Programs, Return
from planner.frameworks.bash.source import Source
from planner.frameworks.bash.syntax import DECLARES, parse
from planner.frameworks.bash.tree import (
    Assignment,
    Calculation,
    Case,
    Chain,
    Command,
    Condition,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Simple,
    Statements,
    Value,
    While,
)
from planner.frameworks.read_results import Unreadable

MAX_TEXT = 1 << 18
MAX_COMMANDS = 20_000
MAX_ROUNDS = 100


def evaluate(files: Mapping[str, str], main: str) -> Outcome:
    """The outcome of the script, with the given files.

    Raises Unreadable if it is not valid bash, nests too deeply or expands too far.
    """
    if sum(len(text) for text in files.values()) > MAX_TEXT:
        raise Unreadable(f"more than {MAX_TEXT} characters", main)
    shell = Shell(files)
    with suppress(Exit):
        first = takewhile(shell.parameters.__contains__, count(1))
        arguments = [((shell.parameters[place], 0),) for place in first]
        shell.script(shell.text_of(main), arguments, called=False)
    shell.conclude()
    return shell.outcome


class _Loop(Exception):
    """`break`, or `continue` if again."""

    def __init__(self, again: bool) -> None:
        self.again = again


class Shell(Programs):
    """The evaluator of a script."""

    def script(self, source: Source, arguments: Sequence[Value], called: bool = True) -> None:
        """Evaluate the commands of a separate script, with its own #SBATCH lines.

        called: whether the arguments are complete; a user may give the outermost script more.
        """
        kept = self.current, self.line, self.positional, self.called, self.slurm
        self.current, self.positional, self.called = source.file, tuple(arguments), called
        try:
            self.batch(source)
            self.statements(parse(source))
        finally:
            self.current, self.line, self.positional, self.called, self.slurm = kept

    def batch(self, source: Source) -> None:
        """Record the options of #SBATCH lines, and set the variables that Slurm derives."""
        options = []
        for match in re.finditer(r"^[ \t]*#SBATCH[ \t]+(.*)$", source.text, re.MULTILINE):
            line = source.line(match.start())
            for word in match[1].split(" #", 1)[0].split():
                options.append(self.argument(((word, line),)))
        if options or self.slurm:
            # Options on sbatch's command line come last: they override the script's #SBATCH lines.
            self.slurm = (*options, *self.slurm)
            self.variables.update(
                {
                    name: ((str(number), self.slurm[0].line),)
                    for name, number in slurm_variables(self.slurm).items()
                }
            )

    def statements(self, body: Statements) -> None:
        with self.deeper():
            for chain in body:
                self.chain(chain)

    def chain(self, chain: Chain) -> bool:
        with Copy(self, chain.background):
            status = self.pipeline(chain.first)
            for operator, pipeline in chain.rest:
                if status == (operator == "&&"):
                    status = self.guarded(lambda p=pipeline: self.pipeline(p))  # type: ignore[misc]
        return status

    def guarded(self, run: Callable[[], bool]) -> bool:
        """Run a conditional branch; if all it does is exit, assume that it is not taken."""
        variables, launches = dict(self.variables), len(self.outcome.launches)
        self.charge(len(variables))
        try:
            return run()
        except Exit:
            if len(self.outcome.launches) > launches:
                raise
            self.note("the check that would end the script here is taken to pass")
            self.variables = variables
            return False

    def pipeline(self, pipeline: Pipeline) -> bool:
        several = len(pipeline.commands) > 1
        status = True
        for command in pipeline.commands:
            with Copy(self, several):
                status = self.command(command)
        return status != pipeline.negated

    def command(self, command: Command) -> bool:
        self.commands += 1
        if self.commands > MAX_COMMANDS:
            raise self.error(f"more than {MAX_COMMANDS} commands")
        if isinstance(command, Simple):
            self.line = command.line
            return self.simple(command)
        if isinstance(command, Condition):
            self.line = command.line
            return self.decided(Tests(self).compound(command.tokens), command.source)
        if isinstance(command, Calculation):
            self.line = command.line
            number = self.number(command.expression)
            return self.decided(None if number is None else bool(number), command.source)
        if isinstance(command, Function):
            self.functions[command.name] = command.body
        elif isinstance(command, Group):
            with Copy(self, command.subshell):
                self.statements(command.body)
        elif isinstance(command, If):
            self.conditional(command)
        elif isinstance(command, For):
            self.each(command)
        elif isinstance(command, While):
            self.repeated(command)
        elif isinstance(command, Case):
            self.case(command)
        else:
            self.note("this loop is not followed", command.line)
        return True

    def decided(self, status: bool | None, source: str) -> bool:
        """The result of a test; an unknown result is taken as false."""
        if status is None:
            self.note(f"whether {source[:80]} holds is not known: taken as false")
        return bool(status)

    def status(self, body: Statements) -> bool:
        """The status of the last of several commands."""
        status = True
        for chain in body:
            status = self.chain(chain)
        return status

    def body(self, body: Statements) -> bool:
        self.statements(body)
        return True

    def conditional(self, command: If) -> None:
        for condition, body in command.branches:
            if self.status(condition):
                self.guarded(lambda b=body: self.body(b))  # type: ignore[misc]
                return
        self.guarded(lambda: self.body(command.otherwise))

    def round(self, body: Statements) -> bool:
        """One iteration of a loop; False if it is the last."""
        self.loops += 1
        try:
            self.guarded(lambda: self.body(body))
        except _Loop as loop:
            return loop.again
        finally:
            self.loops -= 1
        return True

    def each(self, command: For) -> None:
        values = (
            list(self.positional)
            if command.words is None
            else [value for word in command.words for value in self.fields(word)]
        )
        if len(values) > MAX_ROUNDS:
            self.note(f"only {MAX_ROUNDS} rounds of this loop are followed", command.line)
        for value in values[:MAX_ROUNDS]:
            self.variables[command.name] = value
            if not self.round(command.body):
                return

    def repeated(self, command: While) -> None:
        for _ in range(MAX_ROUNDS):
            if self.status(command.condition) == command.until:
                return
            if not self.round(command.body):
                return
        self.note(f"only {MAX_ROUNDS} rounds of this loop are followed", command.line)

    def case(self, command: Case) -> None:
        self.line = command.line
        subject = self.known(plain_text(self.value(command.subject)))
        if subject is None:
            self.note("the value that this case looks at is not known: none is taken")
            return
        for patterns, body in command.branches:
            for word in patterns:
                pattern = self.known(plain_text(self.value(word)))
                if pattern is not None and matches(subject, pattern):
                    self.guarded(lambda b=body: self.body(b))  # type: ignore[misc]
                    return

    def assign(self, assignment: Assignment) -> None:
        name = assignment.name
        new: Value | list[Value]
        if assignment.elements is not None:
            new = [value for word in assignment.elements for value in self.fields(word)]
            old = self.variables.get(name)
            if assignment.append:
                new = [*(old if isinstance(old, list) else [old] if old else []), *new]
        elif assignment.index is not None:
            place, added = self.number(assignment.index), self.value(assignment.value)
            old = self.variables.get(name)
            cells = list(old) if isinstance(old, list) else [old] if old else []
            if place is None or not 0 <= place <= len(cells):
                new = [((self.unknown(f"${{{name}[...]}}"), assignment.line),)]
            else:
                before = cells[place] if assignment.append and place < len(cells) else ()
                cells[place : place + 1] = [(*before, *added)]
                new = cells
        else:
            new = self.value(assignment.value)
            old = self.variables.get(name)  # `${NAME:=...}` in the value may have set it
            if isinstance(old, list):
                new = [(*(old[0] if old and assignment.append else ()), *new), *old[1:]]
            elif assignment.append:
                new = (*(old or ()), *new)
        for value in new if isinstance(new, list) else [new]:
            self.charge(sum(len(text) + 1 for text, _ in value))
        self.variables[name] = new

    def simple(self, command: Simple) -> bool:
        words = [value for word in command.words for value in self.fields(word)]
        names = [self.known(plain_text(word)) for word in words]
        name = (names[0] or "").rsplit("/", 1)[-1] if words else ""
        if not words or name in DECLARES:
            for assignment in command.assignments:
                self.assign(assignment)
            if name in ("export", "declare", "typeset"):
                exports = name == "export" or "-x" in names
                named = {one for one in names[1:] if one and one[0] != "-"}
                named |= {assignment.name for assignment in command.assignments}
                self.exported |= named if exports else set()
            return True
        for redirect in command.redirects:
            self.write(name, words, redirect)
        kept, exported = dict(self.variables), set(self.exported)
        for assignment in command.assignments:
            self.assign(assignment)
            self.exported.add(assignment.name)
        try:
            return self.call(name, words, names, command)
        finally:
            for assignment in command.assignments:
                self.variables.pop(assignment.name, None)
                if assignment.name in kept:
                    self.variables[assignment.name] = kept[assignment.name]
            if command.assignments:
                self.exported = exported

    def reads(self, name: str, names: list[str | None], command: Simple) -> None:
        """Set the variables of read and the like; only those of a here-string are known."""
        wanted = [one for one in names if one and re.fullmatch(r"[A-Za-z_]\w*", one, re.ASCII)]
        strings = [one.target for one in command.redirects if one.operator == "<<<"]
        text = self.known(plain_text(self.value(strings[-1]))) if strings else None
        if name != "read" or text is None or not wanted:
            for one in wanted:
                self.variables[one] = ((self.unknown(f"${one}"), command.line),)
            return
        line = text.partition("\n")[0]
        separators = self.lookup("IFS", command.line, "IFS")
        cut = None if separators is None else plain_text(separators)
        array = any(one and re.fullmatch(r"-\w*a", one) for one in names)
        parts = _fields(line, cut, None if array else len(wanted) - 1)
        if array:
            self.variables[wanted[-1]] = [((part, command.line),) for part in parts]
            return
        for place, one in enumerate(wanted):
            self.variables[one] = ((parts[place] if place < len(parts) else "", command.line),)

    def call(self, name: str, words: list[Value], names: list[str | None], command: Simple) -> bool:
        if name in self.functions:
            kept = self.positional, self.called, self.loops
            self.positional, self.called, self.loops = tuple(words[1:]), True, 0
            self.inside += 1
            try:
                return self.command(self.functions[name])
            except Return:
                return True
            finally:
                self.positional, self.called, self.loops = kept
                self.inside -= 1
        if name == "exit":
            raise Exit
        if name == "return" and self.inside:
            raise Return
        if name in ("break", "continue") and self.loops:
            raise _Loop(name == "continue")
        if name in ("[", "test"):
            operands = words[1:-1] if name == "[" else words[1:]
            return self.decided(Tests(self).plain(operands), self.shown_all(words))
        if name == "false":
            return False
        if name == "shift":
            given = names[1] if len(names) > 1 else None
            away = int(given[:4]) if given and given.isdigit() else 1
            self.positional = self.positional[away:]
            if not self.called:
                self.parameters = {place - away: text for place, text in self.parameters.items()}
        elif name == "set" and "--" in names[:3]:
            self.positional, self.called = tuple(words[names.index("--") + 1 :]), True
        elif name == "unset":
            for one in names[1:]:
                self.variables.pop(one or "", None)
        elif name in ("read", "mapfile", "readarray", "getopts"):
            self.reads(name, names[1:], command)
        elif name in ("source", "."):
            self.other(words[1:2], words[2:], "read")
        elif name == "eval":
            self.nested([run for word in words[1:] for run in (*word, (" ", command.line))])
        else:
            self.program(name, words, names, command)
        return True


def _fields(line: str, separators: str | None, most: int | None) -> list[str]:
    """The fields into which `read` splits a line; most: the maximum number of splits.

    separators: IFS; None: white space.
    """
    if separators is None or not separators.strip():
        white = line.strip().split(None, -1 if most is None else most)
        return [line] if separators == "" else white
    if most == 0:
        return [line]
    return re.split(f"[{re.escape(separators)}]", line, maxsplit=most or 0)
