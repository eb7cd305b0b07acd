"""Loops of a script: how often each is followed, and what is said where it is cut short."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from planner.frameworks.bash import tree
from planner.frameworks.bash.calculations import Calculations
from planner.frameworks.bash.conditions import plain_text
from planner.frameworks.bash.tree import Statements

# Commands whose status is worked out.
_DECIDED = ("true", ":", "false", "[", "test", "getopts", "let")
MAX_ROUNDS = 256


class Loop(Exception):
    """`break`, or `continue` if again."""

    def __init__(self, again: bool) -> None:
        self.again = again


class Loops(Calculations, ABC):
    """Evaluation of for, while and until."""

    @abstractmethod
    def guarded(self, run: Callable[[], bool]) -> bool:
        """Run a conditional branch; if all it does is exit, assume that it is not taken."""

    @abstractmethod
    def body(self, body: Statements) -> bool:
        """Evaluate commands in order."""

    @abstractmethod
    def status(self, body: Statements) -> bool:
        """Evaluate a condition."""

    def round(self, body: Statements) -> bool:
        """One iteration of a loop; False if it is the last."""
        self.loops += 1
        try:
            self.guarded(lambda: self.body(body))
        except Loop as loop:
            return loop.again
        finally:
            self.loops -= 1
        return True

    def each(self, command: tree.For) -> None:
        values = (
            list(self.positional)
            if command.words is None
            else [value for word in command.words for value in self.choices(word)]
        )
        for value in values[:MAX_ROUNDS]:
            self.variables[command.name] = value
            if not self.round(command.body):
                return
        if len(values) > MAX_ROUNDS:
            self.cut_short(command.body, command.line)

    def cut_short(self, body: Statements, line: int, rounds: int = MAX_ROUNDS) -> None:
        what = f"{rounds} rounds of this loop are" if rounds > 1 else "this loop's first round is"
        self.note(f"only {what} followed", line)
        self.forget(body)

    def counting(self, command: tree.Counted) -> None:
        self.line = command.line
        self.calculate(command.first)
        for _ in range(MAX_ROUNDS):
            more = self.calculate(command.condition) if command.condition else 1
            if more is None:
                self.note("how often this loop runs is not known: it is not followed", command.line)
                self.forget(command.body)
            if not more or not self.round(command.body):
                return
            self.calculate(command.step)
        self.cut_short(command.body, command.line)

    def repeated(self, command: tree.While) -> None:
        judge = self.judge(command.condition)
        # As long as a program, or what is read, says: nobody knows how long.
        waits = judge is not None and judge not in (*_DECIDED, *self.functions)
        rounds = 1 if waits else MAX_ROUNDS
        for done in range(1, rounds + 1):
            if self.status(command.condition) == command.until and not waits:
                return
            started = len(self.outcome.launches)
            if not self.round(command.body):
                return
            if judge in ("true", ":") and len(self.outcome.launches) > started:
                rounds = done  # the next one starts again what has stopped
                break
        self.cut_short(command.body, command.line, rounds)

    def judge(self, condition: Statements) -> str | None:
        """The command by which a loop goes on; None where it is none."""
        last = condition[-1].first.commands[-1] if condition and not condition[-1].rest else None
        if not isinstance(last, tree.Simple) or not last.words:
            return None
        return self.known(plain_text(self.value(last.words[0]))) or ""
