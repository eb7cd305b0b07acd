"""Tuning on recorded plans: how many runs until the best is measured, and known."""

from __future__ import annotations

import pytest

from planner.evidence.published_runs.runs import PUBLISHED_RUNS, read_runs
from planner.learning.accuracy.predict import predict
from tests.planner.learning.accuracy.published import predictions
from tools.accuracy.tune_replay import lines, tuned_groups

pytestmark = pytest.mark.slow

MODEL = "GPT-181B (BLOOM prequel)"


def test_a_recorded_group() -> None:
    """22 plans of one model: known after a few, where intervals alone ask for most of them."""
    rows = [run for run in read_runs(PUBLISHED_RUNS) if run["model"] == MODEL]
    groups = list(tuned_groups(map(predict, rows)))
    assert sorted(one.n for one in groups) == [6, 22]
    largest = max(groups, key=lambda one: one.n)
    assert largest.policy == largest.predicted_order == 1
    assert largest.policy_known <= 5
    assert largest.policy_known < 0.5 * largest.predicted_order_known
    assert largest.regret < 0.01
    *_, mean, good = lines(groups)
    assert mean.endswith("mean of 2 groups")
    assert good.startswith("within 1% of the best when the policy ends:")


def test_all_recorded_groups() -> None:
    """At most half the runs that trying in predicted order takes until the best is known."""
    found = list(tuned_groups(predictions()))
    # InternEvo broadcasts parameter by parameter in rings of as many ranks as a ZeRO group has, of
    # which no term knows: its plans differ in that alone.
    groups = [one for one in found if not one.name.startswith("internevo")]
    assert len(groups) >= 17
    known = sum(one.policy_known for one in groups)
    assert known <= 0.5 * sum(one.predicted_order_known for one in groups)
    assert sum(one.regret > 0.01 for one in groups) <= 1
