"""A CSV with the columns of the accuracy table: one run a row."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from cost_models.package_files import table
from planner.documents.problems import shown
from planner.evidence.published_runs.cases import case_of
from planner.evidence.published_runs.runs import REQUIRED, Run, run_of
from planner.frameworks.read_results import Reading
from planner.inputs.logs.run_log import Fact, Memory, RunLog, StepTime, refused

COLUMNS: dict[str, str] = table("planner.inputs.logs", "names.json")["table"]
MOST_ROWS = 1_000


def is_table(first: str) -> bool:
    """Whether the first line of a file is the heading of such a table."""
    columns = {name.strip().strip('"') for name in first.lstrip("\ufeff").split(",")}
    return set(REQUIRED) <= columns


def read_table(lines: Iterable[str], name: str) -> Iterator[RunLog]:
    """The runs of a table, one a row.  Raises RequestError."""
    try:
        for number, row in enumerate(csv.DictReader(lines), 1):
            if number > MOST_ROWS:
                raise refused("too_many_rows", f"{name}: at most {MOST_ROWS:,} rows")
            yield _run(run_of(row, number), number + 1, name)
    except csv.Error as error:
        raise refused("not_csv", f"{name} is no CSV: {shown(str(error))}") from None


def _run(run: Run, line: int, name: str) -> RunLog:
    time = run.iteration_time_s
    if time is None:
        raise refused("too_few_steps", f"{name}:{line} has no time: iteration_time_s")
    left_open: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    reading = None
    try:
        case = case_of(run)
    except ValueError as error:
        left_open = (str(error),)
    else:
        left_open, assumed = case.open_inputs, case.assumptions
        if len(case.variants) == 1:
            reading = Reading(
                framework=run["stack"] or "unknown",
                model=case.model,
                training=case.training,
                plan=case.variants[0],
            )
    facts = [
        Fact(field=field, value=value, file=name, line=line)
        for column, field in COLUMNS.items()
        if (value := run.integer(column)) is not None
    ]
    if run["gpu"]:
        facts.append(Fact(field="accelerator", value=run["gpu"], file=name, line=line))
    if run["model"]:
        facts.append(Fact(field="model.name", value=run["model"], file=name, line=line))
    batch, length = run.integer("global_batch"), run.integer("seq_len")
    peak = run.peak_bytes
    return RunLog(
        name=run.id,
        code_base="table",
        facts=tuple(facts),
        reading=reading,
        step=StepTime(seconds=time, steps=1, basis="iteration_time_s as published"),
        tokens_per_s=batch * length / time if batch and length else None,
        tflops_per_accelerator=run.decimal("tflops_per_gpu"),
        memory=()
        if peak is None
        else (Memory(quantity="in use", bytes=peak, reports=1, file=name, line=line),),
        left_open=left_open,
        assumed=assumed,
    )
