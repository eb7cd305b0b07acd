"""The chance that a plan runs out of memory, and the published peaks that it rests on."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from cost_models.runtimes import RUNTIMES
from planner import estimate
from planner.evidence.published_runs.runs import PUBLISHED_RUNS, runs_in
from planner.evidence.uncertainty.memory_risk import ANY, FILE, Peaks, measured_as, peaks
from planner.learning.accuracy.predict import Prediction, predict
from tools.accuracy.fit_memory_posterior import (
    CHANCES,
    Peak,
    coverage,
    exceeded,
    measured_peaks,
    posterior_draws,
    predicted,
)
from tools.accuracy.fit_posterior import LEFT_OUT

CAPACITY = 80e9


@pytest.fixture(scope="module")
def published() -> list[Prediction]:
    """Rows with a measured peak, and those that ran out."""
    rows = [run for run in runs_in(PUBLISHED_RUNS) if run.source_key not in LEFT_OUT]
    return [predict(run) for run in rows if run.peak_bytes or run.flag("oom")]


@pytest.mark.parametrize("runtime", [*RUNTIMES, "of nobody"])
def test_more_needed_is_more_likely_to_run_out(runtime: str) -> None:
    found = [peaks().chance(runtime, share * CAPACITY, CAPACITY) for share in (0.5, 0.8, 0.9, 1.0)]
    assert found == sorted(found)
    assert found[0] == CHANCES[0]
    assert found[1] < 0.02
    assert found[-1] > 0.2
    # Peaks that were published lie a little above what is predicted for eager torch.
    assert found[-1] < 0.6 or measured_as(runtime) == "torch"
    assert abs(math.log(peaks().most_bytes(runtime, CAPACITY, 0.5) / CAPACITY)) < 0.025
    assert peaks().chance(runtime, 2.0 * CAPACITY, CAPACITY) == CHANCES[-1]


@pytest.mark.parametrize("runtime", [*RUNTIMES, ANY])
@pytest.mark.parametrize("chance", [0.01, 0.04, 0.3])
def test_a_limit_is_where_the_chance_is_that(runtime: str, chance: float) -> None:
    most = peaks().most_bytes(runtime, CAPACITY, chance)
    assert peaks().chance(runtime, most, CAPACITY) == pytest.approx(chance)
    assert peaks().chance(runtime, 1.01 * most, CAPACITY) > chance
    assert most < peaks().most_bytes(runtime, CAPACITY, 2 * chance)


def test_a_runtime_nobody_measured_is_doubted_more() -> None:
    for runtime in peaks().rows:
        assert peaks().most_bytes(ANY, CAPACITY, 0.01) < peaks().most_bytes(runtime, CAPACITY, 0.01)
    assert "none of them by jax" in peaks().basis("jax")


def test_an_answer_says_the_chance_and_what_it_rests_on() -> None:
    asked = {
        "model": "llama-3.1-8b",
        "cluster": "1x8xh100-sxm",
        "training": {"seq_length": 4096, "global_batch_size": 64},
    }
    for tp in (1, 8):
        memory = estimate({**asked, "plan": {"tp": tp}}).estimate.memory
        chance = peaks().chance("megatron", memory.needed_bytes, memory.capacity_bytes)
        assert 0.8 * memory.peak_bytes < memory.needed_bytes <= memory.peak_bytes
        assert memory.chance_of_running_out == chance
        assert f"from {sum(peaks().rows.values())} published peaks" in memory.chance_basis
        assert f"{peaks().rows['megatron']} of them by megatron" in memory.chance_basis


@pytest.mark.slow
def test_what_is_shipped_is_what_the_runs_say(published: list[Prediction]) -> None:
    """Few sweeps instead of many: the same within what draws differ by."""
    found = measured_peaks(published)
    document = json.loads(FILE.read_text(encoding="utf-8"))
    assert sum(document["rows"].values()) == len(found) > 150
    assert document["chances"] == [round(chance, 3) for chance in CHANCES]
    draws = posterior_draws(found, 2000)
    for runtime, above in document["above_ln"].items():
        middle = slice(3, -4)
        now = exceeded(predicted(draws, runtime))[middle]
        assert now == pytest.approx(above[middle], abs=0.025)


@pytest.mark.slow
def test_chances_hold_for_sources_left_out(published: list[Prediction]) -> None:
    """Within 1.5 standard errors of so few sources, each of which is off by itself."""
    shares = coverage(measured_peaks(published), (0.05, 0.1, 0.2, 0.5, 0.8), 400)
    for chance, share in shares.items():
        assert abs(share - chance) <= 1.5 * np.sqrt(chance * (1.0 - chance) / peaks().sources)


@pytest.mark.slow
def test_what_ran_out_was_likely_to(published: list[Prediction]) -> None:
    chances: dict[bool, list[float]] = {True: [], False: []}
    for one in published:
        if one.run.flag("oom") and one.plan and one.driver_bytes and one.capacity_bytes:
            found = peaks().chance(one.plan.runtime, one.driver_bytes, one.capacity_bytes)
            chances[one.run.is_tuning].append(found)
    assert len(chances[False]) == 8
    assert sum(chance > 0.2 for chance in chances[False]) >= 7
    # Fine-tuning on one card keeps more than is counted (no peak of it is evidence for a risk).
    assert len(chances[True]) == 15
    assert sum(chance > 0.1 for chance in chances[True]) >= 9


def test_deviations_of_runtimes_and_noise_are_found_again() -> None:
    random = np.random.default_rng(2)
    found = [
        Peak(runtime, f"{runtime}{source}", off + own + random.normal(0.0, 0.01))
        for runtime, off in (("high", 0.2), ("low", -0.2))
        for source in range(8)
        for own in random.normal(0.0, 0.02, 1)
        for _ in range(6)
    ]
    draws = posterior_draws(found, 1500)
    high, low = (predicted(draws, runtime) for runtime in ("high", "low"))
    assert np.median(high) == pytest.approx(0.2, abs=0.02)
    assert np.median(low) == pytest.approx(-0.2, abs=0.02)
    assert np.sqrt(draws.of_sources.mean()) == pytest.approx(0.02, abs=0.015)
    assert np.sqrt(draws.of_noise.mean()) == pytest.approx(0.01, abs=0.006)
    spread = [float(np.ptp(np.quantile(of, (0.05, 0.95)))) for of in (high, predicted(draws, ANY))]
    assert spread[0] < 0.2 < spread[1]


def site_of(*ln: float, runtime: str = "megatron") -> Peaks:
    middle = float(np.interp(0.5, peaks().chances, peaks().above_ln[runtime]))
    return peaks().given("lab", [(runtime, middle + one) for one in ln])


def middle_of(known: Peaks, runtime: str) -> float:
    return math.log(CAPACITY / known.most_bytes(runtime, CAPACITY, 0.5))


def test_a_site_s_peaks_move_its_risk_and_narrow_it() -> None:
    """As much as normal errors say: of n peaks n s^2 / (n s^2 + e^2) of what they share."""
    shared, before = peaks().of_sources ** 2, middle_of(peaks(), "megatron")
    for n in (1, 3, 10):
        own = site_of(*[0.2] * n)
        noise = 2.0 * peaks().of_noise ** 2 / (2.0 + n - 1)  # runs that agree make it smaller
        believed = n * shared / (n * shared + noise)
        assert middle_of(own, "megatron") - before == pytest.approx(0.2 * believed, abs=1e-3)
        assert middle_of(own, "torch") - middle_of(peaks(), "torch") == pytest.approx(
            0.2 * believed, abs=1e-3
        )
    widths = [np.ptp(known.above_ln["megatron"])
              for known in (peaks(), site_of(0.2, 0.2, 0.2), site_of(-0.1, 0.2, 0.5))]  # fmt: skip
    assert widths[1] < 0.9 * widths[0] < widths[0] < widths[2]
    # 85 % of the memory was safe, and is not where three runs needed a fifth more than predicted.
    chances = [known.chance("megatron", 0.85 * CAPACITY, CAPACITY)
               for known in (peaks(), site_of(0.2, 0.19, 0.21))]  # fmt: skip
    assert chances[0] < 0.05
    assert chances[1] > 0.5


def test_one_odd_peak_of_three_moves_little() -> None:
    odd, even = site_of(0.0, 0.0, 0.7), site_of(0.0, 0.0, 0.0)
    assert middle_of(odd, "megatron") == pytest.approx(middle_of(even, "megatron"), abs=1e-3)
    assert peaks().given("lab", []) is peaks()


def test_the_risk_says_what_the_site_measured() -> None:
    own = site_of(0.2, 0.2, 0.2)
    assert own.basis("megatron").startswith(peaks().basis("megatron")[:25])
    assert "3 peaks of site lab put them +" in own.basis("megatron")
