"""Sums and maxima of arrays that broadcast."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cost_models.sources import Array


def sum_of(values: Iterable[Array]) -> Array:
    """Sum of arrays that broadcast; 0 without arrays."""
    several = iter(values)
    total: Array = next(several, 0.0)
    for value in several:
        total = total + value
    return total


def max_of(values: Iterable[Array]) -> Array:
    """Element-wise maximum of non-negative arrays that broadcast; 0 without arrays."""
    result: Array = 0.0
    for value in values:
        result = np.maximum(result, value)
    return result
