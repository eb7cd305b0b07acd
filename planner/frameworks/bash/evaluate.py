"""What a launch script hands to the training program, found without running a line of it.

Variables, arrays, quotes, arithmetic, tests, functions and loops are followed as bash would with
an empty environment and no arguments.  What only running could tell (`$(...)`, `$HOSTNAME`,
files) is unknown, and so is every word that has it in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count, takewhile

from planner.frameworks.bash import arithmetic
from planner.frameworks.bash.conditions import Tests, matches, plain_text
from planner.frameworks.bash.launches import (
    Argument,
    Launch,
    Outcome,
    console_script,
    launcher_of,
    slurm_variables,
)
from planner.frameworks.bash.syntax import DECLARES, Source, parse, whole
from planner.frameworks.bash.tree import (
    Arithmetic,
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
    Literal,
    Opaque,
    Parameter,
    Pipeline,
    Redirect,
    Simple,
    Statements,
    Value,
    While,
    Word,
)
from planner.frameworks.launch_files import given_with
from planner.frameworks.reading import Unreadable

MAX_TEXT = 1 << 18
MAX_EXPANDED = 1 << 21
MAX_COMMANDS = 20_000
MAX_DEPTH = 50
MAX_ROUNDS = 100
MAX_MARKS = 50_000
# Characters from here on stand for what is unknown; they belong to no script.
_FIRST_MARK = 0xF0000
_MARK = re.compile(f"[{chr(_FIRST_MARK)}-{chr(_FIRST_MARK + 0xFFFD)}]")
# Set by bash or the login, to what no script says.
_AMBIENT = frozenset(
    re.findall(
        r"\S+",
        "BASH BASH_SOURCE BASHPID HOME HOSTNAME LINENO LOGNAME OLDPWD PATH PPID PWD RANDOM SECONDS "
        "SHELL SLURM_JOBID SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_LOCALID SLURM_NODEID "
        "SLURM_NODELIST SLURM_PROCID SLURM_SUBMIT_DIR TMPDIR UID USER 0 $ ! ? -",
    )
)
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_TALKERS = frozenset({"echo", "printf", ":", "cat", "tee", "sed", "grep", "awk", "mkdir", "cp"})
_LAUNCHER_MODULES = ("torch.distributed.", "deepspeed.launcher", "accelerate.commands")
_PROGRAM = re.compile(r"\.py\b|\s-m\s")


def evaluate(files: Mapping[str, str], main: str) -> Outcome:
    """What the script does, by the files at hand.

    Raises Unreadable where it is no bash, nests too deeply or expands without end.
    """
    if sum(len(text) for text in files.values()) > MAX_TEXT:
        raise Unreadable(f"more than {MAX_TEXT} characters", main)
    shell = Shell(files)
    with suppress(_Exit):
        first = takewhile(shell.parameters.__contains__, count(1))
        arguments = [((shell.parameters[place], 0),) for place in first]
        shell.script(shell.text_of(main), arguments, called=False)
    shell.conclude()
    return shell.outcome


class _Exit(Exception):
    """The script ends here."""


class _Return(Exception):
    """The function ends here."""


class _Loop(Exception):
    """`break` (or `continue`, when again)."""

    def __init__(self, again: bool) -> None:
        self.again = again


class Shell:
    def __init__(self, files: Mapping[str, str]) -> None:
        self.files, self.outcome = files, Outcome()
        self.variables: dict[str, Value | list[Value]] = {}
        self.exported: set[str] = set()
        self.functions: dict[str, Command] = {}
        given = given_with(files)
        self.variables.update({name: ((text, 0),) for name, text in given.variables.items()})
        self.exported |= set(given.variables)
        self.parameters = given.positional
        self.positional: tuple[Value, ...] = ()
        self.called = False
        # Loops that break could end, and functions or read files that return could.
        self.loops = self.inside = 0
        self.slurm: tuple[Argument, ...] = ()
        self.marks: list[tuple[str, bool]] = []
        self.marked: dict[tuple[str, bool], str] = {}
        self.defaults: dict[str, None] = {}
        self.current = ""
        self.line = 0
        self.depth = self.commands = self.expanded = 0

    # Bounds and notes.

    def error(self, text: str) -> Unreadable:
        return Unreadable(text, self.current, self.line)

    def charge(self, size: int) -> None:
        self.expanded += size + 1
        if self.expanded > MAX_EXPANDED:
            raise self.error(f"variables expand to more than {MAX_EXPANDED} characters")

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
        """A character that stands for a value nobody knows, or for a variable nobody set."""
        key = (source[:80], unset)
        if key not in self.marked:
            if len(self.marks) >= MAX_MARKS:
                raise self.error("too many values are unknown")
            self.marked[key] = chr(_FIRST_MARK + len(self.marks))
            self.marks.append(key)
        return self.marked[key]

    def shown(self, text: str) -> str:
        """The text with the source of what is unknown in it."""
        return _MARK.sub(lambda match: self.marks[ord(match[0]) - _FIRST_MARK][0], text)

    def known(self, text: str) -> str | None:
        """The text with unset variables empty; None where something else is unknown."""
        text = _MARK.sub(
            lambda match: "" if self.marks[ord(match[0]) - _FIRST_MARK][1] else match[0], text
        )
        return None if _MARK.search(text) else text

    # Words.

    def lookup(self, name: str, line: int, source: str) -> Value | None:
        """The value of a variable; None where nobody set it."""
        if name.isdigit() and name != "0":
            index = int(name[:4])
            if index <= len(self.positional):
                return self.positional[index - 1]
            given = None if self.called else self.parameters.get(index)
            return None if given is None else ((given, 0),)
        if name == "#":
            return ((str(len(self.positional)), line),)
        if name in self.variables:
            value = self.variables[name]
            if isinstance(value, list):
                return value[0] if value else None
            return value
        if name in _AMBIENT:
            return ((self.unknown(source), line),)
        return None

    def elements(self, part: Parameter) -> list[Value] | None:
        """The values of `$@` or `${array[@]}`; None for anything else."""
        index = "".join(p.text for p in part.index or () if isinstance(p, Literal))
        if part.name in ("@", "*") and part.index is None:
            return list(self.positional)
        if part.index is None or index not in ("@", "*"):
            return None
        value = self.variables.get(part.name)
        if value is None:
            if part.name in _AMBIENT:
                return [((self.unknown(part.source), part.line),)]
            return []
        return value if isinstance(value, list) else [value]

    def number(self, expression: Word) -> int | None:
        """The value of an arithmetic expression."""
        text = self.known(plain_text(self.value(expression)))

        def named(name: str) -> int | None:
            found = self.lookup(name, 0, name)
            inner = None if found is None else self.known(plain_text(found))
            # A name in a variable would be evaluated again; numbers are enough here.
            return int(inner) if inner and re.fullmatch(r"-?\d{1,18}", inner.strip()) else None

        if text is None or len(text) > 10_000 or self.unset(expression):
            return None
        return arithmetic.evaluate(text, named)

    def unset(self, word: Word) -> bool:
        """Whether the word has a variable in it that nobody set."""
        return bool(_MARK.search(plain_text(self.value(word))))

    def scalar(self, part: Parameter) -> Value:
        """The value of a parameter that is one text."""
        value: Value | None
        if part.index is not None:
            found = self.variables.get(part.name)
            place = self.number(part.index)
            if place is None or part.name in _AMBIENT:
                value = ((self.unknown(part.source), part.line),)
            elif isinstance(found, list):
                inside = -len(found) <= place < len(found)
                value = found[place] if inside else None
            else:
                value = found if place == 0 else None
        else:
            value = self.lookup(part.name, part.line, part.source)
        text = None if value is None else plain_text(value)
        if part.length:
            size = self.known(text or "")
            told = size is not None and (value is not None or self.settled(part.name))
            shown = str(len(size or "")) if told else self.unknown(part.source)
            return ((shown, part.line),)
        empty = text is None or (":" in part.operator and self.known(text) == "")
        # A variable that holds only another that is unset counts as unset.
        empty = empty or (bool(text) and self.known(text or "") == "")
        sign = part.operator[-1:]
        if sign in ("-", "="):
            if not empty:
                return value or ()
            if not part.name.isdigit():
                self.defaults[part.name] = None
            default = self.value(part.argument)
            if sign == "=":
                self.variables[part.name] = default
            return default
        if sign == "+":
            return () if empty else self.value(part.argument)
        if sign in (",", "^") and (said := self.known(text or "")):
            return ((said.lower() if sign == "," else said.upper(), part.line),)
        if value is None and not self.settled(part.name):
            return ((self.unknown(part.source, unset=True), part.line),)
        return value or ()

    def settled(self, name: str) -> bool:
        """Whether nothing outside can give a value to what the script leaves without one."""
        return self.called if name.isdigit() else name in self.variables

    def runs(self, part: Literal | Arithmetic | Opaque | Parameter) -> Value:
        """The value of a part that is one text."""
        if isinstance(part, Literal):
            return ((part.text, part.line),)
        if isinstance(part, Parameter):
            return self.scalar(part)
        number = self.number(part.expression) if isinstance(part, Arithmetic) else None
        return ((self.unknown(part.source) if number is None else str(number), part.line),)

    def value(self, word: Word) -> Value:
        """The word as one text, without splitting: what an assignment takes."""
        found: list[tuple[str, int]] = []
        for part in word:
            elements = self.elements(part) if isinstance(part, Parameter) else None
            if isinstance(part, Parameter) and elements is not None:
                if part.length:
                    found.append((str(len(elements)), part.line))
                    continue
                for number, element in enumerate(elements):
                    found.extend([(" ", part.line)] if number else [])
                    found.extend(element)
            else:
                found.extend(self.runs(part))
        self.charge(sum(len(text) + 1 for text, _ in found))
        return tuple(run for run in found if run[0])

    def fields(self, word: Word) -> list[Value]:
        """The words that a word becomes: expanded and, outside quotes, split."""
        done: list[Value] = []
        current: list[tuple[str, int]] | None = None

        def close() -> None:
            nonlocal current
            if current is not None:
                done.append(tuple(current))
            current = None

        def push(text: str, line: int) -> None:
            nonlocal current
            if current is None:
                current = []
            current.append((text, line))

        def spread(value: Value) -> None:
            for text, line in value:
                self.charge(len(text))
                for number, piece in enumerate(re.split(r"[ \t\n]+", text)):
                    if number:
                        close()
                    if piece:
                        push(piece, line)

        # "${S[@]}" of an empty array takes a word with it that has nothing else in it.
        vanishes = False
        for part in word:
            elements = self.elements(part) if isinstance(part, Parameter) else None
            if isinstance(part, Parameter) and elements is not None and not part.length:
                star = part.name == "*" or any(
                    isinstance(p, Literal) and p.text == "*" for p in part.index or ()
                )
                if part.quoted and not elements:
                    vanishes |= not star
                    if star:
                        push("", part.line)
                for number, element in enumerate(elements):
                    if number:
                        if part.quoted and star:
                            push(" ", part.line)
                        else:
                            close()
                    if part.quoted:
                        push("", part.line)
                        for text, line in element:
                            self.charge(len(text))
                            push(text, line)
                    else:
                        spread(element)
            elif isinstance(part, Literal) or part.quoted:
                for text, line in self.value((part,)) or (("", part.line),):
                    push(text, line)
            else:
                spread(self.value((part,)))
        if (
            not vanishes
            or any(isinstance(part, Literal) for part in word)
            or any(text for text, _ in current or ())
        ):
            close()
        return done

    def argument(self, value: Value) -> Argument:
        text = plain_text(value)
        line = value[0][1] if value else self.line
        for piece, number in value:
            if piece:
                line = number
                break
        return Argument(self.shown(text), self.current, line, not _MARK.search(text))

    # Commands.

    def text_of(self, name: str) -> Source:
        """A file at hand; the characters that stand for unknown values are not its to use."""
        text = self.outcome.files.get(name) or self.files[name]
        self.charge(len(text))
        return whole(_MARK.sub("\ufffd", text), *self.outcome.places.get(name, (name, 1)))

    def script(self, source: Source, arguments: Sequence[Value], called: bool = True) -> None:
        """The commands of a text of its own, with its own #SBATCH lines.

        called: whether the arguments are all that it has; the outermost script may be given more.
        """
        kept = self.current, self.line, self.positional, self.called, self.slurm
        self.current, self.positional, self.called = source.file, tuple(arguments), called
        try:
            self.batch(source)
            self.statements(parse(source))
        finally:
            self.current, self.line, self.positional, self.called, self.slurm = kept

    def batch(self, source: Source) -> None:
        """The options of #SBATCH lines, and the variables that Slurm makes of them."""
        options = []
        for match in re.finditer(r"^[ \t]*#SBATCH[ \t]+(.*)$", source.text, re.MULTILINE):
            line = source.line(match.start())
            for word in match[1].split(" #", 1)[0].split():
                options.append(self.argument(((word, line),)))
        if options or self.slurm:
            # What sbatch is given on its own line goes before the lines of the script.
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
        with _Copy(self, chain.background):
            status = self.pipeline(chain.first)
            for operator, pipeline in chain.rest:
                if status == (operator == "&&"):
                    status = self.guarded(lambda p=pipeline: self.pipeline(p))  # type: ignore[misc]
        return status

    def guarded(self, run: Callable[[], bool]) -> bool:
        """Something conditional; where it only ends the script, it is taken not to happen."""
        variables, launches = dict(self.variables), len(self.outcome.launches)
        self.charge(len(variables))
        try:
            return run()
        except _Exit:
            if len(self.outcome.launches) > launches:
                raise
            self.note("the check that would end the script here is taken to pass")
            self.variables = variables
            return False

    def pipeline(self, pipeline: Pipeline) -> bool:
        several = len(pipeline.commands) > 1
        status = True
        for command in pipeline.commands:
            with _Copy(self, several):
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
            with _Copy(self, command.subshell):
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
        """A test; what cannot be decided is taken as false."""
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
        """One round of a loop; False where it is the last."""
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
        name, old = assignment.name, self.variables.get(assignment.name)
        new: Value | list[Value]
        if assignment.elements is not None:
            new = [value for word in assignment.elements for value in self.fields(word)]
            if assignment.append:
                new = [*(old if isinstance(old, list) else [old] if old else []), *new]
        elif assignment.index is not None:
            place = self.number(assignment.index)
            cells = list(old) if isinstance(old, list) else [old] if old else []
            if place is None or not 0 <= place <= len(cells):
                new = [((self.unknown(f"${{{name}[...]}}"), assignment.line),)]
            else:
                before = cells[place] if assignment.append and place < len(cells) else ()
                cells[place : place + 1] = [(*before, *self.value(assignment.value))]
                new = cells
        else:
            new = self.value(assignment.value)
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
            if command.assignments:
                self.variables, self.exported = kept, exported

    def call(self, name: str, words: list[Value], names: list[str | None], command: Simple) -> bool:
        if name in self.functions:
            kept = self.positional, self.called, self.loops
            self.positional, self.called, self.loops = tuple(words[1:]), True, 0
            self.inside += 1
            try:
                return self.command(self.functions[name])
            except _Return:
                return True
            finally:
                self.positional, self.called, self.loops = kept
                self.inside -= 1
        if name == "exit":
            raise _Exit
        if name == "return" and self.inside:
            raise _Return
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
            for one in names[1:]:
                if one and re.fullmatch(r"[A-Za-z_]\w*", one, re.ASCII):
                    self.variables[one] = ((self.unknown(f"${one}"), command.line),)
        elif name in ("source", "."):
            self.other(words[1:2], words[2:], "read")
        elif name == "eval":
            self.nested([run for word in words[1:] for run in (*word, (" ", command.line))])
        else:
            self.program(name, words, names, command)
        return True

    def shown_all(self, words: Sequence[Value]) -> str:
        return " ".join(self.shown(plain_text(word)) for word in words)

    def nested(self, value: Iterable[tuple[str, int]]) -> None:
        """Commands that stand in a text."""
        source = Source(value, self.current)
        self.charge(len(source.text))
        kept = self.line
        with self.deeper():
            self.statements(parse(source))
        self.line = kept

    def at_hand(self, path: str) -> bool:
        """Whether a word is the path of a script."""
        name = path.rsplit("/", 1)[-1]
        return name in self.files or name.endswith((".sh", ".slurm", ".sbatch"))

    def other(self, name: Sequence[Value], arguments: Sequence[Value], verb: str) -> None:
        """Another script, where it is at hand."""
        text = plain_text(name[0]) if name else ""
        path = self.shown(text).removeprefix("./")
        known = {**self.files, **self.outcome.files}
        base = path.rsplit("/", 1)[-1]
        alike = [one for one in known if one.rsplit("/", 1)[-1] == base]
        found = next((one for one in (path, base) if one in known), None)
        found = found or (alike[0] if len(alike) == 1 else None)
        if found is None:
            self.note(f"{path or 'a script'} is not at hand and was not {verb}")
            return
        source = self.text_of(found)
        with self.deeper():
            if verb == "read":
                self.inside += 1
                with suppress(_Return):
                    self.script(source, arguments or self.positional, self.called)
                self.inside -= 1
            else:
                with _Copy(self, True), suppress(_Exit):
                    for gone in set(self.variables) - self.exported:
                        if not gone.startswith("SLURM_"):
                            del self.variables[gone]
                    self.script(source, arguments)

    def write(self, name: str, words: list[Value], redirect: Redirect) -> None:
        """A here-document or an echo into a file is a file at hand."""
        if redirect.operator not in (">", ">|"):
            return
        target = self.shown(plain_text(self.value(redirect.target))).rsplit("/", 1)[-1]
        if name == "echo":
            texts = [plain_text(word) for word in words[1:]]
            self.keep(target, f"{' '.join(texts)}\n", self.line)

    def keep(self, name: str, text: str, line: int) -> None:
        if name and name != "null":
            self.charge(len(text))
            self.outcome.files[name] = self.shown(text)
            self.outcome.places[name] = (self.current, line)

    def program(
        self, name: str, words: list[Value], names: list[str | None], command: Simple
    ) -> None:
        """A program that is not part of bash: a launch, or what may hold one, or nothing."""
        bodies = [r for r in command.redirects if r.operator in ("<<", "<<-")]
        if name in ("cat", "tee") and bodies:
            targets = [r.target for r in command.redirects if r.operator in (">", ">|")]
            paths = [plain_text(self.value(target)) for target in targets]
            paths += [plain_text(word) for word in words[1:] if name == "tee"]
            body = self.value(bodies[-1].body)
            for path in paths:
                if not path.startswith("-"):
                    first = body[0][1] if body else self.line
                    self.keep(self.shown(path).rsplit("/", 1)[-1], plain_text(body), first)
        if name in _TALKERS or not words:
            return
        if (name == "sbatch" or name in _SHELLS) and bodies:
            kept = self.slurm
            if name == "sbatch":
                self.slurm = tuple(self.argument(word) for word in words[1:])
            self.charge(len(words))
            with _Copy(self, True), self.deeper(), suppress(_Exit):
                self.script(Source(self.value(bodies[-1].body), self.current), ())
            self.slurm = kept
            return
        for place, text in enumerate(names):
            if text and text.rsplit("/", 1)[-1] in _SHELLS and place + 1 < len(words):
                self.shell(words[place + 1 :], names[place + 1 :])
                return
        if name == "sbatch":
            scripts = [p for p, text in enumerate(names) if p and text and self.at_hand(text)]
            if scripts:
                kept = self.slurm
                self.slurm = tuple(self.argument(word) for word in words[1 : scripts[0]])
                self.other(words[scripts[0] : scripts[0] + 1], words[scripts[0] + 1 :], "run")
                self.slurm = kept
                return
        if name.endswith(".sh"):
            self.other(words[:1], words[1:], "run")
            return
        found = self.launch(words, names)
        if found is not None:
            self.outcome.launches.append(found)
            return
        for word, text in zip(words[1:], names[1:], strict=True):
            whole_text = text if text is not None else plain_text(word)
            if re.search(r"\s", whole_text) and _PROGRAM.search(whole_text):
                with _Copy(self, True):
                    self.nested(word)

    def shell(self, words: list[Value], names: list[str | None]) -> None:
        """`bash -c TEXT`, or `bash SCRIPT ARGUMENTS`."""
        place = 0
        while place < len(names) and (names[place] or "").startswith(("-", "+")):
            option = names[place] or ""
            place += 1
            if not option.startswith("--") and "c" in option:
                while place < len(names) and (names[place] or "").startswith("-"):
                    place += 1
                with _Copy(self, True):
                    for word in words[place : place + 1]:
                        self.nested(word)
                return
            if option in ("-o", "+o"):
                place += 1
        self.other(words[place : place + 1], words[place + 1 :], "run")

    def launch(self, words: list[Value], names: list[str | None]) -> Launch | None:
        """The call of a Python program that the words are; None where they are something else."""
        program = 1 if console_script(names) else self.trainer(words, names)
        if program is None:
            return None
        given = tuple(map(self.argument, words))
        environment = {
            name: text
            for name in self.exported
            if (value := self.lookup(name, 0, name)) is not None
            and (text := plain_text(value)) == self.known(text)
        }
        return Launch(
            given[:program], given[program], given[program + 1 :], environment, self.slurm
        )

    def trainer(self, words: list[Value], names: list[str | None]) -> int | None:
        """The place of a Python program among the words."""
        launcher = next((i for i, text in enumerate(names) if text and launcher_of(text)), None)
        if launcher is None:
            first = names[0]
            if not (first is None or first == "" or first.endswith(".py") or first == "srun"):
                return None
        for place in range(0 if launcher is None else launcher + 1, len(words)):
            text, before = self.shown(plain_text(words[place])), names[place - 1] if place else ""
            if before in ("-m", "--module") and launcher is not None and place - 1 > launcher:
                if not text.startswith(_LAUNCHER_MODULES):
                    return place
            elif text.endswith(".py"):
                return place
        return None


class _Copy:
    """A subshell, where it is one: what is assigned inside is forgotten."""

    def __init__(self, shell: Shell, active: bool) -> None:
        self.shell, self.active = shell, active

    def __enter__(self) -> None:
        if self.active:
            self.shell.charge(len(self.shell.variables))
            self.kept = dict(self.shell.variables), set(self.shell.exported)

    def __exit__(self, *_: object) -> None:
        if self.active:
            self.shell.variables, self.shell.exported = self.kept
