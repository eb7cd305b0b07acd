"""Sums and maxima of numbers and arrays that broadcast."""

from __future__ import annotations

import numpy as np

from cost_models.arrays import max_of, sum_of


def test_of_none_both_are_nothing() -> None:
    assert sum_of([]) == max_of([]) == 0.0


def test_numbers_and_arrays_broadcast() -> None:
    values = [0.25, np.array([0.125, 0.5]), np.array([[0.0], [0.375]])]
    assert sum_of(values).tolist() == [[0.375, 0.75], [0.75, 1.125]]
    assert max_of(values).tolist() == [[0.25, 0.5], [0.375, 0.5]]
    assert sum_of(iter([2.0])) == max_of(iter([2.0])) == 2.0
