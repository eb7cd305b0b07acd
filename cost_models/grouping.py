"""Equal rows of integer columns, found once: costs are computed per distinct key and gathered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Codes up to this range are compressed by a table look-up instead of a sort.
_DENSE_RANGE = 1 << 21


@dataclass(frozen=True)
class Groups:
    """first: one row number per distinct key; inverse: each row's key (None: a single key)."""

    first: NDArray[np.int64]
    inverse: NDArray[np.int64] | None

    def key(self, row: int) -> int:
        """The number of a row's key."""
        return 0 if self.inverse is None else int(self.inverse[row])

    def spread(self, values: NDArray[Any]) -> Any:
        """Values per key, shape (keys, ...), laid out per row; one key stays a scalar."""
        if self.inverse is None:
            return values[0]
        return np.take(values, self.inverse, axis=0)


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
