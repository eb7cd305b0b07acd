"""A calibration and a validation feed the site of their name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.calibrations import ACCELERATOR, Calibration
from planner.answers.plans import plan_answers
from planner.answers.plans.answer_ids import answer_id, estimate_id
from planner.documents.answer import EstimateAnswer
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import profiles
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.site import LearnedRun
from planner.inputs.requests.parser import parse_request
from planner.running.validate import results
from planner.running.validate.learned_run import learn
from planner.running.validate.report import ValidationReport
from tests.cost_models.test_calibrations import calibration, gemms
from tests.fixtures.commands import Planner
from tests.planner.learning.sites.runs import NAMES, run

H100, A100, V100, CPU = "h100-sxm-80gb", "a100-sxm-80gb", "v100-sxm2-32gb", "cpu-core"
PRECISION = {H100: "bf16", A100: "bf16", V100: "fp16", CPU: "fp32"}
REQUEST: dict[str, Any] = {
    "model": "llama-3.1-8b", "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 8},
    "plan": {"tp": 8, "sequence_parallel": True},
}  # fmt: skip
TINY: dict[str, Any] = {
    "model": {
        "name": "tiny", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_query_groups": 4, "ffn_hidden_size": 128, "vocab_size": 256,
    },
    "cluster": "local",
    "training": {"seq_length": 64, "global_batch_size": 64, "precision": "fp32"},
    "plan": {"runtime": "torch", "cross_entropy": "unfused", "zero_stage": 0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


def calibrated(accelerator: str, flop_per_s: float = 1e14, at: str = "2026-11-20") -> Calibration:
    """A calibration `mine` of matrix products, measured on an accelerator."""
    points = [{**point, "precision": PRECISION[accelerator]} for point in gemms(flop_per_s)]
    found = calibration(gemm=points)
    hardware = {**found.hardware, ACCELERATOR: accelerator}
    return found.model_copy(update={"hardware": hardware, "measured_at": f"{at}T12:00:00Z"})


def asked(**more: str) -> PlanRequest:
    return parse_request(REQUEST | more, need_plan=True)


def estimated(**more: str) -> EstimateAnswer:
    request = asked(**more)
    return plan_answers.estimate(request, request.named_plan)


def notes(answer: EstimateAnswer) -> list[str]:
    return [note.text for note in answer.estimate.assumptions if note.code == "site"]


def test_a_calibrated_profile_is_a_site() -> None:
    profiles.save(calibrated(H100))
    assert storage.names() == ("mine",)
    at_site, by_profile = estimated(site="mine"), estimated(profile="mine")
    assert at_site.profile == by_profile.profile
    assert at_site.profile.kind == "calibrated"
    assert at_site.estimate.time_parts_s == by_profile.estimate.time_parts_s
    assert at_site.estimate.time_parts_s != estimated().estimate.time_parts_s
    assert notes(at_site) == [
        "site mine: priced by its calibration of gemm; 0 runs move this time by +0.0 %"
    ]


def test_it_prices_no_other_accelerator() -> None:
    profiles.save(calibrated(A100))
    answer = estimated(site="mine")
    assert answer.profile == estimated().profile
    assert answer.estimate.time_parts_s == estimated().estimate.time_parts_s
    assert "calibration" not in notes(answer)[0]


def test_runs_are_priced_with_the_calibration_of_their_site() -> None:
    """Else what it explains already would be learned from them once more."""
    gpt = run(NAMES[0])
    storage.learn("mine", (gpt,))
    profiles.save(calibrated(V100, 4e13))
    (own,) = storage.find("mine").runs
    assert own.estimated_s != gpt.estimated_s
    first = storage.find("mine").digest
    profiles.save(calibrated(V100, 8e13, "2026-11-21"))
    (again,) = storage.find("mine").runs
    assert again.estimated_s < own.estimated_s
    assert storage.find("mine").digest != first
    profiles.forget("mine")
    assert storage.find("mine").runs == (gpt,)


def test_a_site_keeps_no_copy_of_its_calibration() -> None:
    profiles.save(calibrated(H100))
    storage.learn("mine", (run(NAMES[0]),))
    assert storage.find("mine").calibration is not None
    assert "points" not in (storage.folder() / "mine.json").read_text()


def test_another_calibration_is_another_answer() -> None:
    profiles.save(calibrated(H100))
    requests = [asked(site="mine"), asked(profile="mine")]

    def ids() -> set[str]:
        plans = {answer_id("pl", one.document()) for one in requests}
        return plans | {estimate_id(one) for one in (*requests, asked())}

    before = ids()
    assert len(before) == 5
    profiles.save(calibrated(H100, 2e14))
    assert ids() & before == {estimate_id(asked())}


def test_a_damaged_calibration_is_named() -> None:
    path = profiles.save(calibrated(H100))
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 7'))
    ((name, problem),) = storage.everything()
    assert name == "mine"
    assert str(problem).startswith("efficiency profile mine: its file is damaged: /schema_version")


def test_both_are_shown_and_forgotten(planner: Planner) -> None:
    profiles.save(calibrated(H100))
    storage.learn("mine", (run(NAMES[0]),))
    _, out, _ = planner("sites")
    assert "2026-11-20" in out.splitlines()[1]
    _, out, _ = planner("sites", "show", "mine")
    assert "Calibrated  2026-11-20" in out
    assert "on a card" in out
    answer = json.loads(planner("sites", "show", "mine", "--json")[1])
    assert answer["calibration"]["points"] == {"gemm": len(gemms(1e14))}
    assert planner("sites", "forget", "mine")[0] == 0
    assert storage.names() == ()
    assert profiles.calibrations() == {}


@pytest.mark.slow
def test_planning_says_what_the_calibration_changed() -> None:
    profiles.save(calibrated(H100, 1e13))
    document = {name: value for name, value in REQUEST.items() if name != "plan"}
    limits = {"tp": 8, "pp": 1, "cp": 1, "zero_stage": 1, "top_k": 1}
    found = plan_answers.find(parse_request(document | {"search": limits, "site": "mine"}))
    assert found.replanned is not None
    assert found.replanned.usual_profile == "h100-sxm"
    assert found.replanned.usual_time_s < found.replanned.plan.iteration_time_s


def test_two_names_are_refused(planner: Planner) -> None:
    code, _, err = planner("calibrate", "--name", "one", "--site", "two")
    assert code == 2
    assert "--name and --site are the same" in err


@pytest.mark.exhaustive
def test_a_validation_is_learned(planner: Planner, folder: Path) -> None:
    Path("tiny.json").write_text(json.dumps(TINY))
    profiles.save(calibrated(CPU, 1e10))
    words = ("validate", "tiny.json", "--site", "mine", "--steps", "2", "--warmup-steps", "1")
    code, out, err = planner(*words)
    assert code in (0, 3), err
    (own,) = storage.find("mine").runs
    assert f"site mine has learned it as run {own.id[:6]}, 1 in all" in out
    assert isinstance(own, LearnedRun)
    assert (own.steps, dict(own.left_out), own.code_base) == (2, {"warm-up": 1}, "pytorch")
    assert own.calibrated_at == "2026-11-20T12:00:00Z"
    report = ValidationReport.model_validate_json(json.dumps(results.everything()[0].report))
    assert learn(asked(site="mine"), report) == (
        "site mine has not learned it: it ran on cpu-core, the site's plan is for h100-sxm-80gb"
    )
    assert learn(asked(), report) == ""
    assert storage.find("mine").runs == (own,)
