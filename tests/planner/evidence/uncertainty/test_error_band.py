"""The interval around an estimated time: from the posterior, wider where less is known."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.catalog.hardware import accelerator
from cost_models.profiles import profile_for
from planner import plan
from planner.evidence.uncertainty.error_band import COVERED, band, comparison
from planner.evidence.uncertainty.error_features import FACTORS, ErrorFeatures, groups_of

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
    found = band(1.0, of)
    return float(np.log(found.high_s / found.low_s))


@pytest.mark.slow
def test_an_answer_says_its_interval_and_what_it_rests_on() -> None:
    training = {"seq_length": 2048, "global_batch_size": 64}
    answer = plan({"model": "llama-3.1-8b", "cluster": "1x8xh100-sxm", "training": training})
    assert answer.best is not None
    for report in answer.plans:
        found = report.error_band
        assert found.low_s < report.iteration_time_s < found.high_s
        assert found.rows > 900
        assert found.sources > 20
        assert f"{COVERED}% interval; " in found.basis
        assert f" (dense, {H100}, " in found.basis


@pytest.mark.parametrize("seconds", [1e-3, 1.0, 1e5])
def test_it_scales_with_the_time(seconds: float) -> None:
    one, many = band(1.0, features()), band(seconds, features())
    assert many.low_s == pytest.approx(seconds * one.low_s)
    assert many.high_s == pytest.approx(seconds * one.high_s)


def test_it_widens_by_what_a_plan_leans_on() -> None:
    assert width(features(cp=0.6)) > 1.5 * width(features())
    assert width(features(small=0.5)) > 1.5 * width(features())
    assert width(features(experts=True)) > width(features())
    found = band(1.0, features(cp=0.4))
    assert f"main uncertainty: {FACTORS['cp']}" in found.basis


def test_what_no_run_speaks_for_is_wider_and_said() -> None:
    unknown = features(name="some-new-chip")
    assert width(unknown) > width(features())
    found = band(1.0, unknown)
    assert "no similar source (dense, some-new-chip, megatron)" in found.basis
    assert "no run on some-new-chip" in found.basis


def test_sources_of_other_software_on_the_same_library_are_called_so() -> None:
    """None has transformers on an H100; those that count have torch, or what is built on it."""
    for runtime in ("transformers", "unsloth"):
        assert f" (dense, {H100}, torch-based)" in band(1.0, features(runtime=runtime)).basis


@pytest.mark.slow
def test_kernels_that_were_not_measured_are_said() -> None:
    asked = {"model": "llama-3.1-8b", "training": {"seq_length": 2048, "global_batch_size": 64}}
    known, unmeasured = (
        plan(asked | {"cluster": cluster}).best for cluster in ("1x8xh100-sxm", "1x8xgaudi3")
    )
    assert known is not None
    assert unmeasured is not None
    assert "no kernel of this accelerator" not in known.error_band.basis
    assert "wider: no kernel of this accelerator was measured" in unmeasured.error_band.basis
    widths = [
        np.log(found.error_band.high_s / found.error_band.low_s) for found in (known, unmeasured)
    ]
    assert widths[1] > 1.2 * widths[0]


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
