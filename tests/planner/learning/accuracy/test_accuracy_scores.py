"""Scores, held against examples worked out by hand and against SciPy where it is installed."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.learning.accuracy.scores import (
    errors,
    kendall_tau,
    log_of_ratio,
    memory_errors,
    repeat_spread,
    tau_ceiling,
    top1_regret,
)


def test_errors_by_hand() -> None:
    found = errors([0.1, -0.2, 0.3, -0.4])
    assert found is not None
    assert found.n == 4
    assert found.median_abs_ln == pytest.approx(0.25)
    assert found.p90_abs_ln == pytest.approx(0.37)  # rank 2.7 of 0..3: 0.3 + 0.7 * 0.1
    assert found.bias_ln == pytest.approx(-0.05)
    assert errors([]) is None


def test_the_logarithm_of_an_enormous_ratio_is_finite() -> None:
    assert log_of_ratio(1e300, 1e-300) == pytest.approx(600 * math.log(10))


def test_memory_errors_by_hand() -> None:
    found = memory_errors([90.0, 120.0, 50.0, 98.0], [100.0, 100.0, 50.0, 100.0])
    assert found is not None
    assert found.n == 4
    assert found.mean_abs_error == pytest.approx((0.1 + 0.2 + 0.0 + 0.02) / 4)
    assert found.mean_error == pytest.approx(0.08 / 4)
    assert found.under_predicted_share == pytest.approx(1 / 4)  # 2 % low is close enough
    assert found.median_abs_ln == pytest.approx(-(math.log(0.9) + math.log(0.98)) / 2)
    assert memory_errors([], []) is None


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6),
        # One pair tied on the left, of the other five four agree: 3 / sqrt(5 * 6).
        ([1, 1, 2, 3], [1, 2, 4, 3], 3 / math.sqrt(30)),
        # Both sides tied in the same pair: five of five agree.
        ([1, 1, 2, 3], [5, 5, 6, 7], 1.0),
        ([1, 1], [1, 2], None),
        ([1, 2], [1, 1], None),
        ([1], [1], None),
        ([], [], None),
    ],
)
def test_kendall_tau_by_hand(first: list[int], second: list[int], tau: float | None) -> None:
    assert kendall_tau(first, second) == (None if tau is None else pytest.approx(tau))


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40))
def test_kendall_tau_is_its_definition(pairs: list[tuple[int, int]]) -> None:
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    balance, of_x, of_y = 0, 0, 0
    for (a, b), (c, d) in itertools.combinations(pairs, 2):
        balance += int(np.sign(a - c) * np.sign(b - d))
        of_x += a != c
        of_y += b != d
    wanted = pytest.approx(balance / math.sqrt(of_x * of_y)) if of_x and of_y else None
    assert kendall_tau(x, y) == wanted


@pytest.mark.slow
def test_kendall_tau_of_many() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=100_000)
    tau = kendall_tau(x, x + rng.normal(size=x.size))
    assert tau == pytest.approx(0.5, abs=0.01)  # 2 / pi asin(1 / sqrt 2)


def test_regret_by_hand() -> None:
    assert top1_regret([3.0, 1.0, 2.0], [10.0, 12.0, 11.0]) == pytest.approx(1.2)
    assert top1_regret([1.0, 2.0], [5.0, 6.0]) == 1.0
    assert top1_regret([1.0, 1.0, 2.0], [10.0, 12.0, 9.0]) == pytest.approx(11 / 9)
    assert top1_regret([], []) is None


def test_spread_of_repeats_by_hand() -> None:
    up, down = math.exp(0.1), math.exp(-0.1)
    assert repeat_spread([[up, down]]) == pytest.approx(math.sqrt(0.02))
    # Pooled: (0.02 + 0.08) over two degrees of freedom; what stands alone has none.
    assert repeat_spread([[up, down], [up**2, down**2], [5.0]]) == pytest.approx(math.sqrt(0.05))
    # The same figure printed twice is no second measurement.
    assert repeat_spread([[7.0, 7.0], [3.0]]) is None
    assert repeat_spread([]) is None


def test_ceiling_by_hand() -> None:
    # One pair, as far apart as the deviation of its difference: erf(1 / sqrt 2) = 0.6827.
    spread = 0.1 / math.sqrt(2)
    assert tau_ceiling([1.0, math.exp(0.1)], [1, 1], spread) == pytest.approx(0.6827, abs=1e-4)
    # Four measurements each: half the deviation.
    assert tau_ceiling([1.0, math.exp(0.1)], [4, 4], spread) == pytest.approx(0.9545, abs=1e-4)
    assert tau_ceiling([1.0, 2.0, 3.0], [1, 1, 1], 0.0) == 1.0
    assert tau_ceiling([1.0, 1.0], [1, 1], 0.1) is None
    assert tau_ceiling([1.0], [1], 0.1) is None


def test_ceiling_is_what_true_times_reach_when_drawn() -> None:
    """With true times spread wide, tau between them and one measurement averages the ceiling."""
    rng = np.random.default_rng(2)
    true = rng.uniform(0.0, 3.0, size=40)
    taus, ceilings = [], []
    for _ in range(200):
        measured = true + rng.normal(scale=0.15, size=true.size)
        tau = kendall_tau(true, measured)
        ceiling = tau_ceiling(np.exp(measured), [1] * true.size, 0.15)
        assert tau is not None
        assert ceiling is not None
        taus.append(tau)
        ceilings.append(ceiling)
    assert np.mean(ceilings) == pytest.approx(np.mean(taus), abs=0.01)


def test_ceiling_of_many_is_near_that_of_all() -> None:
    rng = np.random.default_rng(3)
    times = np.exp(rng.normal(size=3_000))
    few = tau_ceiling(times[:900], [1] * 900, 0.2)
    assert tau_ceiling(times, [1] * 3_000, 0.2) == pytest.approx(few, abs=0.02)
