"""The programs that a script calls: launches, other scripts, and commands with one inside."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress

from planner.frameworks.bash.conditions import plain_text
from planner.frameworks.bash.expansion import MARK, Expansion
from planner.frameworks.bash.launches import (
    STARTERS,
    ProgramCall,
    console_script,
    launcher_of,
)
from planner.frameworks.bash.source import Source, whole
from planner.frameworks.bash.syntax import parse
from planner.frameworks.bash.tree import (
    Redirect,
    Simple,
    Statements,
    Value,
)

_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_TALKERS = frozenset({"echo", "printf", ":", "cat", "tee", "sed", "grep", "awk", "mkdir", "cp"})
_LAUNCHER_MODULES = ("torch.distributed.", "deepspeed.launcher", "accelerate.commands")
_PROGRAM = re.compile(r"\.py\b|\s-m\s")


class Exit(Exception):
    """The script ends here."""


class Return(Exception):
    """The function ends here."""


class Programs(Expansion, ABC):
    """Evaluation of program calls."""

    @abstractmethod
    def script(self, source: Source, arguments: Sequence[Value], called: bool = True) -> None:
        """Evaluate the commands of a separate script."""

    @abstractmethod
    def statements(self, body: Statements) -> None:
        """Evaluate commands in order."""

    def text_of(self, name: str) -> Source:
        """The text of an available file; its own placeholder characters are replaced."""
        text = self.outcome.files.get(name) or self.files[name]
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
        return name in self.files or name.endswith((".sh", ".slurm", ".sbatch"))

    def other(self, name: Sequence[Value], arguments: Sequence[Value], verb: str) -> None:
        """Evaluate another script, if available; verb: "run", or "read" for a sourced one."""
        text = plain_text(name[0]) if name else ""
        path = self.shown(text).removeprefix("./")
        known = {**self.files, **self.outcome.files}
        base = path.rsplit("/", 1)[-1]
        alike = [one for one in known if one.rsplit("/", 1)[-1] == base]
        found = next((one for one in (path, base) if one in known), None)
        found = found or (alike[0] if len(alike) == 1 else None)
        if found is None:
            self.note(f"{path or 'a script'} is not among the given files and was not {verb}")
            return
        source = self.text_of(found)
        with self.deeper():
            if verb == "read":
                self.inside += 1
                with suppress(Return):
                    self.script(source, arguments or self.positional, self.called)
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
            with Copy(self, True), self.deeper(), suppress(Exit):
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
                with Copy(self, True):
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
                with Copy(self, True):
                    for word in words[place : place + 1]:
                        self.nested(word)
                return
            if option in ("-o", "+o"):
                place += 1
        self.other(words[place : place + 1], words[place + 1 :], "run")

    def launch(self, words: list[Value], names: list[str | None]) -> ProgramCall | None:
        """The words as the call of a Python program; None for any other command."""
        program = console_script(names) or self.trainer(words, names)
        if program is None:
            return None
        given = tuple(map(self.argument, words))
        environment = {
            name: text
            for name in self.exported
            if (value := self.lookup(name, 0, name)) is not None
            and (text := plain_text(value)) == self.known(text)
        }
        return ProgramCall(
            given[:program], given[program], given[program + 1 :], environment, self.slurm
        )

    def trainer(self, words: list[Value], names: list[str | None]) -> int | None:
        """The index of a Python program among the words; None if there is none."""
        launcher = next((i for i, text in enumerate(names) if text and launcher_of(text)), None)
        if launcher is None:
            first = names[0]
            if first and not first.endswith(".py") and first not in STARTERS:
                return None
        for place in range(0 if launcher is None else launcher + 1, len(words)):
            text, before = self.shown(plain_text(words[place])), names[place - 1] if place else ""
            if before in ("-m", "--module") and launcher is not None and place - 1 > launcher:
                if not text.startswith(_LAUNCHER_MODULES):
                    return place
            elif text.endswith(".py"):
                return place
        return None


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
