"""What a site that nobody has seen may differ by, and what its own runs teach."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from planner.documents.first_sight import KindErrors
from planner.evidence.uncertainty.error_band import COVERED, band
from planner.evidence.uncertainty.error_features import DOUBTS, FACTORS, ErrorFeatures
from planner.evidence.uncertainty.first_sight import (
    Belief,
    Prior,
    first_sight,
    linear,
    linear_of,
    prior,
    rows_of,
    sources_alike,
)
from planner.evidence.uncertainty.mixture import Mixture
from planner.evidence.uncertainty.posterior import SHARES, SeenRun
from planner.learning.accuracy.first_sights import first_sight_summary, sights
from planner.learning.accuracy.intervals import intervals
from tools.accuracy import fit_first_sight
from tools.accuracy.fit_first_sight import best_constant_winkler, by_source, coverage

A100, MEGATRON = "a100-sxm-80gb", "megatron"


def features(model: str = "", **changed: object) -> ErrorFeatures:
    """A dense model on a stack and an accelerator with many published sources."""
    shares = {"compute": 0.8, "tp": 0.1, "pipeline": 0.05, "dp": 0.03, "optimizer": 0.02}
    source = "site:made-up" if model else ""
    of = ErrorFeatures(
        tuple(shares.get(name, 0.0) for name in FACTORS),
        ("ampere", A100, MEGATRON, source, model), False, 8192, seconds=10.0, accelerators=64,
    )  # fmt: skip
    return replace(of, **changed)  # type: ignore[arg-type]


def runs(*ln: float) -> list[SeenRun]:
    """Runs of one model with plans that differ a little."""
    own = features("one model")
    return [
        SeenRun(replace(own, shares=tuple(share * (1 + 0.03 * i) for share in own.shares)), value)
        for i, value in enumerate(ln)
    ]


def width(of: ErrorFeatures, belief: Belief | None = None) -> float:
    low, high = (belief or first_sight()).mixture(of).bounds(80.0)
    return high - low


def held(of: Prior, shots: int) -> float:
    return coverage(of, by_source(), shots).held


def test_expected_errors_of_many_are_those_of_each() -> None:
    own = runs(0.2, -0.1, 0.4)
    others = [run.features for run in own] + [features("another"), features(experts=True)]
    for belief in (first_sight(), Belief(prior(), own)):
        each = [belief.mixture(of).mean for of in others]
        assert belief.means(rows_of(prior(), others)) == pytest.approx(each, rel=1e-12)


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_first_sight, "SHOT_DRAWS", 6)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("shots", [0, 1, 3, 5])
def test_intervals_hold_what_they_say(shots: int) -> None:
    """On the record that the prior was fitted to; the exhaustive tier leaves families out."""
    assert 0.75 < held(prior(), shots) < 0.9


@pytest.mark.slow
def test_one_scale_for_all_would_not_hold() -> None:
    one = replace(prior(), site={1.0: 1.0}, model={1.0: 1.0}, noise_scales={1.0: 1.0})
    small = replace(prior(), site={0.1: 1.0}, model={1.0: 1.0}, noise_scales={0.6: 1.0})
    assert held(small, 0) < 0.5
    assert held(one, 3) < 0.75


@pytest.mark.slow
def test_they_score_better_than_one_width_for_all() -> None:
    assert coverage(prior(), by_source(), 0).winkler < best_constant_winkler(by_source())


@pytest.mark.slow
def test_three_runs_of_a_source_take_a_fifth_off_the_error() -> None:
    enough = {key: own for key, own in by_source().items() if len(own) >= 5}
    none, three = (coverage(prior(), enough, shots) for shots in (0, 3))
    assert three.median_abs_ln < 0.8 * none.median_abs_ln


@pytest.mark.slow
def test_chosen_runs_tell_more_than_random_ones() -> None:
    """Chosen before anything is measured; of sources with runs enough to choose among."""
    enough = {key: own for key, own in by_source().items() if len(own) >= 7}
    none = coverage(prior(), enough, 0)
    random, chosen = (coverage(prior(), enough, 2, told) for told in (False, True))
    assert chosen.median_abs_ln < 0.65 * none.median_abs_ln
    assert chosen.median_abs_ln < 0.85 * random.median_abs_ln
    assert chosen.winkler < 0.9 * random.winkler


def test_the_run_that_tells_most_is_the_one_that_all_others_share() -> None:
    """Of three plans with the same parts and one with others, one of the three."""
    alike = features("one model")
    other = replace(alike, shares=tuple(0.2 * (name == "pipeline") for name in FACTORS))
    belief = Belief(prior())
    (first,), left = belief.most_telling([other, alike, alike, alike])
    assert first != 0
    both, less = belief.most_telling([other, alike, alike, alike], 2)
    assert both == [first, 0]
    assert 0 < less < left < 1
    # What has been measured tells nothing more.
    (then,), _ = Belief(prior(), [SeenRun(alike, 0.1)] * 5).most_telling([other, alike, alike])
    assert then == 0


def test_runs_that_agree_are_believed_and_one_that_does_not_is_not() -> None:
    usual = log(1.2)
    agree = Belief(prior(), runs(usual, usual, usual)).mixture(features("one model"))
    assert agree.mean > 0.85 * usual
    assert width(features("one model"), Belief(prior(), runs(usual, usual, usual))) < 0.7 * width(
        features()
    )
    for slow in ((0.0, 0.0, log(3.0)), (log(3.0), 0.0, 0.0)):
        other = Belief(prior(), runs(*slow)).mixture(features("one model"))
        assert abs(exp(other.mean) - 1.0) < 0.05
    far = Belief(prior(), runs(0.7, 0.7, 0.7))
    assert far.mixture(features("one model")).mean > 0.6
    # Another model there learns a part of it.
    assert 0.3 < far.mixture(features("another model")).mean < 0.7


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_is_guessed_is_wider(doubt: str) -> None:
    assert width(features(doubts=(doubt,))) > 1.2 * width(features())
    found = band(1.0, features(doubts=(doubt,)))
    assert DOUBTS[doubt] in found.basis


def test_an_accelerator_and_stack_without_sources_are_wider() -> None:
    unknown = features(groups=("other", "some-new-chip", MEGATRON, "", ""))
    assert sources_alike(unknown) == 0 < sources_alike(features())
    assert width(unknown) > 1.2 * width(features())


def test_an_answer_has_the_interval_that_accuracy_scores() -> None:
    for one in sights()[::20]:
        of = one.run.features
        low, high = intervals(SeenRun(of, 0.0))[SHARES.index(COVERED)]
        found = band(2.0, of)
        assert (found.low_s, found.high_s) == pytest.approx((2.0 * exp(low), 2.0 * exp(high)))


def test_the_correction_of_many_plans_is_that_of_each() -> None:
    belief = Belief(prior(), runs(0.1, 0.3, -0.2))
    for of in (features("one model"), features("another", accelerators=512, seconds=0.3)):
        errors, rest = belief.correction(of)
        assert float(linear_of(of) @ errors + rest) == pytest.approx(belief.mixture(of).mean)
        rows = linear(np.array([of.shares] * 2), np.array([of.seconds] * 2), of.accelerators, 8192)
        assert rows @ errors + rest == pytest.approx([belief.mixture(of).mean] * 2)
    nothing, rest = first_sight().correction(features())
    assert not nothing.any()
    assert rest == 0.0


def test_a_run_left_out_is_told_by_the_others() -> None:
    seen = runs(0.2, 0.2, 0.2, 0.2, 0.9)
    left = Belief(prior(), seen).left_out()
    for i, found in enumerate(left):
        others = Belief(prior(), [run for j, run in enumerate(seen) if j != i])
        assert found.mean == pytest.approx(others.mixture(seen[i].features).mean, abs=0.03)
    assert left[-1].bounds(80.0)[1] < 0.9


def test_quantiles_are_those_of_draws() -> None:
    found = Mixture(
        np.array([0.7, 0.3]), np.array([0.0, 0.4]), np.array([0.1, 0.5]),
        dict.fromkeys(("compute",), 0.0),
    )  # fmt: skip
    random = np.random.default_rng(1)
    first = random.random(400_000) < 0.7
    drawn = np.where(first, random.normal(0.0, 0.1, 400_000), random.normal(0.4, 0.5, 400_000))
    assert found.bounds(80.0) == pytest.approx(np.quantile(drawn, [0.1, 0.9]), abs=0.01)
    assert found.mean == pytest.approx(drawn.mean(), abs=0.01)
    assert found.deviation == pytest.approx(drawn.std(), abs=0.01)


def test_the_record_is_scored_by_kind() -> None:
    found = first_sight_summary()
    assert found.runs == len(sights()) > 600
    assert found.sources > 30
    assert set(found.by_kind) == {"adapters", "dense", "mixture of experts"}
    dense = found.by_kind["dense"].median_abs_ln
    assert dense is not None
    assert 0.1 < dense < 0.2
    few = KindErrors.from_runs({"a": [0.1, -0.1, 0.3, 0.2, 0.2], "b": [5.0]})
    assert few == KindErrors(runs=6, sources=2, median_abs_ln=0.2)


@pytest.mark.exhaustive
def test_intervals_hold_for_families_that_the_fit_has_not_seen() -> None:
    priors = fit_first_sight.left_out_priors()
    for shots in (0, 1, 3, 5):
        assert 0.75 < fit_first_sight.left_out_coverage(priors, shots).held < 0.9
