"""The results of a sweep as one table with a row per question: plain values, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, get_args

from cost_models.plans import ParallelPlan
from planner.documents.formats import value_words
from planner.documents.problems import refuse
from planner.running.sweeps.question import Result

_INT64 = 2**63
Row = dict[str, Any]


def _kind(annotation: Any) -> type:
    """The column type of a field: bool, int or float, else text."""
    kinds = [kind for kind in (bool, int, float) if kind in (annotation, *get_args(annotation))]
    return kinds[0] if kinds else str


_RESULT = {name: _kind(field.annotation) for name, field in Result.model_fields.items()}
_PLAN = {name: _kind(field.annotation) for name, field in ParallelPlan.model_fields.items()}
# Columns after those of the varied fields, whose names have a dot or are parts of a request.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # the beginnings of formulas of spreadsheets
COLUMNS: dict[str, type] = {}
for _name, _type in _RESULT.items():
    COLUMNS |= _PLAN if _name == "plan" else {_name: _type}


def row(inputs: Mapping[str, Any], result: Result) -> Row:
    """The row of a question: its inputs and COLUMNS; values that the result lacks are None."""
    plan = {} if result.plan is None else result.plan.model_dump()
    cells = result.model_dump() | plan
    return {
        **{name: _cell(value) for name, value in inputs.items()},
        **{name: _cell(cells.get(name)) for name in COLUMNS},
    }


def _cell(value: Any) -> Any:
    """The value as a scalar for a cell: an object becomes its name, or else JSON."""
    if isinstance(value, dict):
        named = value.get("name")
        return named if isinstance(named, str) else json.dumps(value)
    if isinstance(value, (list, tuple)):
        scalars = all(isinstance(item, (int, float, str)) for item in value)
        return value_words(value) if scalars else json.dumps(value)
    return value


def csv_bytes(inputs: Sequence[str], rows: Iterable[Row]) -> bytes:
    """The table as CSV (RFC 4180, UTF-8); an empty cell means no value.

    Text that a spreadsheet would run as a formula, such as a model's name, begins with '.
    """
    text = io.StringIO()
    writer = csv.writer(text)
    names = [*inputs, *COLUMNS]
    writer.writerow(names)
    for r in rows:
        cells = (r[name] for name in names)
        writer.writerow(["" if cell is None else _csv_cell(cell) for cell in cells])
    return text.getvalue().encode()


def _csv_cell(cell: Any) -> str:
    formula = isinstance(cell, str) and cell.startswith(_FORMULA)
    return f"'{cell}" if formula else value_words(cell)


def parquet_bytes(inputs: Sequence[str], rows: Sequence[Row]) -> bytes:
    """The table as Parquet.  Raises RequestError if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise refuse("", "not_installed", "needs pyarrow: pip install pyarrow, or use --csv")
    import pyarrow
    import pyarrow.parquet

    arrow = {
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
    }
    kinds = {name: _common([r[name] for r in rows]) for name in inputs} | COLUMNS
    columns = {
        name: pyarrow.array([_converted(kind, r[name]) for r in rows], arrow[kind])
        for name, kind in kinds.items()
    }
    data = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), data)
    return data.getvalue()


def _common(values: Iterable[Any]) -> type:
    """The common type of a column's values; text if they differ."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int}:
        return int if all(-_INT64 <= v < _INT64 for v in values if v is not None) else float
    if kinds == {int, float}:
        return float
    return kinds.pop() if len(kinds) == 1 else str


def _converted(kind: type, value: Any) -> Any:
    if value is None:
        return None
    return value_words(value) if kind is str else kind(value)
