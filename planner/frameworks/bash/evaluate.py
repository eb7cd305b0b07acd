"""Finds what a launch script passes to the training program, without running any of it.

Variables, arrays, quotes, arithmetic, tests, functions and loops are evaluated as bash would with
an empty environment and no arguments.  Values known only at run time (`$(...)`, `$HOSTNAME`,
files) are unknown, and so is every word that contains one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain, count, takewhile

from planner.frameworks.bash import tree
from planner.frameworks.bash.conditions import Tests, found_in, matches, plain_text, searches
from planner.frameworks.bash.launches import Outcome, job_options, slurm_variables, visible_devices
from planner.frameworks.bash.loops import Loop, Loops
from planner.frameworks.bash.programs import Copy, Exit, Return
from planner.frameworks.bash.source import Source
from planner.frameworks.bash.syntax import DECLARES, parse
from planner.frameworks.bash.tree import Statements, Value
from planner.frameworks.launch_files import GivenValues, LaunchFiles, given_with
from planner.frameworks.read_results import Unreadable

MAX_TEXT = 1 << 18
# Files that no script runs or reads as bash.
_NO_SCRIPTS = (".py", ".ipynb", ".json", ".jsonl")
MAX_COMMANDS = 20_000
# A line that looks continued, and the option that follows: bash takes it as another command.
_BROKEN = re.compile(
    r"^[^#\n]*(?<!\\)(\\)[ \t]+(?:#[^\n]*)?\n[ \t]*([-\w.+]+=[^\s\\]*|--?\w[^\s\\]*)", re.MULTILINE
)
_HEREDOC = re.compile(r"<<-?[ \t]*[\"']?(\w+)")
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Words of env before the command.
_SETS = re.compile(r"-|[A-Za-z_]\w*=", re.ASCII)


def evaluate(files: Mapping[str, str], main: str) -> Outcome:
    """The outcome of the script, with the given files.

    The outcome is shared: every framework's reader asks for that of the same script.
    Raises Unreadable if it is not valid bash, nests too deeply or expands too far.
    """
    texts = (text for name, text in files.items() if not name.endswith(_NO_SCRIPTS))
    if sum(map(len, texts)) > MAX_TEXT:
        raise Unreadable(f"more than {MAX_TEXT} characters", main)
    given = given_with(files)
    values = tuple(given.values.items()), given.arguments
    found = _evaluated(tuple(files.items()), *values, main)
    if isinstance(found, Unreadable):
        raise Unreadable(found.text, found.file, found.line)
    return found


def cut_commands(text: str) -> Iterator[tuple[int, str]]:
    """Places where a command ends although its line looks continued, and what it is without."""
    for found in _BROKEN.finditer(_without_documents(text)):
        before = found[0][: found.start(1) - found.start()]
        if before.count("'") % 2 == 0 and before.count('"') % 2 == 0:
            said = "the backslash is not the last of its line: the command ends there, without"
            yield found.start(1), f"{said} {found[2][:60]}"


def _without_documents(script: str) -> str:
    """The script with blanks in place of its here-documents."""
    lines, ends = script.split("\n"), ""
    for place, line in enumerate(lines):
        if not ends:
            opened = _HEREDOC.search(line)
            ends = opened[1] if opened is not None else ""
        elif line.strip() == ends:
            ends = ""
        else:
            lines[place] = " " * len(line)
    return "\n".join(lines)


@lru_cache(maxsize=8)
def _evaluated(
    files: tuple[tuple[str, str], ...],
    values: tuple[tuple[str, str], ...],
    arguments: tuple[str, ...],
    main: str,
) -> Outcome | Unreadable:
    shell = Shell(LaunchFiles(dict(files), GivenValues(dict(values), arguments)))
    try:
        with suppress(Exit):
            first = takewhile(shell.parameters.__contains__, count(1))
            given = [((shell.parameters[place], 0),) for place in first]
            shell.script(shell.text_of(main), given, called=False)
        shell.conclude()
    except Unreadable as error:
        return error.with_traceback(None)
    return shell.outcome


class Shell(Loops):
    """The evaluator of a script."""

    def script(
        self,
        source: Source,
        arguments: Sequence[Value],
        called: bool = True,
        sourced: bool = False,
    ) -> None:
        """Evaluate the commands of a separate script, with its own #SBATCH lines.

        called: whether the arguments are complete; a user may give the outermost script more.
        """
        kept = self.current, self.line, self.positional, self.called, self.slurm
        begun = self.main
        self.current, self.positional, self.called = source.file, tuple(arguments), called
        self.main = begun if sourced else source.file
        self.charge(len(source.text))
        for place, text in cut_commands(source.text):
            self.note(text, source.line(place))
        try:
            self.batch(source)
            self.statements(parse(source))
        finally:
            self.current, self.line, self.positional, self.called, self.slurm = kept
            self.main = begun

    def batch(self, source: Source) -> None:
        """Record the options of #SBATCH and #PBS lines, and set the variables that follow."""
        found = job_options(source.text)
        options = [self.argument(((word, source.line(at)),)) for word, at in found]
        if options or self.slurm:
            # Options on sbatch's command line come last: they override the script's #SBATCH lines.
            self.slurm = (*options, *self.slurm)
            numbers = slurm_variables(self.slurm)
            if "SLURM_NNODES" in numbers:
                numbers["NHOSTS"] = numbers["SLURM_NNODES"]  # Grid Engine's name for it
            self.variables.update(
                {name: ((str(number), self.slurm[0].line),) for name, number in numbers.items()}
            )
            if visible := visible_devices(self.slurm):
                self.variables.setdefault(_VISIBLE, ((visible, self.slurm[0].line),))

    def statements(self, body: Statements) -> None:
        with self.deeper():
            for one in body:
                self.chain(one)

    def chain(self, command: tree.Chain) -> bool:
        with Copy(self, command.background):
            status = self.pipeline(command.first)
            for operator, pipeline in command.rest:
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

    def pipeline(self, pipeline: tree.Pipeline) -> bool:
        several = len(pipeline.commands) > 1
        if (found := self.searched(pipeline.commands)) is not None:
            return found != pipeline.negated
        status = True
        for command in pipeline.commands:
            with Copy(self, several):
                status = self.command(command)
        return status != pipeline.negated

    def searched(self, commands: Sequence[tree.Command]) -> bool | None:
        """The status of `echo TEXT | grep -q WORD`, if both are known; None for anything else."""
        if len(commands) != 2 or not all(isinstance(one, tree.Simple) for one in commands):
            return None
        said, search = (
            [value for word in one.words for value in self.fields(word)]  # type: ignore[union-attr]
            for one in commands
        )
        texts, names = (
            [self.known(plain_text(value)) for value in values] for values in (said, search)
        )
        unset = any(self.unset_in(plain_text(value)) for value in said)
        if texts[:1] != ["echo"] or None in texts or unset or not searches(names):
            return None
        return found_in(" ".join(filter(None, texts[1:])), names[1:])

    def command(self, command: tree.Command) -> bool:
        self.commands += 1
        if self.commands > MAX_COMMANDS:
            raise self.error(f"more than {MAX_COMMANDS} commands")
        if isinstance(command, tree.Simple):
            self.line = command.line
            return self.simple(command)
        if isinstance(command, tree.Condition | tree.Calculation):
            self.line = command.line
            return self.decided(self.result(command), command.source)
        if isinstance(command, tree.Function):
            self.functions[command.name] = command.body
        elif isinstance(command, tree.Group):
            with Copy(self, command.subshell):
                self.statements(command.body)
        else:
            self.compound(command)
        return True

    def compound(self, command: tree.Compound) -> None:
        match command:
            case tree.If():
                self.conditional(command)
            case tree.For():
                self.each(command)
            case tree.Counted():
                self.counting(command)
            case tree.While():
                self.repeated(command)
            case tree.Case():
                self.case(command)
            case tree.Select():
                self.note("this loop is not followed", command.line)
                self.forget(command.body)

    def result(self, test: tree.Condition | tree.Calculation) -> bool | None:
        if isinstance(test, tree.Condition):
            return Tests(self).compound(test.tokens)
        number = self.calculate(test.expression)
        return None if number is None else bool(number)

    def decided(self, status: bool | None, source: str) -> bool:
        """The result of a test; an unknown result is taken as false."""
        if status is None:
            self.note(f"whether {source[:80]} holds is not known: taken as false")
        return bool(status)

    def status(self, body: Statements) -> bool:
        """The status of the last of several commands."""
        status = True
        for one in body:
            status = self.chain(one)
        return status

    def body(self, body: Statements) -> bool:
        self.statements(body)
        return True

    def conditional(self, command: tree.If) -> None:
        for condition, body in command.branches:
            if self.status(condition):
                self.guarded(lambda b=body: self.body(b))  # type: ignore[misc]
                return
        self.guarded(lambda: self.body(command.otherwise))

    def case(self, command: tree.Case) -> None:
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

    def simple(self, command: tree.Simple) -> bool:
        words = self.counted([value for word in command.words for value in self.fields(word)])
        names = [self.known(plain_text(word)) for word in words]
        name = (names[0] or "").rsplit("/", 1)[-1] if words else ""
        if not words or name in DECLARES:
            self.declare(name, names[1:], command.assignments)
            return True
        for redirect in command.redirects:
            self.write(name, words, redirect)
        with self.given(command.assignments):
            return self.call(name, words, names, command)

    def declare(
        self, name: str, names: list[str | None], assignments: Sequence[tree.Assignment]
    ) -> None:
        """Assign variables for good; `export NAME...` and `declare -x NAME...` export them too."""
        for assignment in assignments:
            self.assign(assignment)
        if name == "export" or (name in ("declare", "typeset") and "-x" in names):
            self.exported |= {one for one in names if one and one[0] != "-"}
            self.exported |= {assignment.name for assignment in assignments}

    @contextmanager
    def given(self, assignments: Sequence[tree.Assignment]) -> Iterator[None]:
        """The variables that a command is given in front of it, and only it."""
        kept, exported = dict(self.variables), set(self.exported)
        for assignment in assignments:
            self.assign(assignment)
            self.exported.add(assignment.name)
        try:
            yield
        finally:
            for assignment in assignments:
                self.variables.pop(assignment.name, None)
                if assignment.name in kept:
                    self.variables[assignment.name] = kept[assignment.name]
            if assignments:
                self.exported = exported

    def call(
        self, name: str, words: list[Value], names: list[str | None], command: tree.Simple
    ) -> bool:
        if name in self.functions:
            return self.function(self.functions[name], words[1:])
        self.leave(name)
        if name in ("[", "test", "false") or searches(names):  # `false` is a test of nothing
            operands = {"[": words[1:-1], "test": words[1:]}.get(name, [])
            status = None if name == "grep" else Tests(self).plain(operands)
            return self.decided(status, self.shown_all(words))
        if name in ("set", "shift", "unset"):
            self.reset(name, words, names)
        elif name in ("read", "mapfile", "readarray", "getopts"):
            return self.reads(name, words[1:], names[1:], command)
        elif name == "env":
            self.with_variables(words, names, command)
        elif name in ("source", "."):
            self.other(words[1:2], words[2:], "read")
        elif name == "let" or (name == "printf" and names[1:2] == ["-v"]):
            self.sets(name, words[1:], names[2:])
        elif name == "eval":
            self.nested(chain.from_iterable((*word, (" ", command.line)) for word in words[1:]))
        else:
            self.program(name, words, names, command)
        return True

    def with_variables(
        self, words: list[Value], names: list[str | None], command: tree.Simple
    ) -> None:
        """`env NAME=VALUE... COMMAND`: the command with these variables."""
        texts = [plain_text(word) for word in words]
        given = list(takewhile(_SETS.match, texts[1:]))
        with Copy(self, True):
            for name, _, value in (one.partition("=") for one in given if one[0] != "-"):
                self.variables[name] = ((value, command.line),)
                self.exported.add(name)
            if rest := words[len(given) + 1 :]:
                inner = names[len(given) + 1 :]
                self.call((inner[0] or "").rsplit("/", 1)[-1], rest, inner, command)

    def reset(self, name: str, words: Sequence[Value], names: Sequence[str | None]) -> None:
        """Change the positional parameters, or forget variables."""
        if name == "set" and "--" in names[:3]:
            self.positional, self.called = tuple(words[names.index("--") + 1 :]), True
        elif name == "shift":
            self.shift(*names[1:2])
        elif name == "unset":
            for one in names[1:]:
                self.variables.pop(one or "", None)

    def function(self, body: tree.Command, arguments: Sequence[Value]) -> bool:
        """Evaluate a function of the script."""
        kept = self.positional, self.called, self.loops
        self.positional, self.called, self.loops = tuple(arguments), True, 0
        self.inside += 1
        try:
            return self.command(body)
        except Return:
            return True
        finally:
            self.positional, self.called, self.loops = kept
            self.inside -= 1

    def leave(self, name: str) -> None:
        """Leave the script, the function or the loop, if this command does."""
        if name == "exit":
            raise Exit
        if name == "return" and self.inside:
            raise Return
        if name in ("break", "continue") and self.loops:
            raise Loop(name == "continue")

    def shift(self, by: str | None = None) -> None:
        away = int(by[:4]) if by and by.isdigit() else 1
        self.positional = self.positional[away:]
        if not self.called:
            self.parameters = {place - away: text for place, text in self.parameters.items()}
