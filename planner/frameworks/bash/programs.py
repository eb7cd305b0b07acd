"""The programs that a script calls: launches, other scripts, and commands with one inside."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from planner.frameworks.bash.conditions import plain_text
from planner.frameworks.bash.expansion import MARK, Expansion
from planner.frameworks.bash.launches import (
    STARTERS,
    ProgramCall,
    console_script,
    launcher_of,
    started,
)
from planner.frameworks.bash.source import Source, whole
from planner.frameworks.bash.substitutions import Substitutions
from planner.frameworks.bash.syntax import parse
from planner.frameworks.bash.tree import Redirect, Simple, Statements, Value, Word

_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_TALKERS = frozenset({"echo", "printf", ":", "cat", "tee", "sed", "grep", "awk", "mkdir", "cp"})
_LAUNCHER_MODULES = ("torch.distributed.", "deepspeed.launcher", "accelerate.commands")
# Options by which a program is a training, whatever starts it (a site's own launcher).
_TRAINS = {"--per_device_train_batch_size", "--micro-batch-size"}
# Variables that Apptainer hands on into a container, without this prefix.
_CONTAINER = re.compile(r"(SINGULARITY|APPTAINER)ENV_")
_PROGRAM = re.compile(r"\.py\b|\s-m\s")


class Exit(Exception):
    """The script ends here."""


class Return(Exception):
    """The function ends here."""


class Programs(Substitutions, ABC):
    """Evaluation of program calls."""

    @abstractmethod
    def script(
        self,
        source: Source,
        arguments: Sequence[Value],
        called: bool = True,
        sourced: bool = False,
    ) -> None:
        """Evaluate the commands of a separate script."""

    @abstractmethod
    def statements(self, body: Statements) -> None:
        """Evaluate commands in order."""

    def text_of(self, name: str) -> Source:
        """The text of an available file; its own placeholder characters are replaced."""
        text = {**self.files, **self.outcome.files}[name]
        self.charge(len(text))
        return whole(MARK.sub("\ufffd", text), *self.outcome.places.get(name, (name, 1)))

    def shown_all(self, words: Sequence[Value]) -> str:
        return " ".join(self.shown(plain_text(word)) for word in words)

    def nested(self, value: Iterable[tuple[str, int]]) -> None:
        """Evaluate the commands in a text, as eval does."""
        source = Source(value, self.current)
        self.charge(len(source.text))
        kept = self.line
        with self.deeper():
            self.statements(parse(source))
        self.line = kept

    def at_hand(self, path: str) -> bool:
        """Whether a word is the path of a script."""
        name = path.rsplit("/", 1)[-1]
        known = name in self.files or name in self.outcome.files
        return known or name.endswith((".sh", ".slurm", ".sbatch"))

    def file_at(self, path: str) -> str | None:
        """The file of that path, or the only one with its last part; None if it isn't at hand."""
        known = {**self.files, **self.outcome.files}
        if path != self.current:  # another one of the same name, in another folder
            known.pop(self.current, None)
        base = path.rsplit("/", 1)[-1]
        alike = [one for one in known if one.rsplit("/", 1)[-1] == base]
        found = next((one for one in (path, base) if one in known), None)
        return found or (alike[0] if len(alike) == 1 else None)

    def other(self, name: Sequence[Value], arguments: Sequence[Value], verb: str) -> None:
        """Evaluate another script, if available; verb: "run", or "read" for a sourced one."""
        text = plain_text(name[0]) if name else ""
        path = self.shown(text).removeprefix("./")
        found = self.file_at(path)
        if found is None:
            self.note(f"{path or 'a script'} is not among the given files and was not {verb}")
            self.outcome.missing += [path] * (path not in ("", *self.outcome.missing))
            return
        source = self.text_of(found)
        with self.deeper():
            if verb == "read":
                self.inside += 1
                with suppress(Return):
                    self.script(source, arguments or self.positional, self.called, sourced=True)
                self.inside -= 1
            else:
                with Copy(self, True), suppress(Exit):
                    for gone in set(self.variables) - self.exported:
                        if not gone.startswith("SLURM_"):
                            del self.variables[gone]
                    self.script(source, arguments)

    def write(self, name: str, words: list[Value], redirect: Redirect) -> None:
        """Keep the file that an echo is redirected into."""
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
        """Evaluate an external program: a launch, a command with one inside, or neither."""
        bodies = [r.body for r in command.redirects if r.operator in ("<<", "<<-")]
        if name in ("cat", "tee") and bodies:
            self.document(words[1:] if name == "tee" else (), bodies[-1], command)
        if name in _TALKERS:
            return
        if (name == "sbatch" or name in _SHELLS) and bodies:
            self.charge(len(words))
            with self.job(name, words[1:]), Copy(self, True), self.deeper(), suppress(Exit):
                self.script(Source(self.value(bodies[-1]), self.current), ())
        elif inner := _shell_arguments(names):
            with self.job(name, words[1 : inner - 1]):
                self.shell(words[inner:], names[inner:])
        elif script := self.submitted(name, names):
            with self.job(name, words[1:script]):
                self.other(words[script : script + 1], words[script + 1 :], "run")
        elif name.endswith(".sh"):
            self.other(words[:1], words[1:], "run")
        elif (found := self.launch(words, names)) is not None:
            self.outcome.launches.append(found)
            self.quoted(filter(_is_command, words))
        else:
            self.quoted(words[1:])

    def document(self, paths: Sequence[Value], body: Word, command: Simple) -> None:
        """Keep the files that cat or tee writes a here-document into."""
        targets = [r.target for r in command.redirects if r.operator in (">", ">|")]
        value = [self.value(target) for target in targets]
        text = self.value(body)
        for path in map(plain_text, (*value, *paths)):
            if not path.startswith("-"):
                first = text[0][1] if text else self.line
                self.keep(self.shown(path).rsplit("/", 1)[-1], plain_text(text), first)

    @contextmanager
    def job(self, name: str, options: Sequence[Value]) -> Iterator[None]:
        """What sbatch starts with these options; srun's add to those of the job that it is in."""
        kept = self.slurm
        if name == "sbatch":
            self.slurm = tuple(map(self.argument, options))
        elif name == "srun":
            self.slurm = (*kept, *map(self.argument, options))
        yield
        self.slurm = kept

    def submitted(self, name: str, names: Sequence[str | None]) -> int:
        """The index of the script that sbatch is given; 0 if there is none."""
        if name != "sbatch":
            return 0
        return next((p for p, text in enumerate(names) if p and text and self.at_hand(text)), 0)

    def quoted(self, words: Iterable[Value]) -> None:
        """Evaluate the words that are commands themselves, as in `ray job submit -- "COMMAND"`."""
        for word in words:
            text = self.known(plain_text(word)) or plain_text(word)
            if re.search(r"\s", text) and _PROGRAM.search(text):
                with Copy(self, True):
                    self.nested(_without_option(word))

    def shell(self, words: list[Value], names: list[str | None]) -> None:
        """`bash -c TEXT NAME ARGUMENTS`, or `bash SCRIPT ARGUMENTS`."""
        place = 0
        while place < len(names) and (names[place] or "").startswith(("-", "+")):
            option = names[place] or ""
            place += 1
            if not option.startswith("--") and "c" in option:
                while place < len(names) and (names[place] or "").startswith("-"):
                    place += 1
                with Copy(self, True), self.arguments_of(words[place + 2 :]):
                    for word in words[place : place + 1]:
                        self.nested(word)
                return
            if option in ("-o", "+o"):
                place += 1
        self.other(words[place : place + 1], words[place + 1 :], "run")

    @contextmanager
    def arguments_of(self, arguments: Sequence[Value]) -> Iterator[None]:
        """The arguments of a shell that is started with a text: `$0` is not one of them."""
        kept = self.positional, self.called
        self.positional, self.called = tuple(arguments), True
        try:
            yield
        finally:
            self.positional, self.called = kept

    def launch(self, words: list[Value], names: list[str | None]) -> ProgramCall | None:
        """The words as the call of a Python program; None for any other command."""
        program = console_script(names) or self.trainer(words, names)
        if program is None:
            return None
        given = tuple(map(self.argument, words))
        environment = {
            _CONTAINER.sub("", name): text
            for name in sorted(self.exported, key=lambda one: bool(_CONTAINER.match(one)))
            if (value := self.lookup(name, 0, name)) is not None
            and (text := plain_text(value)) == self.known(text)
        }
        rest = given[program + 1 :]
        return started(ProgramCall(given[program], given[:program], rest, environment, self.slurm))

    def trainer(self, words: list[Value], names: list[str | None]) -> int | None:
        """The index of a Python program among the words; None if there is none."""
        launcher = next((i for i, text in enumerate(names) if text and launcher_of(text)), -1)
        first = names[0]
        if launcher < 0 and first and not _starts(first, names):
            return None
        for place in range(launcher + 1, len(words)):
            text, before = self.shown(plain_text(words[place])), names[place - 1] if place else ""
            if before in ("-m", "--module") and 0 <= launcher < place - 1:
                if not text.startswith(_LAUNCHER_MODULES):
                    return place
            elif text.endswith(".py"):
                return place
        return 0 if launcher < 0 and _has_options(names) else None  # a package's own command


def _starts(first: str, names: Sequence[str | None]) -> bool:
    """Whether a command that is no known launcher starts a training all the same."""
    return first.endswith(".py") or first in STARTERS or _has_options(names)


def _has_options(names: Sequence[str | None]) -> bool:
    """Whether a command is given a training's options."""
    return any(name.partition("=")[0] in _TRAINS for name in names if name)


def _shell_arguments(names: Sequence[str | None]) -> int:
    """The index of the first word after the name of a shell; 0 if there is none."""
    shells = (text is not None and text.rsplit("/", 1)[-1] in _SHELLS for text in names[:-1])
    return next((place for place, is_shell in enumerate(shells, 1) if is_shell), 0)


def _is_command(word: Value) -> bool:
    """Whether a word says what runs on many hosts, as MaxText's multihost_runner.py takes it."""
    return plain_text(word).lower().startswith("--command=")


def _without_option(word: Value) -> Value:
    """The command of `--command=COMMAND`."""
    (first, line), *rest = word
    return ((re.sub(r"^--[\w-]+=", "", first), line), *rest)


class Copy:
    """A subshell, if active: assignments inside are undone at its end."""

    def __init__(self, shell: Expansion, active: bool) -> None:
        self.shell, self.active = shell, active

    def __enter__(self) -> None:
        if self.active:
            self.shell.charge(len(self.shell.variables))
            self.kept = dict(self.shell.variables), set(self.shell.exported)

    def __exit__(self, *_: object) -> None:
        if self.active:
            self.shell.variables, self.shell.exported = self.kept
