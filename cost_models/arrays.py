"""Sums, maxima, choices and rows of arrays that broadcast, and of numbers.

A single plan is priced with numbers, for which NumPy's own functions take ten times as long as the
comparison does; what both return is the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models.sources import Array

Rows = slice | NDArray[np.int64]


def any_of(flags: Any) -> bool:
    """Whether one of some flags holds."""
    return bool(flags.any() if isinstance(flags, np.ndarray) else flags)


def all_of(flags: Any) -> bool:
    """Whether all of some flags hold."""
    return bool(flags.all() if isinstance(flags, np.ndarray) else flags)


def where(flags: Any, chosen: Any, other: Any) -> NDArray[Any]:
    """The element of `chosen` where its flag holds, else of `other`."""
    found: NDArray[Any]
    arrays = isinstance(chosen, np.ndarray) or isinstance(other, np.ndarray)
    if arrays or isinstance(flags, np.ndarray):
        found = np.where(flags, chosen, other)
    else:
        found = chosen if flags else other
    return found


def maximum(one: Any, other: Any) -> NDArray[Any]:
    """The larger of two elements; NaN where one of them is."""
    found: NDArray[Any]
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        found = np.maximum(one, other)
    else:
        found = one if one >= other or one != one else other
    return found


def minimum(one: Any, other: Any) -> NDArray[Any]:
    """The smaller of two elements; NaN where one of them is."""
    found: NDArray[Any]
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        found = np.minimum(one, other)
    else:
        found = one if one <= other or one != one else other
    return found


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
        result = maximum(result, value)
    return result


def per_row(values: Array, count: int) -> NDArray[Any]:
    """Values of shape (count,): as they are where they have it, else one value for every row."""
    array = np.asarray(values)
    if array.shape == (count,):
        return array
    return array.reshape(1) if count == 1 else np.broadcast_to(array, (count,))


def laid_out(values: Array, count: int) -> NDArray[np.float64]:
    """Values as float64 of shape (count,), one for each row."""
    if isinstance(values, np.ndarray) and values.shape == (count,):
        return values.astype(np.float64, copy=False)
    if count == 1 and not isinstance(values, np.ndarray):
        return np.array([values], dtype=np.float64)  # in a fifth of the time
    return np.full(count, values, dtype=np.float64)


def rows_of(values: Array, rows: Rows) -> Array:
    """The values of some rows; all where they are the same for every row, or the rows a slice."""
    if isinstance(rows, slice) or not isinstance(values, np.ndarray) or not values.ndim:
        return values
    return np.take(values, rows)
