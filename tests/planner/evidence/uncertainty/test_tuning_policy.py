"""Which plan is measured next: what one run says of others, and when it ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.evidence.uncertainty.beliefs import Belief
from planner.evidence.uncertainty.error_features import FACTORS, ErrorFeatures, groups_of
from planner.evidence.uncertainty.posterior import posterior
from planner.evidence.uncertainty.tuning_policy import (
    UNLIKELY,
    WORTH,
    advised,
    improvement,
    plan_belief,
)
from tools.accuracy.tune_replay import tried

KNOWN = posterior()


def features(**shares: float) -> ErrorFeatures:
    """Error features of a plan; the rest of its time is kernels."""
    shares["compute"] = 1.0 - sum(shares.values())
    groups = groups_of("ampere", "a100-sxm-80gb", "megatron", "site:lab", 8192, 80)
    return ErrorFeatures(tuple(shares.get(name, 0.0) for name in FACTORS), groups, False, 8192)


# Six plans that lean on tensor parallelism, predicted fastest, and six that have none.
PLANS = [
    *(features(tp=0.40 - 0.02 * i, dp=0.02) for i in range(6)),
    *(features(dp=0.06 + 0.02 * i, pipeline=0.05 + 0.01 * i) for i in range(6)),
]
PREDICTED = np.array([1.00 + 0.01 * i for i in range(6)] + [1.07 + 0.01 * i for i in range(6)])


def truth(tp: float) -> np.ndarray:
    """Times where tensor-parallel exchanges take so much longer than is predicted."""
    shares = np.array([one.shares[list(FACTORS).index("tp")] for one in PLANS])
    return PREDICTED * (1.0 + tp * shares)


def test_a_shared_factor_that_is_off_is_found_by_one_run() -> None:
    """In predicted order, all that lean on it are tried first."""
    true = truth(0.5)
    good = true <= (1.0 + WORTH) * true.min()
    assert good[:6].sum() == 0
    order, ends = tried(KNOWN, PLANS, PREDICTED, true)
    assert order[0] == 0
    assert good[order[1:3]].any()
    assert good[order[:ends]].any()
    assert ends <= 5


def test_where_nothing_is_off_it_ends_soon() -> None:
    order, ends = tried(KNOWN, PLANS, PREDICTED, PREDICTED)
    assert order[0] == 0
    assert ends <= 5


def test_a_measured_time_is_believed_and_tells_of_plans_alike() -> None:
    before = plan_belief(KNOWN, PLANS, PREDICTED, {})
    after = plan_belief(KNOWN, PLANS, PREDICTED, {0: 1.1})
    assert np.exp(before.mean) == pytest.approx(PREDICTED)
    assert np.exp(after.mean[0]) == pytest.approx(1.1, rel=2e-3)
    assert after.deviation[0] < 0.006
    moved = after.mean - before.mean
    assert moved[1] > 0.9 * moved[0] > 1.5 * moved[-1] > 0
    assert (after.deviation[1:] < before.deviation[1:]).all()


def test_plans_that_spend_their_time_alike_are_one() -> None:
    """Else the best of many neighbours would seem to be worth a run for ever."""
    several = [features(tp=0.2 + 1e-4 * i) for i in range(40)]
    predicted = np.full(40, 1.0)
    measured = {0: 1.0}
    assert advised(plan_belief(KNOWN, several, predicted, measured), measured).ends
    apart = [features(tp=0.01 * i) for i in range(40)]
    assert not advised(plan_belief(KNOWN, apart, predicted, measured), measured).ends


def test_one_strange_run_says_less_of_others() -> None:
    usual = plan_belief(KNOWN, PLANS, PREDICTED, {0: 1.0, 1: 1.0, 2: 1.0})
    strange = plan_belief(KNOWN, PLANS, PREDICTED, {0: 1.0, 1: 2.0, 2: 1.0})
    moved = strange.mean - usual.mean
    assert np.exp(strange.mean[1]) == pytest.approx(2.0, rel=5e-3)
    assert moved[3:].max() < 0.15


def test_two_plans_alike_that_contradict_each_other_leave_a_belief() -> None:
    """Recorded tables have repeats that differ by a tenth and more."""
    alike = [PLANS[0], replace(PLANS[0], shares=PLANS[0].shares), *PLANS[1:]]
    predicted = np.concatenate([PREDICTED[:1], PREDICTED])
    measured = {0: predicted[0], 1: 1.14 * predicted[1]}
    found = plan_belief(KNOWN, alike, predicted, measured)
    assert found.deviation.max() < 0.3
    assert np.exp(found.mean[:2]) == pytest.approx(1.07 * predicted[:2], rel=0.03)


@pytest.mark.parametrize("times", [0.1, 0.5, 3.0])
def test_a_machine_that_is_far_off_is_so_for_every_plan(times: float) -> None:
    one = plan_belief(KNOWN, PLANS, PREDICTED, {0: times * PREDICTED[0]})
    assert np.exp(one.mean[1:6]) == pytest.approx(times * PREDICTED[1:6], rel=0.1)
    two = plan_belief(KNOWN, PLANS, PREDICTED, {i: times * PREDICTED[i] for i in (0, 8)})
    assert np.exp(two.mean) == pytest.approx(times * PREDICTED, rel=0.05)


def test_expected_improvement_is_that_of_draws() -> None:
    belief = Belief(np.array([0.0, 0.1, -0.05]), np.diag([0.04, 0.09, 1e-6]))
    drawn = np.random.default_rng(0).normal(belief.mean, belief.deviation, (200_000, 3))
    expected = np.maximum(0.02 - drawn, 0.0).mean(axis=0)
    assert improvement(belief, 0.02) == pytest.approx(expected, rel=0.02)


def test_advice_is_the_same_at_every_call_and_ends_when_all_are_measured() -> None:
    belief = plan_belief(KNOWN, PLANS, PREDICTED, {0: 1.0})
    one, other = (advised(belief, {0: 1.0}) for _ in range(2))
    assert one.next == other.next != 0
    assert one.chance == other.chance > UNLIKELY
    assert one.gains[0] == 0.0
    assert one.chances.sum() == pytest.approx(1.0)
    everything = dict(enumerate(PREDICTED.tolist()))
    last = advised(plan_belief(KNOWN, PLANS, PREDICTED, everything), everything)
    assert last.ends
    assert last.next is None
    assert last.chances.argmax() == 0


def test_the_first_is_the_one_expected_fastest() -> None:
    belief = plan_belief(KNOWN, PLANS, PREDICTED[::-1].copy(), {})
    advice = advised(belief, {})
    assert advice.next == len(PLANS) - 1
    assert not advice.ends


def test_noisier_models_take_more_runs() -> None:
    """A mixture of experts is known less well, so more must be measured before it ends."""
    experts = [replace(one, experts=True) for one in PLANS]
    _, dense = tried(KNOWN, PLANS, PREDICTED, PREDICTED)
    _, more = tried(KNOWN, experts, PREDICTED, PREDICTED)
    assert more > dense
