"""Sums, maxima and rows of arrays that broadcast."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.sources import Array

Rows = slice | NDArray[np.int64]


def sum_of(values: Iterable[Array]) -> Array:
    """Sum of arrays that broadcast; 0 without arrays."""
    rest = iter(values)
    total: Array = next(rest, 0.0)
    for value in rest:
        total = total + value
    return total


def max_of(values: Iterable[Array]) -> Array:
    """Element-wise maximum of non-negative arrays that broadcast; 0 without arrays."""
    result: Array = 0.0
    for value in values:
        result = np.maximum(result, value)
    return result


def per_row(values: Array, count: int) -> NDArray[Any]:
    """Values of shape (count,): as they are where they have it, else one value for every row."""
    array = np.asarray(values)
    return array if array.shape == (count,) else np.broadcast_to(array, (count,))


def rows_of(values: Array, rows: Rows) -> Array:
    """The values of some rows; all where they are the same for every row, or the rows a slice."""
    if isinstance(rows, slice) or not isinstance(values, np.ndarray) or not values.ndim:
        return values
    return np.take(values, rows)
