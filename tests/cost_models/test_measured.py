"""Measured tables between, on and beside their points."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.measured_tables import Linear, Measured, RateGrid, linear_through


def test_each_stretch_of_an_axis_has_its_own_slope() -> None:
    grid = RateGrid.of([(1.0,), (2.0,), (4.0,), (8.0,)], [1.0, 2.0, 32.0, 8.0])
    assert grid.rate(2.0**0.5) == pytest.approx(2.0**0.5)
    assert grid.rate(2.0**1.5) == pytest.approx(8.0)
    assert grid.rate(2.0**2.5) == pytest.approx(16.0)
    assert [float(grid.rate(size)) for size in (0.0, 1.0, 8.0, 99.0)] == pytest.approx([1, 1, 8, 8])


def test_a_hole_has_the_rate_of_the_nearest_point() -> None:
    """Nearest in logarithms over all axes, not along one of them."""
    sizes = [(1.0, 1.0), (1.0, 1024.0), (2.0, 1.0), (1024.0, 1024.0)]
    grid = RateGrid.of(sizes, [3.0, 5.0, 7.0, 11.0])
    assert grid.rate(2.0, 1024.0) == pytest.approx(5.0)
    assert grid.rate(1024.0, 1.0) == pytest.approx(7.0)


def test_the_line_weighs_errors_by_what_was_measured() -> None:
    """1 s at 0; 2 s and 4 s at 1: (x/2 - 1)^2 + (x/4 - 1)^2 is least at 2.4 s."""
    line = linear_through([(0.0, 1.0), (1.0, 2.0), (1.0, 4.0)])
    assert (line.fixed_s, line.per_unit_s) == (pytest.approx(1.0), pytest.approx(1.4))


def test_a_line_that_would_fall_is_flat_and_one_that_would_start_below_zero_starts_there() -> None:
    assert linear_through([(1.0, 4.0), (2.0, 3.0), (4.0, 1.0)]) == Linear(3.0, 0.0)
    assert linear_through([(1.0, 0.1), (10.0, 10.0), (100.0, 200.0)]) == Linear(0.0, 1.0)
    assert linear_through([(4.0, 2.0)]) == Linear(0.0, 0.5)
    assert linear_through([(4.0, 0.0)]).per_unit_s == pytest.approx(2.5e-13)
    through_zero = linear_through([(1.0, 2.0), (3.0, 6.0)])
    assert through_zero.per_unit_s == pytest.approx(2.0)


def test_neighbours_slow_down_what_was_measured_beside_them() -> None:
    found = Measured(
        gemm={}, attention={}, passes={}, host={}, wrapper={}, optimizer=None,
        crowding={"gemm": ((1, 1.0), (3, 2.0), (5, 5.0))}, contention=None, message=None,
        synchronous=False,
    )  # fmt: skip
    slow = [found.slowdown("gemm", ranks) for ranks in (1, 2, 3, 4, 5, 9)]
    assert slow == pytest.approx([1.0, 1.5, 2.0, 3.5, 5.0, 5.0])
    assert found.slowdown("memory", 9) == 1.0


def test_a_grid_of_one_point_is_that_rate_everywhere() -> None:
    grid = RateGrid.of([(8.0, 8.0, 8.0)], [6.0])
    assert np.asarray(grid.rate(np.array([1.0, 8.0, 64.0]), 8.0, 1.0)) == pytest.approx([6.0] * 3)
