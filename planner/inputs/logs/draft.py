"""What the readers of one log have found so far, and the readers' common form."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from array import array
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from cost_models.package_files import table
from planner.documents.problems import RequestError, shown
from planner.inputs.logs.run_log import CodeBase, Fact, Memory, StepTime, Value, refused
from planner.inputs.logs.steps import Series

STAMPS = "time stamps of the steps"
MIB, GIB = 2.0**20, 2.0**30
MOST_FACTS, MOST_ASSUMED = 10_000, 100
# Of a config that a log prints.
MOST_LINES, MOST_CHARACTERS = 2_000, 2**20
# Names that Megatron, its Bridge and NeMo print -> field.
FIELDS: dict[str, str] = table("planner.inputs.logs", "names.json")["megatron"]


@dataclass
class Draft:
    """Facts, series of step times, memory, and the configs that the log prints.

    options: Megatron's arguments by their names, with their lines.  configs: files as the framework
    would be given them, with the line of the log for each line of theirs.
    """

    name: str
    facts: dict[str, Fact] = field(default_factory=dict)
    series: dict[str, Series] = field(default_factory=dict)
    means: list[StepTime] = field(default_factory=list)
    rates: dict[str, array[float]] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    options: dict[str, tuple[str, int]] = field(default_factory=dict)
    configs: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    started: dict[str, int] = field(default_factory=dict)
    batch: tuple[int, int] | None = None
    micro_batches: int = 0
    processes: dict[str, str] = field(default_factory=dict)

    def set_fact(self, path: str, value: Value, line: int) -> None:
        """A field of the run; the first to say it stands."""
        if len(self.facts) < MOST_FACTS:
            self.facts.setdefault(path, Fact(field=path, value=value, file=self.name, line=line))

    def number(self, path: str) -> int | None:
        """A field that is a whole number; None where it is open."""
        fact = self.facts.get(path)
        return fact.value if fact is not None and type(fact.value) is int else None

    def assume(self, text: str) -> None:
        if text not in self.assumed and len(self.assumed) < MOST_ASSUMED:
            self.assumed.append(text)

    def start(self, event: str, line: int) -> None:
        """A mark that a process prints once, when it starts.  Raises RequestError at the second."""
        first = self.started.setdefault(event, line)
        if first != line:
            raise _two_runs(first, line, f"{event} again")

    def first_process(self, kind: str, mark: str) -> bool:
        """Whether a line is of the process whose reports of this kind are read: the first one."""
        return self.processes.setdefault(kind, mark) == mark

    def step(
        self, basis: str, number: int, seconds: float, line: int, skipped: bool = False
    ) -> bool:
        """The time of a step; False where another process said it already.

        Raises RequestError where the steps begin anew.
        """
        series = self.series.setdefault(basis, Series(basis))
        if series.numbers and number == series.numbers[-1]:
            return False
        if series.numbers and number < series.numbers[-1]:
            last = series.numbers[-1]
            raise _two_runs(0, line, f"step {number:,} after step {last:,}")
        series.take(number, seconds, line, skipped)
        return True

    def pause(self) -> None:
        """An evaluation or a checkpoint: what is reported next is left out."""
        for series in self.series.values():
            series.paused = True

    def samples(self, batch: int, line: int) -> None:
        """The global batch of a step.  Raises RequestError where it is not that of the others."""
        if self.batch is None:
            self.batch = batch, line
            self.set_fact("training.global_batch_size", batch, line)
        elif batch != self.batch[0]:
            first, first_line = self.batch
            detail = f"the batch is {first:,} at line {first_line} and {batch:,} at line {line}"
            detail += ": give the steps of one batch"
            raise refused("batch_changes", detail, batch, allowed=(first,))

    def loss(self, text: str, line: int) -> None:
        """The loss of a step.  Raises RequestError where it is none."""
        try:
            value = float(text)
        except ValueError:
            return
        if not math.isfinite(value):
            at = f"the loss is {shown(text)} at line {line}"
            raise refused("loss_is_nan", f"{at}: a run that diverged times nothing real", text)

    def rate(self, name: str, value: float) -> None:
        """TFLOP/s or tokens/s of a report."""
        if math.isfinite(value) and value > 0:
            self.rates.setdefault(name, array("d")).append(value)

    def report_memory(self, quantity: str, amount: float, line: int) -> None:
        """A report of memory in bytes; the largest stands."""
        if not (math.isfinite(amount) and 0 < amount < 2.0**60):
            return
        old = self.memory.get(quantity)
        fields = {"quantity": quantity, "bytes": amount, "file": self.name, "line": line}
        if old is not None and old.bytes >= amount:
            fields = old.model_dump()
        self.memory[quantity] = Memory.model_validate(
            {**fields, "reports": 1 + (old.reports if old else 0)}
        )


@dataclass
class Stamps:
    """The times at which steps were reported: what lies between them is a series of its own."""

    draft: Draft
    last: tuple[int, datetime] | None = None

    def take(self, step: int, when: re.Match[str] | None, line: int) -> None:
        """The report of a step; when: its date with time, and the fraction of the second."""
        if when is None:
            return
        now = datetime.fromisoformat(f"{when[1]}.{when[2]:0<6}")
        if self.last is not None and step > self.last[0]:
            gap = (now - self.last[1]).total_seconds() / (step - self.last[0])
            if gap > 1e-3:
                self.draft.step(STAMPS, step, gap, line)
        self.last = step, now


@dataclass
class Block:
    """Lines that belong together, up to the bracket that closes the first one; none too long."""

    opening: str
    closing: str
    lines: list[str] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    depth: int = 0
    size: int = 0

    def add(self, text: str, number: int) -> bool:
        """Keep a line; whether others must follow."""
        self.lines.append(text)
        self.numbers.append(number)
        self.depth += text.count(self.opening) - text.count(self.closing)
        self.size += len(text)
        return self.depth > 0 and len(self.lines) < MOST_LINES and self.size < MOST_CHARACTERS

    def taken(self) -> tuple[str, list[int]]:
        """The text and the number of each line of it; the block is empty then."""
        block = "\n".join(self.lines), self.numbers
        self.lines, self.numbers, self.depth, self.size = [], [], 0, 0
        return block


class Reader(ABC):
    """Reads the lines of one kind.

    words: one of them stands in every line that it wants to see.
    """

    words: ClassVar[tuple[str, ...]]

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    @abstractmethod
    def take(self, number: int, process: str, text: str) -> bool:
        """One line; True where the next lines are all its own, whatever stands in them."""

    def close(self) -> None:  # noqa: B027  (most readers keep nothing back)
        """The log has ended."""

    @property
    def code_base(self) -> CodeBase | None:
        """The code base that it is sure of; None where it has seen nothing of one."""
        return None


def _two_runs(first: int, line: int, event: str) -> RequestError:
    beginning = f" (the first began at line {first})" if first else ""
    detail = f"a second run, or the same one resumed, begins at line {line}: {event}{beginning}"
    return refused("two_runs", f"{detail}; give one run per log", line)


def number_of(text: str) -> float:
    """A number with thousands marked by commas or shortened by K, M, G or T; NaN: none."""
    plain = text.replace(",", "").strip()
    factor = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}.get(plain[-1:], 1.0)
    try:
        return float(plain[:-1] if factor != 1.0 else plain) * factor
    except ValueError:
        return math.nan


def whole(text: str) -> int | None:
    """A whole number of at most 15 digits; None: none."""
    plain = text.replace(",", "").strip()
    return int(plain) if plain.isascii() and plain.isdigit() and len(plain) < 16 else None
