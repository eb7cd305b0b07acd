"""Goodput formulas against their sources and against a simulated run."""

from __future__ import annotations

import math
import random

import pytest

from cost_models.goodput import daly_interval_s, effective_share, job_mtbf_s, young_interval_s

HOUR_S = 3600.0


def test_llama_3_failures() -> None:
    """16,384 GPUs on 2,048 nodes, 3.79 stops per 1000 node-days: one in 3.09 hours."""
    assert float(job_mtbf_s(2048.0, 1000 * 24 / 3.79)) == pytest.approx(3.09, abs=0.01)


def test_llama_3_effective_time() -> None:
    """Its checkpoints and restarts leave more than 90 % of the time, as the paper reports."""
    mtbf = 3.09 * HOUR_S
    interval = float(young_interval_s(10.0, mtbf))
    assert interval == pytest.approx(472.0, abs=1.0)
    first_order = 1 - 10.0 / interval - (interval / 2 + 600.0) / mtbf
    assert first_order == pytest.approx(0.904, abs=5e-4)
    assert float(effective_share(interval, 10.0, 600.0, mtbf)) == pytest.approx(0.908, abs=5e-4)


@pytest.mark.parametrize(("checkpoint_s", "mtbf_s"), [(10.0, 11124.0), (300.0, 5000.0)])
def test_daly_is_the_best_interval(checkpoint_s: float, mtbf_s: float) -> None:
    """No interval a tenth longer or shorter trains more."""
    best = float(daly_interval_s(checkpoint_s, mtbf_s))

    def share(interval: float) -> float:
        return float(effective_share(interval, checkpoint_s, 600.0, mtbf_s))

    assert share(best) > share(1.1 * best)
    assert share(best) > share(0.9 * best)
    assert share(best) >= share(float(young_interval_s(checkpoint_s, mtbf_s)))


def test_a_checkpoint_that_takes_longer_than_failures_leave() -> None:
    assert float(daly_interval_s(250.0, 100.0)) == 100.0


def test_without_failures_only_checkpoints_cost() -> None:
    assert float(effective_share(99.0, 1.0, 600.0, math.inf)) == pytest.approx(0.99)


def test_the_exact_share_is_that_of_a_simulated_run() -> None:
    """Exponential failures, during restarts too: 20,000 stretches by chance, within 1 %."""
    draw = random.Random(5)
    interval, checkpoint, restart, mtbf = 600.0, 60.0, 300.0, 4000.0
    trained = clock = 0.0
    left = draw.expovariate(1 / mtbf)

    def survives(length: float) -> bool:
        nonlocal clock, left
        if left >= length:
            clock, left = clock + length, left - length
            return True
        clock, left = clock + left, draw.expovariate(1 / mtbf)
        while left < restart:
            clock, left = clock + left, draw.expovariate(1 / mtbf)
        clock, left = clock + restart, left - restart
        return False

    for _ in range(20_000):
        while not survives(interval + checkpoint):
            pass
        trained += interval
    expected = float(effective_share(interval, checkpoint, restart, mtbf))
    assert trained / clock == pytest.approx(expected, rel=0.01)


def test_daly_in_round_numbers() -> None:
    """A checkpoint of 2 s, failures every 4 s: ratio 1/4, sqrt(16) (1 + 1/6 + 1/36) - 2 s."""
    assert float(young_interval_s(2.0, 4.0)) == 4.0
    assert float(daly_interval_s(2.0, 4.0)) == pytest.approx(4 * (1 + 1 / 6 + 1 / 36) - 2)
    # From twice the time between failures on, that time.
    assert float(daly_interval_s(8.0, 4.0)) == 4.0
    below = 8.0 * (1 - 1e-12)
    assert float(daly_interval_s(below, 4.0)) == pytest.approx(8 * (1 + 1 / 3 + 1 / 9) - 8)
