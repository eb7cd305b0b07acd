"""Constants fitted without a source."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.fitted import fitted
from tools.accuracy.fit_constants import BOUNDS, NAMES
from tools.accuracy.leave_out import POINTS, Effects

WAITS = "straggler"  # the only constant that moves these rows


def table(off: dict[str, float]) -> Effects:
    """Five rows of each source; straggler moves all by as much as it is."""
    sources = tuple(source for source in off for _ in range(5))
    grids = {name: np.linspace(*bounds, POINTS) for name, bounds in BOUNDS.items()}
    moved = {name: np.zeros((POINTS, len(sources))) for name in NAMES}
    moved[WAITS] += grids[WAITS][:, None]
    ln = np.array([off[source] for source in sources])
    return Effects(sources, np.zeros(len(sources), dtype=np.bool_), ln, grids, moved)


def test_a_source_that_is_left_out_decides_nothing() -> None:
    found = table({"one": -0.005, "two": -0.02})
    assert found.fit("two").straggler == pytest.approx(0.005)
    assert found.fit("one").straggler == pytest.approx(0.02)


def test_a_constant_that_no_other_source_tells_is_the_middle_of_what_is_physical() -> None:
    assert table({"one": -0.01}).fit("").contention == pytest.approx(np.mean(BOUNDS["contention"]))


def test_constants_that_are_not_fitted_stay() -> None:
    assert table({"one": -0.01}).fit("").host_launch_s == fitted().host_launch_s
