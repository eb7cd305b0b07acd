"""The interval around an estimated time: from the posterior, wider where less is known."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.catalog.hardware import accelerator
from cost_models.profiles import profile_for
from planner import plan
from planner.evidence.uncertainty.error_band import COVERED, WIDER, band, comparison
from planner.evidence.uncertainty.error_features import FACTORS, ErrorFeatures, groups_of
from planner.evidence.uncertainty.posterior import posterior

H100 = "h100-sxm-80gb"


def features(
    experts: bool = False, runtime: str = "megatron", name: str = H100, **shares: float
) -> ErrorFeatures:
    """Nearly all of the time in long kernels, and what is given."""
    shares = {"compute": 1.0 - sum(shares.values()), **shares}
    family = profile_for(accelerator(H100)).family
    groups = groups_of(family, name, runtime, "", 8192, 80)
    return ErrorFeatures(
        tuple(shares.get(factor, 0.0) for factor in FACTORS), groups, experts, 8192
    )


def width(of: ErrorFeatures) -> float:
    found = band(1.0, of, profile_for(accelerator(H100)))
    return float(np.log(found.high_s / found.low_s))


def test_an_answer_says_its_interval_and_what_it_rests_on() -> None:
    training = {"seq_length": 2048, "global_batch_size": 64}
    answer = plan({"model": "llama-3.1-8b", "cluster": "1x8xh100-sxm", "training": training})
    assert answer.best is not None
    for report in answer.plans:
        found = report.error_band
        assert found.low_s < report.iteration_time_s < found.high_s
        assert found.rows == len(posterior().runs) > 500
        assert found.sources > 20
        assert f"{COVERED}% interval from {found.rows} published runs" in found.basis
        assert f"similar (dense, {H100}, " in found.basis


@pytest.mark.parametrize("seconds", [1e-3, 1.0, 1e5])
def test_it_scales_with_the_time(seconds: float) -> None:
    profile = profile_for(accelerator(H100))
    one, many = band(1.0, features(), profile), band(seconds, features(), profile)
    assert many.low_s == pytest.approx(seconds * one.low_s)
    assert many.high_s == pytest.approx(seconds * one.high_s)


def test_it_widens_by_what_a_plan_leans_on() -> None:
    assert width(features(cp=0.3)) > 1.5 * width(features())
    assert width(features(small=0.5)) > 1.5 * width(features())
    assert width(features(experts=True)) > width(features())
    found = band(1.0, features(cp=0.4), profile_for(accelerator(H100)))
    assert f"main uncertainty: {FACTORS['cp']}" in found.basis


def test_what_no_run_speaks_for_is_wider_and_said() -> None:
    unknown = features(name="some-new-chip")
    assert width(unknown) > width(features())
    found = band(1.0, unknown, profile_for(accelerator(H100)))
    assert "none similar (dense, some-new-chip, megatron)" in found.basis
    own = accelerator(H100).model_copy(update={"efficiency_profile": None})
    fallback = profile_for(own)
    assert fallback.kind == "fallback"
    wider, usual = (
        band(1.0, features(), fallback),
        band(1.0, features(), profile_for(accelerator(H100))),
    )
    assert np.log(wider.high_s) > 0.8 * WIDER * np.log(usual.high_s)
    assert "no kernel of this accelerator was measured" in wider.basis


def test_what_two_plans_share_cancels() -> None:
    """Alike plans are told apart by little; plans that lean on other links are not."""
    alike = comparison(1.0, features(tp=0.2), 1.1, features(tp=0.21))
    unlike = comparison(1.0, features(tp=0.5), 1.1, features(cp=0.5))
    assert alike.high / alike.low < unlike.high / unlike.low
    assert alike.low < 1.1 < alike.high
    assert 0.5 < unlike.chance < alike.chance < 1.0
    back = comparison(1.1, features(tp=0.21), 1.0, features(tp=0.2))
    assert back.chance == pytest.approx(1.0 - alike.chance)
    assert comparison(1.0, features(), 1.0, features()).chance == pytest.approx(0.5)
