"""Sums, maxima and choices of numbers and arrays that broadcast."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from cost_models.arrays import (
    all_of,
    any_of,
    laid_out,
    max_of,
    maximum,
    minimum,
    per_row,
    sum_of,
    where,
)

NUMBERS = (0.0, 0.1, -3.5, 1e300, np.inf, -np.inf, np.nan)


def test_of_none_both_are_nothing() -> None:
    assert sum_of([]) == max_of([]) == 0.0


def test_numbers_and_arrays_broadcast() -> None:
    values = [0.25, np.array([0.125, 0.5]), np.array([[0.0], [0.375]])]
    assert sum_of(values).tolist() == [[0.375, 0.75], [0.75, 1.125]]
    assert max_of(values).tolist() == [[0.25, 0.5], [0.375, 0.5]]
    assert sum_of(iter([2.0])) == max_of(iter([2.0])) == 2.0


@pytest.mark.parametrize(
    ("own", "numpy"), [(maximum, np.maximum), (minimum, np.minimum)], ids=["maximum", "minimum"]
)
def test_numbers_are_compared_as_numpy_does(
    own: Callable[..., Any], numpy: Callable[..., Any]
) -> None:
    for pair in product(NUMBERS, repeat=2):
        expected = numpy(*pair).tobytes()
        assert np.float64(own(*pair)).tobytes() == expected, pair
        assert np.float64(own(*map(np.float64, pair))).tobytes() == expected, pair
        assert own(np.array([pair[0]]), pair[1]).tobytes() == expected, pair
    assert own(np.array([1.0, 5.0]), np.array([[2.0], [3.0]])).shape == (2, 2)


def test_choices_are_those_of_numpy() -> None:
    for flag in (True, False, np.True_, np.False_, 0, 2):
        assert where(flag, 1.5, np.float64(2.5)) == np.where(flag, 1.5, 2.5)
    flags = np.array([True, False])
    for chosen, other in ((1.0, 2.0), (np.array([1.0, 3.0]), 2.0), (1.0, np.array([[2.0], [4.0]]))):
        assert where(flags, chosen, other).tolist() == np.where(flags, chosen, other).tolist()
    numbers = where(True, 1.0, np.array([2.0, 3.0]))
    assert numbers.tolist() == [1.0, 1.0]


def test_flags_of_numbers_and_arrays() -> None:
    for flags in (True, np.False_, 0.0, np.float64(2.0), np.zeros(2), np.array([0.0, 1.0])):
        assert any_of(flags) is bool(np.any(flags))
        assert all_of(flags) is bool(np.all(flags))


@pytest.mark.parametrize("values", [2.0, np.float64(2.0), np.array(2.0), np.array([2.0])])
def test_a_value_is_laid_out_for_every_row(values: Any) -> None:
    assert laid_out(values, 1).tolist() == per_row(values, 1).tolist() == [2.0]
    if np.shape(values) == ():
        assert laid_out(values, 3).tolist() == per_row(values, 3).tolist() == [2.0] * 3
    assert laid_out(np.array([1, 2]), 2).dtype == np.float64
