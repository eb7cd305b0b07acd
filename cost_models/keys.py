"""Costs are computed once per distinct key (a few plan fields), and then gathered per plan.

A key cannot miss a field: the code that computes a cost sees the plans through a view of the key's
fields, and reading any other field raises.  So the key alone lists the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from cost_models.plans import FIELDS, IntArray, Plans

Amounts = TypeVar("Amounts")
# Codes up to this range are compressed by a table look-up instead of a sort.
_DENSE_RANGE = 1 << 21


@dataclass(frozen=True)
class Groups:
    """first: one row number per distinct key; inverse: each row's key (None: a single key).

    Where rows were taken out of others, `first` still counts those.
    """

    first: NDArray[np.int64]
    inverse: NDArray[np.int64] | None

    def take(self, rows: NDArray[np.int64]) -> Groups:
        """The keys of a subset of the rows."""
        return self if self.inverse is None else Groups(self.first, self.inverse[rows])

    def key(self, row: int) -> int:
        """The index of a row's key."""
        return 0 if self.inverse is None else int(self.inverse[row])

    def spread(self, values: NDArray[Any]) -> Any:
        """Values per key, shape (keys, ...), laid out per row; one key stays a scalar."""
        if self.inverse is None:
            return values[0]
        return values.take(self.inverse, axis=0)


class UndeclaredField(AttributeError):
    """A cost depends on a field that its key does not have."""


class _DeclaredColumn:
    """Replaces a column that Plans compute: a view has it only if its key does."""

    def __get__(self, view: KeyView, owner: type) -> IntArray:
        raise AttributeError  # for __getattr__ to tell


COMPUTED = ("autocast",)


class KeyView(Plans):
    """One row for each distinct key of some plans, with the fields of the key and no others."""

    autocast = cast(Any, _DeclaredColumn())

    def __init__(self, plans: Plans, fields: tuple[str, ...], first: IntArray) -> None:
        for name in fields:
            column: IntArray = getattr(plans, name)
            object.__setattr__(self, name, column[first] if column.ndim else column)
        object.__setattr__(self, "stage_layers_table", plans.stage_layers_table)
        object.__setattr__(self, "_fields", fields)

    def __getattr__(self, name: str) -> Any:
        if name in (*FIELDS, *COMPUTED):
            raise UndeclaredField(f"{name} is read, but the key is {', '.join(self._fields)}")
        raise AttributeError(name)

    def columns(self) -> Iterator[tuple[str, IntArray]]:
        for name in self._fields:
            yield name, getattr(self, name)

    def changed(self, rows: IntArray, **columns: IntArray) -> KeyView:
        """A subset of the rows, with other values of some fields."""
        view = KeyView(self, self._fields, rows)
        for name, column in columns.items():
            object.__setattr__(view, name, column)
        return view


class Memo:
    """Amounts of a few keys of one model, kept for the next plans that have the same."""

    MOST = 4096  # of all models together, of 20 kB each
    FEW = 16  # keys; a search has thousands at a time, and no two times the same
    _kept: ClassVar[dict[tuple[Any, ...], Any]] = {}
    _numbers = count()

    def __init__(self) -> None:
        self._number = next(self._numbers)

    def of(self, name: str, keys: KeyView, compute: Callable[[], Amounts]) -> Amounts:
        """What `compute` says of a view of keys; kept where these are few.

        name: of the amounts, which nobody may change.
        """
        if len(keys) > self.FEW:
            return compute()
        # Numbers and arrays of one have the same bytes, but amounts of other shapes.
        columns = ((column.ndim, column.tobytes()) for _, column in keys.columns())
        token = self._number, name, *columns
        amounts = self._kept.get(token)
        if amounts is None:
            if len(self._kept) >= self.MOST:
                self._kept.clear()
            amounts = self._kept[token] = compute()
        return cast(Amounts, amounts)


class Key:
    """The plan fields that some costs depend on."""

    def __init__(self, *fields: str) -> None:
        self.fields = tuple(dict.fromkeys(fields))

    def distinct(self, plans: Plans) -> tuple[Groups, KeyView]:
        """The key of each plan, and a view with one row per key."""
        groups = group(*(getattr(plans, name) for name in self.fields))
        return groups, KeyView(plans, self.fields, groups.first)


def group(*columns: NDArray[np.int64]) -> Groups:
    """Group rows by equal values; columns are non-negative int64 of shape () or (n,)."""
    key: NDArray[np.int64] | None = None
    size = 1
    for column in columns:
        if column.ndim == 0:
            continue
        span = int(column.max()) + 1 if column.size else 1
        if key is None:
            key, size = column, span
            continue
        if size * span > _DENSE_RANGE:
            key, size = _compress(key, size)
        if size * span > _DENSE_RANGE:
            column, span = _compress(column, span)
        key = key * span + column
        size *= span
    if key is None:
        return Groups(np.zeros(1, dtype=np.int64), None)
    inverse, count = _compress(key, size)
    first = np.empty(count, dtype=np.int64)
    first[inverse[::-1]] = np.arange(len(inverse) - 1, -1, -1, dtype=np.int64)
    return Groups(first, inverse)


def _compress(key: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], int]:
    """The keys renumbered 0..count-1 in ascending order."""
    if size > _DENSE_RANGE:
        values, inverse = np.unique(key, return_inverse=True)
        return inverse.astype(np.int64), len(values)
    seen = np.zeros(size, dtype=np.bool_)
    seen[key] = True
    values = np.flatnonzero(seen)
    table = np.empty(size, dtype=np.int64)
    table[values] = np.arange(len(values))
    return table[key], len(values)
