"""Published steps of reinforcement learning: intervals hold, and ways are in order."""

from __future__ import annotations

import pytest

from tools.accuracy.reinforcement import order, steps


@pytest.mark.exhaustive
def test_published_steps() -> None:
    found = list(steps())
    assert len(found) == 16
    held = [
        one.asked.interval_s[0] <= (one.measured("step_s") or 0.0) <= one.asked.interval_s[1]
        for one in found
    ]
    assert all(held)
    right, pairs = order(found)
    assert pairs == 10
    assert right >= 8
