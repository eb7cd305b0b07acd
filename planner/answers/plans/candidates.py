"""Every plan of a search as a small row: those that fit, or those that need too much memory.

A search may price millions of plans; the first MOST_ROWS in an order are kept as columns, and a row
is built only when it is read.
"""

from __future__ import annotations

import csv
import io
import json
import zlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cost_models.cost_parts import TIME_PARTS
from cost_models.estimate import Estimates
from cost_models.plans import FIELDS, Plans
from planner.answers.plans.competition import fastest, prepared
from planner.documents.plan_report import Document
from planner.documents.problems import choice, nearest, refuse
from planner.documents.request import PlanRequest
from planner.search.exhaustive import search

MOST_ROWS = 10_000
Status = Literal["feasible", "memory"]
FIGURES = (
    "tokens_per_s", "iteration_time_s", "peak_bytes", "num_micro_batches",
    *(f"{part}_s" for part in TIME_PARTS),
)  # fmt: skip
SORTED_BY = (*FIGURES, *FIELDS)
_TIES = ("iteration_time_s", "peak_bytes")

Columns = dict[str, NDArray[Any]]


class CandidatePage(Document):
    """Rows of one order, from a place in it: the plan's fields, its time and its memory.

    total: plans of this status; listed: those of them that can be paged through.  next: the cursor
    of the next page.
    """

    status: Status
    sort: str
    total: int
    listed: int
    rows: tuple[dict[str, Any], ...]
    next: str | None


class Candidates:
    """The listed rows of one status in one order."""

    def __init__(self, status: Status, sort: str, total: int, columns: Mapping[str, list[Any]]):
        self.status, self.sort, self.total, self.columns = status, sort, total, columns

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def page(self, start: int, limit: int) -> CandidatePage:
        """`limit` rows, beginning at a place."""
        end = start + limit
        cut = [column[start:end] for column in self.columns.values()]
        rows = (dict(zip(self.columns, row, strict=True)) for row in zip(*cut, strict=True))
        following = str(end) if end < len(self) else None
        return CandidatePage.of(self, listed=len(self), rows=tuple(rows), next=following)

    def dump(self) -> bytes:
        """The candidates as compressed JSON, for `load`."""
        document = [self.status, self.sort, self.total, self.columns]
        return zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 1)

    @classmethod
    def load(cls, data: bytes) -> Candidates:
        """The candidates from the output of `dump`."""
        return cls(*json.loads(zlib.decompress(data)))


def csv_text(page: CandidatePage) -> str:
    """A page as a table with a header; lists are joined by +."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*FIGURES, *FIELDS])
    for row in page.rows:
        writer.writerow([_cell(value) for value in row.values()])
    return text.getvalue()


def check_sort(sort: str) -> str:
    """The order, if it is valid: a figure or a field, with a minus for the largest first.

    Raises RequestError.
    """
    name = sort.removeprefix("-")
    if name not in SORTED_BY:
        problem = choice("/sort", sort, SORTED_BY)
        near = nearest(name, SORTED_BY)
        raise refuse("/sort", problem.code, problem.detail, sort, did_you_mean=near)
    return sort


def candidates(request: PlanRequest, status: Status, sort: str) -> Candidates:
    """Search again and keep the first rows of an order.  Raises RequestError, SpaceTooLarge."""
    keeper = _Keeper(request, status, check_sort(sort))
    asked, rules = prepared(request.for_framework(fastest(request).framework))
    if status == "feasible":
        search(asked, rules, top_k=1, visit=keeper.visit)
    else:
        search(asked, rules, top_k=1, visit_misses=keeper.visit)
    return keeper.candidates()


class _Keeper:
    def __init__(self, request: PlanRequest, status: Status, sort: str) -> None:
        self.tokens = request.training.tokens_per_iteration
        self.status, self.sort = status, sort
        self.total = 0
        self._kept: Columns = {}
        self._table: tuple[tuple[int, ...], ...] = ()

    def visit(self, plans: Plans, estimates: Estimates) -> None:
        self.total += len(plans)
        found = _columns(plans, estimates, self.tokens)
        if self._kept:
            found = {name: np.concatenate([self._kept[name], found[name]]) for name in found}
        order = self._order(found)
        self._kept = {name: column[order] for name, column in found.items()}
        self._table = plans.stage_layers_table

    def candidates(self) -> Candidates:
        if not self._kept:  # no plan is even legal
            nothing: dict[str, list[Any]] = {name: [] for name in (*FIGURES, *FIELDS)}
            return Candidates(self.status, self.sort, 0, nothing)
        values: dict[str, list[Any]] = {name: self._kept[name].tolist() for name in FIGURES}
        fields = {name: self._kept[name] for name in FIELDS}
        values |= Plans.build(stage_layers_table=self._table, **fields).values()
        return Candidates(self.status, self.sort, self.total, values)

    def _order(self, columns: Columns) -> NDArray[np.intp]:
        """Indices of the first rows in the order; ties are broken by time, memory and fields."""
        decides = columns[self.sort.removeprefix("-")].astype(np.float64)
        decides = -decides if self.sort.startswith("-") else decides
        close = np.arange(len(decides))
        if len(decides) > MOST_ROWS:
            bound = np.partition(decides, MOST_ROWS - 1)[MOST_ROWS - 1]
            close = np.flatnonzero(decides <= bound)
        ties = [columns[name][close] for name in (*_TIES, *FIELDS)]
        return close[np.lexsort((*reversed(ties), decides[close]))[:MOST_ROWS]]


def _columns(plans: Plans, estimates: Estimates, tokens: float) -> Columns:
    count = len(plans)
    seconds = estimates.iteration_time_s
    parts = {f"{part}_s": estimates.time_parts_s[part] for part in TIME_PARTS}
    rest = {"num_micro_batches": estimates.num_micro_batches, **parts, **dict(plans.columns())}
    return {
        "tokens_per_s": tokens / seconds,
        "iteration_time_s": seconds,
        "peak_bytes": estimates.peak_bytes,
        **{name: np.broadcast_to(column, (count,)) for name, column in rest.items()},
    }


def _cell(value: Any) -> Any:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else value
