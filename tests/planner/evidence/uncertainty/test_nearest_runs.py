"""The published runs near a plan, and that the catalog's table of them is current."""

from __future__ import annotations

import re
from typing import Any

import pytest

from planner.answers.plans.plan_answers import estimate
from planner.documents.scored_runs import scored_runs
from planner.evidence.published_runs.runs import PUBLISHED_RUNS, runs_in
from planner.evidence.uncertainty.nearest_runs import Evidence, evidence
from planner.inputs.requests.parser import parse_request
from planner.learning.accuracy.predict import predict
from tools.accuracy.write_scored_runs import scored

ASKED: dict[str, Any] = {
    "model": "llama-3.1-70b",
    "cluster": "8x8xh100-sxm",
    "training": {"seq_length": 8192, "global_batch_size": 1024},
    "plan": {"tp": 4, "cp": 2, "pp": 4, "vpp": 5, "runtime": "megatron"},
}


def of(**changed: Any) -> Evidence:
    asked = parse_request(ASKED | changed, need_plan=True)
    return evidence(asked.model, asked.cluster, asked.training, asked.named_plan)


@pytest.mark.one_in(1, quick=4)
@pytest.mark.parametrize("source", ["sc21_t2", "titan_h200", "mlperf_dsv3", "mlm_golden"])
def test_the_table_is_current(source: str) -> None:
    """Else: python -m tools.accuracy.write_scored_runs --write."""
    runs = [run for run in runs_in(PUBLISHED_RUNS) if run.source_key == source]
    kept = [run for run in scored_runs() if run.source == source]
    assert scored(map(predict, runs)) == kept
    assert all((run.intervals_s is None) == (source == "mlm_golden") for run in kept)


def test_intervals_nest_and_hold_about_as_many_as_they_say() -> None:
    known = [run for run in scored_runs() if run.intervals_s]
    # More than they say: most of these sources were known when the physics was chosen.
    for share, least, most in (("50", 0.5, 0.9), ("80", 0.8, 0.98), ("95", 0.95, 1.0)):
        inside = [low <= run.measured_s <= high for run in known
                  for low, high in [(run.intervals_s or {})[share]]]  # fmt: skip
        assert least < sum(inside) / len(inside) < most
    for run in known:
        edges = run.intervals_s or {}
        assert edges["95"][0] <= edges["80"][0] <= edges["50"][0] <= run.predicted_s
        assert run.predicted_s <= edges["50"][1] <= edges["80"][1] <= edges["95"][1]


def test_a_published_question_has_its_own_run_nearest() -> None:
    found = of(training={"seq_length": 8192, "global_batch_size": 128, "precision": "fp8"})
    first = found.nearest[0]
    assert (first.model, first.accelerators, first.tp, first.cp, first.pp) == (
        "Llama3-70B", 64, 4, 2, 4,
    )  # fmt: skip
    assert found.ground == "measured"
    assert found.text.startswith("measured on H100 SXM5 80GB with Megatron-Core in 8 or 4 bits")
    assert found.text == f"measured {found.detail}"
    assert found.alike == sum(
        (run.accelerator, run.runtime, run.experts, run.precision, run.stack_guessed)
        == ("h100-sxm-80gb", "megatron", False, "fp8", False)
        for run in scored_runs()
        if run.intervals_s
    )
    assert len({(run.source, run.model) for run in found.nearest}) == 3


def test_ground_is_said() -> None:
    unseen = of(cluster="8x8xmi300x")
    assert unseen.ground == "unseen"
    assert unseen.alike == 0
    assert unseen.text.startswith("no run at all on MI300X: extrapolated from ")
    assert unseen.text == f"no run at all on MI300X: {unseen.detail}"
    for words in ("runs on other accelerators", "how far these differ"):
        assert words in unseen.text
    tuned = ASKED["training"] | {"lora_rank": 8, "lora_targets": ["linear_qkv"]}
    adapters = of(training=tuned)
    assert adapters.ground == "extrapolated"
    assert adapters.text.startswith("no run on H100 SXM5 80GB with Megatron-Core training adapters")
    # A stack's variants count together: those runs have a slower AdamW, this plan has not.
    lora = {"training": tuned, "cluster": "1x4xl40s", "plan": {"runtime": "transformers"}}
    assert of(**lora).text.startswith(
        "measured on L40S 48GB with transformers training adapters: 14"
    )
    elsewhere = of(cluster="8x8xb200", plan={"tp": 4, "pp": 4, "runtime": "torch"})
    assert elsewhere.ground == "extrapolated"
    assert elsewhere.text.startswith("no run on B200 SXM with torch: extrapolated from Megatron")
    assert re.match(r"from Megatron.*: no run on B200 SXM with torch; the", elsewhere.detail)
    assert re.search(r"rests on \d+ runs .* and \d+ runs .* elsewhere", elsewhere.text)
    assert of(cluster="8x8xl40s").text.count("NVIDIA") == 0  # of a vendor with runs
    experts = of(
        model="deepseek-v3", cluster="64x8xh100-sxm",
        training={"seq_length": 4096, "global_batch_size": 4096},
        plan={"tp": 2, "sequence_parallel": True, "pp": 8, "ep": 64, "runtime": "megatron"},
    )  # fmt: skip
    assert experts.nearest[0].model == "DeepSeek-V3-671B"
    assert "mixtures of experts" in experts.text


def test_answers_carry_it_and_count_the_runs_of_their_interval() -> None:
    asked = parse_request(ASKED, need_plan=True)
    answer = estimate(asked, asked.named_plan)
    found = answer.evidence
    assert found == of()
    assert " similar sources (dense, h100-sxm-80gb, megatron)" in answer.estimate.error_band.basis
