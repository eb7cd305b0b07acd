"""The interval around an estimated time: from the error table, wider where less is known."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.plans import ParallelPlan
from cost_models.profiles import profile_for
from cost_models.spec import TrainingSpec
from planner import plan
from planner.error_band import COVERED, UNSEEN, band, comparison, error_table, likeness

TRAINING = TrainingSpec(seq_length=2048, global_batch_size=64)


def kind_of(cluster: str, model: str = "llama-3.1-8b", **fields: object) -> dict[str, str]:
    training = TRAINING.model_copy(update={k: v for k, v in fields.items() if k == "precision"})
    plan = {k: v for k, v in fields.items() if k == "runtime"}
    return likeness(
        preset(model), parse_shorthand(cluster), training, ParallelPlan.model_validate(plan)
    )


def profile(cluster: str):  # type: ignore[no-untyped-def]
    return profile_for(parse_shorthand(cluster).groups[0].accelerator)


def test_an_answer_says_its_interval_and_what_it_rests_on() -> None:
    answer = plan(
        {"model": "llama-3.1-8b", "cluster": "1x8xh100-sxm", "training": TRAINING.model_dump()}
    )
    assert answer.best is not None
    for report in answer.plans:
        found = report.error_band
        assert found.low_s < report.iteration_time_s < found.high_s
        assert found.rows >= 8
        assert found.sources >= 2
        assert f"{COVERED:.0%} of {found.rows} published runs" in found.basis


def test_the_kind_is_that_of_the_estimate() -> None:
    assert kind_of("1x8xh100-sxm")["scale"] == "one node"
    assert kind_of("16x8xh100-sxm")["scale"] == "up to 16 nodes"
    assert kind_of("17x8xh100-sxm")["scale"] == "more than 16 nodes"
    assert kind_of("1x8xh100-sxm", model="mixtral-8x7b")["kind"] == "mixture-of-experts"
    assert kind_of("1x8xh100-sxm", precision="fp8")["precision"] == "8 bits or less"
    assert kind_of("1x8xh100-sxm", runtime="torch")["runtime"] == "torch"


def test_runs_of_the_kind_fall_into_the_interval_as_often_as_it_says() -> None:
    """The interval of one kind against the table's own rows of that kind, sources alike."""
    kind = kind_of("32x8xa100-sxm4-80gb")
    found = band(1.0, kind, profile("32x8xa100-sxm4-80gb"))
    shares = [
        np.mean([found.low_s <= np.exp(-ln) <= found.high_s for ln in row["ln"]])
        for row in error_table()["rows"]
        if all(row[name] == value for name, value in kind.items())
    ]
    assert len(shares) == found.sources
    assert np.mean(shares) >= COVERED - 0.1


@pytest.mark.parametrize("seconds", [1e-3, 1.0, 1e5])
def test_it_scales_with_the_time(seconds: float) -> None:
    one = band(1.0, kind_of("1x8xh100-sxm"), profile("1x8xh100-sxm"))
    many = band(seconds, kind_of("1x8xh100-sxm"), profile("1x8xh100-sxm"))
    assert many.low_s == pytest.approx(seconds * one.low_s)
    assert many.high_s == pytest.approx(seconds * one.high_s)


def test_what_no_run_speaks_for_is_said_and_wider() -> None:
    kind = kind_of("1x8xh100-sxm")
    known = band(1.0, kind, profile("1x8xh100-sxm"))
    own = parse_shorthand("1x8xh100-sxm").groups[0].accelerator
    unmeasured = own.model_copy(update={"efficiency_profile": None})
    fallback = band(1.0, kind, profile_for(unmeasured))
    assert "an accelerator without measurements" in fallback.basis
    assert np.log(fallback.high_s) == pytest.approx(UNSEEN * np.log(known.high_s))
    strange = band(1.0, {**kind, "precision": "never seen"}, profile("1x8xh100-sxm"))
    assert "no two sources of the same precision" in strange.basis
    assert strange.sources >= known.sources


def test_a_comparison_is_what_pairs_of_one_source_were_off() -> None:
    kind = kind_of("16x8xh100-sxm")
    found = comparison(kind)
    by_source: dict[str, list[float]] = {}
    for row in error_table()["rows"]:
        if all(row[name] == kind[name] for name in ("kind", "precision", "runtime")):
            gaps = [abs(a - b) for a, b in combinations(row["ln"], 2)]
            by_source.setdefault(row["source"], []).extend(gaps)
    assert found.pairs == sum(map(len, by_source.values()))
    assert found.sources == len([gaps for gaps in by_source.values() if gaps])
    inside = [np.mean(np.expm1(gaps) <= found.share) for gaps in by_source.values() if gaps]
    assert np.mean(inside) == pytest.approx(COVERED, abs=0.03)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("runtime", ["megatron", "torch", "deepspeed"])
@pytest.mark.parametrize("nodes", [1, 8, 64])
def test_every_kind_has_pairs_to_compare(
    model: str, precision: str, runtime: str, nodes: int
) -> None:
    kind = kind_of(f"{nodes}x8xh100-sxm", model, precision=precision, runtime=runtime)
    found = comparison(kind)
    assert found.pairs >= 8
    assert 0.01 < found.share < 0.5
