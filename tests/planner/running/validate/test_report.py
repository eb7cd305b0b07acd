"""The verdict of a validation: never a pass by width, never a miss hidden by noise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.running.validate.report import (
    Outcome,
    Spread,
    Term,
    judge_gradients,
    judge_memory,
    judge_time,
    named_term,
    overall,
)


def spread(low: float, middle: float, high: float) -> Spread:
    return Spread(median=middle, p10=low, p90=high, n=10)


@pytest.mark.parametrize(
    ("predicted_s", "measured", "verdict"),
    [
        (1.0, spread(0.95, 1.0, 1.05), "within"),
        (1.0, spread(1.1, 1.15, 1.19), "within"),
        (1.0, spread(1.3, 1.35, 1.4), "outside"),
        (1.0, spread(0.5, 0.55, 0.6), "outside"),
        # The median is right, but the repeats reach beyond what is allowed.
        (1.0, spread(0.7, 1.0, 1.5), "inside the noise"),
        # The median is wrong, but the best repeats are not.
        (1.0, spread(1.1, 1.3, 1.6), "inside the noise"),
        # However wide they scatter: ten times is no noise.
        (1.0, spread(8.0, 10.0, 30.0), "outside"),
    ],
)
def test_time(predicted_s: float, measured: Spread, verdict: str) -> None:
    found = judge_time(predicted_s, measured, 0.2)
    assert found.verdict == verdict
    assert "allowed 20.0 %" in found.why


SECONDS = st.floats(1e-6, 1e4)


@given(SECONDS, SECONDS, st.floats(1, 5), st.floats(1, 5), st.floats(0.01, 0.9))
def test_wider_repeats_are_never_a_pass_that_narrower_ones_are_not(
    predicted_s: float, median_s: float, below: float, above: float, tolerance: float
) -> None:
    wide = judge_time(predicted_s, spread(median_s / below, median_s, median_s * above), tolerance)
    narrow = judge_time(predicted_s, spread(median_s, median_s, median_s), tolerance)
    if wide.verdict != "inside the noise":
        assert wide.verdict == narrow.verdict
    if wide.verdict == "within":
        assert abs(predicted_s / median_s - 1) <= tolerance * (1 + 1e-9)


def test_memory() -> None:
    assert judge_memory(102.9, 100.0, 0.03).verdict == "within"
    found = judge_memory(90.0 * 2**20, 100.0 * 2**20, 0.03)
    assert found.verdict == "outside"
    assert found.why == "predicted 90.0 MiB, measured 100.0 MiB: 10.0 % too little, allowed 3.0 %"


def test_gradients() -> None:
    assert judge_gradients({"a": 1e-7, "b": 9e-5}).verdict == "within"
    found = judge_gradients({"a": 1e-7, "b": 2e-4})
    assert found.verdict == "outside"
    assert "at most 2.0e-04 (b)" in found.why


def test_the_term_that_is_off_is_named() -> None:
    terms = [
        Term(name="forward", predicted=2.0, measured=2.5),
        Term(name="idle", predicted=3.0, measured=1.0),
    ]
    assert named_term(terms, str) == "most of it in idle, predicted 3.0 and measured 1.0"


def test_one_miss_is_a_miss() -> None:
    def of(*verdicts: str) -> dict[str, Outcome]:
        return {str(i): Outcome(verdict=v, why="") for i, v in enumerate(verdicts)}  # type: ignore[arg-type]

    assert overall(of("within", "within")) == "within"
    assert overall(of("within", "inside the noise")) == "inside the noise"
    assert overall(of("inside the noise", "outside", "within")) == "outside"


def test_a_moment_counts_once_and_as_what_it_waits_for() -> None:
    from planner.running.validate.ranks.measure import _on_cpu, _sweep

    spans = [
        (0, 100, "forward"),
        (20, 50, "wait"),
        (30, 40, "wait"),  # inside another wait
        (100, 200, "backward"),
        (150, 170, "message"),
        (155, 165, "wait"),  # by which a message waits
        (200, 240, "optimizer"),
        (210, 220, "wait"),  # for the others, where the norm is put together
        (240, 250, "end"),
    ]
    assert _sweep(spans, _on_cpu) == {
        "forward": 70, "communication": 30, "backward": 80, "idle": 20 + 10 + 10, "optimizer": 30,
    }  # fmt: skip


def test_on_a_gpu_communication_is_what_no_kernel_hides() -> None:
    from planner.running.validate.ranks.measure import _on_gpu, _sweep

    spans = [
        (0, 100, "forward"),
        (0, 60, "kernel"),
        (50, 90, "nccl"),
    ]
    assert _sweep(spans, _on_gpu) == {"forward": 60, "communication": 30, "idle": 10}
