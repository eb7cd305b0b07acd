"""Runs a sweep: reads the stored results, asks the remaining questions, and makes the table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.documents.plan_report import Document
from planner.documents.problems import RequestError, choice, refuse, shown
from planner.running.sweeps.grid import Grid, Question
from planner.running.sweeps.question import Outcome, Result
from planner.running.sweeps.results_folder import ResultsFolder
from planner.running.sweeps.table import Row, csv_bytes, parquet_bytes, row
from planner.running.sweeps.workers import BACKENDS, answers
from planner.version import __version__

_DIGITS = re.compile("[0-9]{1,6}")
# Wraps the iterator of new results, given the number of results so far and the total.
Watch = Callable[[Iterator[tuple[str, Result]], int, int], Iterable[tuple[str, Result]]]


@dataclass(frozen=True)
class Shard:
    """One of `of` equal parts of a grid: every of-th question, starting at the number-th."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard for a text such as 3/64.  Raises RequestError if it is malformed."""
        number, _, of = text.partition("/") if isinstance(text, str) else ("", "", "")
        if not (_DIGITS.fullmatch(number) and _DIGITS.fullmatch(of)):
            raise refuse("/shard", "wrong_type", f"must be as 3/64, got {shown(text)!r}", text)
        shard = cls(int(number), int(of))
        if not 1 <= shard.number <= shard.of:
            raise refuse("/shard", "not_allowed", f"must be 1/{of} to {of}/{of}, got {text}", text)
        return shard

    def part(self, questions: Iterable[Question]) -> list[Question]:
        """Its questions; neighbours, which take about equally long, go to different shards."""
        return [q for i, q in enumerate(questions) if i % self.of == self.number - 1]


class SweepAnswer(Document):
    """The answer to `planner sweep`: a row per question, in the order of the grid.

    inputs: the columns of the varied fields; the others are planner.running.sweeps.table.COLUMNS.
    outcomes: the number of rows with each outcome.
    """

    version: str
    inputs: tuple[str, ...]
    outcomes: dict[Outcome, int]
    rows: tuple[Row, ...]

    def csv(self) -> bytes:
        """The table as CSV."""
        return csv_bytes(self.inputs, self.rows)

    def parquet(self) -> bytes:
        """The table as Parquet.  Raises RequestError if pyarrow is not installed."""
        return parquet_bytes(self.inputs, self.rows)


def sweep(
    grid: Grid,
    folder: Path | None = None,
    *,
    backend: str = "local",
    workers: int | None = None,
    shard: str = "1/1",
    watch: Watch = lambda results, done, total: results,
) -> SweepAnswer:
    """Ask the questions that have no result in the folder yet, and store each result at once.

    shard: 3/64 asks only the third of 64 parts.  Raises RequestError if a setting is wrong, the
    backend is not installed or the folder is not writable; WorkersLost if workers die repeatedly.
    """
    if backend not in BACKENDS:
        raise RequestError([choice("/backend", backend, tuple(BACKENDS))])
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise refuse("/workers", "greater_than_equal", f"must be >= 1, got {shown(workers)}")
    questions = Shard.parse(shard).part(grid.questions())
    opened = ResultsFolder(folder).opened() if folder else None
    results = _stored_answers([opened] if opened else [], questions)
    open_documents = {q.key: q.document for q in questions if q.key not in results}
    if open_documents:
        done, total = len(results), len(results) + len(open_documents)
        for key, result in watch(answers(open_documents, backend, workers), done, total):
            if opened:
                opened.keep(key, result)
            results[key] = result
    return answered(grid, questions, results)


def merge(grid: Grid, folders: Iterable[Path]) -> SweepAnswer:
    """All rows of a grid from the folders of its shards; missing results are `not_asked`."""
    questions = list(grid.questions())
    return answered(
        grid, questions, _stored_answers([ResultsFolder(path) for path in folders], questions)
    )


def _stored_answers(
    folders: Iterable[ResultsFolder], questions: Iterable[Question]
) -> dict[str, Result]:
    keys = {q.key for q in questions}
    results: dict[str, Result] = {}
    for folder in folders:
        results |= folder.results(keys)
    return results


def answered(grid: Grid, questions: Iterable[Question], results: dict[str, Result]) -> SweepAnswer:
    """A row for each of a grid's questions, from results by key."""
    missing = Result(outcome="not_asked")
    rows = tuple(row(q.inputs, results.get(q.key, missing)) for q in questions)
    counted: Counter[Any] = Counter(r["outcome"] for r in rows)
    return SweepAnswer(version=__version__, inputs=grid.inputs, outcomes=dict(counted), rows=rows)
