"""The trade-off of steps and tokens against its own equation and its two ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.critical_batch import tokens_over_fewest

BATCHES = st.floats(1.0, 1e7)


@given(BATCHES, BATCHES)
def test_the_trade_off(batch: float, critical: float) -> None:
    """(S/S0 - 1)(E/E0 - 1) = 1 at every batch (arXiv 1812.06162, equation 5.1)."""
    steps, tokens = 1 + critical / batch, tokens_over_fewest(batch, critical)
    assert (steps - 1) * (tokens - 1) == pytest.approx(1.0)


def test_twice_the_tokens_at_the_critical_batch() -> None:
    assert tokens_over_fewest(512.0, 512.0) == 2.0
