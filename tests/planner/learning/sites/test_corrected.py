"""Answers for a site: what its runs move, and that nothing else does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models.plans import ParallelPlan, Plans
from planner.answers.plans import plan_answers
from planner.answers.plans.answer_ids import answer_id
from planner.answers.plans.chance_to_be_first import contenders
from planner.answers.plans.competition import prepared
from planner.answers.sensitivities.inputs import Input, changed, inputs_of
from planner.answers.sizing.request import parse_sizing
from planner.documents.answer import Contender
from planner.documents.plan_report import PlanReport
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.error_band import band
from planner.evidence.uncertainty.error_features import error_features
from planner.evidence.uncertainty.posterior import posterior
from planner.evidence.uncertainty.site import Site
from planner.evidence.uncertainty.site_pricing import price
from planner.inputs.requests.parser import parse_request
from planner.running.sweeps.grid import parse_grid
from planner.search.exhaustive import cost_model, search
from planner.search.outcome import Priced
from tests.planner.learning.sites.runs import NAMES, run

PLAN = {
    "tp": 4, "pp": 32, "zero_stage": 0, "recompute": "full", "recompute_num_layers": 3,
    "attention_kernel": "unfused",
}  # fmt: skip
ASKED: dict[str, Any] = {
    "model": "gpt3-175b",
    "cluster": "32x4xv100",
    "training": {
        "seq_length": 1024, "global_batch_size": 4, "precision": "fp16", "tokens": 1e9,
    },
    "plan": PLAN,
}  # fmt: skip


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site of six runs, and one that has forgotten its only run."""
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    storage.learn("empty", (run(NAMES[0]),))
    storage.forget("empty", run(NAMES[0]).id)
    found, _ = storage.learn("lab", tuple(map(run, NAMES)))
    return found


def asked(site: str | None = None, **more: Any) -> PlanRequest:
    document = ASKED | more | ({"site": site} if site else {})
    return parse_request(document, need_plan=document.get("plan") is not None)


def estimated(site: str | None = None) -> PlanReport:
    request = asked(site)
    return plan_answers.estimate(request, request.named_plan).estimate


def test_empty_site_changes_no_number() -> None:
    usual, empty = estimated(), estimated("empty")
    assert [note.text for note in empty.assumptions if note.code == "site"] == [
        "site empty: 0 runs move this time by +0.0 %"
    ]
    changed = usual.model_dump(exclude={"assumptions", "error_band"})
    assert empty.model_dump(exclude={"assumptions", "error_band"}) == changed
    assert (empty.error_band.low_s, empty.error_band.high_s) == (
        usual.error_band.low_s,
        usual.error_band.high_s,
    )


def test_times_are_those_of_the_site() -> None:
    runs = (run(name) for name in NAMES)
    faster = (one.model_copy(update={"step_s": 0.9 * one.step_s}) for one in runs)
    lab, _ = storage.learn("faster", tuple(faster))
    usual, own = estimated(), estimated("faster")
    request = asked()
    features = error_features(
        request.model, request.cluster, request.training, usual.plan, usual.time_parts_s,
        "site:faster",
    )  # fmt: skip
    times = math.exp(lab.belief.mixture(features).mean)
    assert times < 0.97
    assert own.iteration_time_s == pytest.approx(times * usual.iteration_time_s, rel=1e-12)
    assert sum(own.time_parts_s.values()) == pytest.approx(own.iteration_time_s, rel=1e-12)
    assert own.tokens_per_s == pytest.approx(usual.tokens_per_s / times, rel=1e-12)
    assert usual.days is not None
    assert own.days == pytest.approx(usual.days * times, rel=1e-12)
    assert own.mfu == pytest.approx(usual.mfu / times, rel=1e-12)
    # Four of its six logs needed a fifth to a third more than predicted, one as much, one less.
    risks = ("chance_of_running_out", "chance_basis")
    assert own.memory.model_dump(exclude={*risks}) == usual.memory.model_dump(exclude={*risks})
    assert own.memory.chance_of_running_out > usual.memory.chance_of_running_out
    assert "; 6 peaks of site faster put them +" in own.memory.chance_basis
    assert usual.pipeline is not None
    assert own.pipeline is not None
    before, after = (one.pipeline.simulated_iteration_time_s for one in (usual, own))  # type: ignore[union-attr]
    assert before is not None
    assert after == pytest.approx(times * before, rel=1e-9)
    (note,) = [note.text for note in own.assumptions if note.code == "site"]
    moved, memory = note.split("; ")
    assert moved == f"site faster: 6 runs move this time by {100 * (times - 1):+.1f} %"
    assert memory.startswith("of memory, 6 peaks of site faster put them +")


def test_interval_is_the_site_s_and_narrower(lab: Site) -> None:
    usual, own = estimated().error_band, estimated("lab").error_band
    assert own.low_s < estimated("lab").iteration_time_s < own.high_s
    # Of another model than the six that were measured there.
    assert math.log(own.high_s / own.low_s) < 0.5 < math.log(usual.high_s / usual.low_s)
    assert own.rows == usual.rows + 6
    assert own.basis.startswith(
        "80% interval from 6 runs of site lab; no similar source (dense, v100"
    )


def test_learned_runs_are_answered_nearer() -> None:
    """A site's own runs, asked again, come out nearer to what was measured."""
    before, after = [], []
    for name in NAMES:
        one = run(name)
        request = parse_request(one.request | {"site": "lab"}, need_plan=True)
        own = plan_answers.estimate(request, request.named_plan).estimate
        before.append(abs(one.ln))
        after.append(abs(math.log(one.step_s / own.iteration_time_s)))
    assert sum(after) < 0.6 * sum(before)


@pytest.mark.slow
def test_search_ranks_by_the_site_s_times() -> None:
    limits = {"tp": 4, "recompute": "full", "schedule": "1f1b", "memory_risk": 1.0}
    request = asked("lab", plan=None, search={**limits, "framework": "megatron"})
    best = search(*prepared(request), top_k=6).best
    times = cost_model(request).evaluate(Plans.from_rows(best)).iteration_time_s
    assert (times[:-1] <= times[1:]).all()
    assert plan_answers.find(request).plans[0].iteration_time_s == pytest.approx(float(times[0]))


def test_plans_of_several_runtimes_at_once(lab: Site) -> None:
    """Each is corrected by what was learned of its own runtime."""
    rows = [ParallelPlan(**PLAN, runtime=name) for name in ("megatron", "torch", "megatron")]
    usual = cost_model(asked()).evaluate(Plans.from_rows(rows)).iteration_time_s
    found = cost_model(asked("lab")).evaluate(Plans.from_rows(rows))
    assert found.corrected is not None
    assert found.corrected[0] == found.corrected[2] != found.corrected[1]
    alone = [
        float(cost_model(asked("lab")).evaluate(Plans.from_rows([row])).iteration_time_s[0])
        for row in rows
    ]
    assert found.iteration_time_s.tolist() == pytest.approx(alone, rel=1e-12)
    assert found.iteration_time_s == pytest.approx(usual * found.corrected, rel=1e-12)


def test_learning_prices_without_the_site(lab: Site) -> None:
    """Else a site would learn from what it had changed itself."""
    usual = asked()
    assert price(asked("lab"), lab).seconds == price(usual, Site(name="lab")).seconds


def test_sensitivities_keep_the_site() -> None:
    one = next(iter(inputs_of(asked())))
    assert isinstance(one, Input)
    row = Plans.from_rows([asked().named_plan])
    for site in ("lab", None):
        case = changed(asked(site), one, 1.0)
        usual = cost_model(asked(site)).evaluate(row).iteration_time_s
        assert case.model.evaluate(row).iteration_time_s == usual


def test_unknown_site_names_the_nearest() -> None:
    with pytest.raises(RequestError, match=r"/site: no site 'labb'; did you mean lab\?"):
        asked("labb")


def test_mixed_nodes_have_no_site() -> None:
    groups = [{"accelerator": name, "nodes": 1} for name in ("h100-sxm", "a100-sxm-80gb")]
    document = ASKED | {"cluster": {"groups": groups}, "site": "lab", "plan": None}
    with pytest.raises(RequestError, match="/site: a site corrects times on equal nodes only"):
        parse_request(document, mixed_cluster=True)


def test_answer_before_a_run_was_learned_is_another() -> None:
    request, sizing = asked("lab").document(), {"search": {}, "site": "lab"}
    before = answer_id("pl", request), answer_id("si", [{"asked": sizing}])
    plain = answer_id("pl", asked().document())
    storage.forget("lab", run(NAMES[0]).id)
    after = answer_id("pl", request), answer_id("si", [{"asked": sizing}])
    assert before[0] != after[0]
    assert before[1] != after[1]
    storage.learn("lab", (run(NAMES[0]),))
    assert answer_id("pl", asked().document()) == plain
    storage.forget("lab")
    assert answer_id("pl", request) not in (before[0], after[0])


def test_row_of_a_sweep_from_before_a_run_was_learned_is_asked_anew() -> None:
    def key(site: str) -> str:
        base = ASKED | {"site": site}
        return next(parse_grid({"base": base, "axes": {"plan.tp": [4]}}).questions()).key

    before = key("lab"), key("empty")
    storage.forget("lab", run(NAMES[0]).id)
    assert (key("lab") != before[0], key("empty")) == (True, before[1])


def test_sizing_takes_a_site() -> None:
    training = {"seq_length": 1024, "global_batch_size": 256, "tokens": 1e10}
    document = {"model": "gpt2", "training": training, "site": "lab"}
    assert parse_sizing(document).document()["site"] == "lab"


def test_posterior_of_the_published_runs_is_as_it_was(lab: Site) -> None:
    assert lab.correction.scales == posterior().scales
    assert len(lab.correction.runs) == len(posterior().runs) + 6
    assert {run.ln for run in posterior().runs} == {0.0}


def test_interval_lies_around_what_is_answered(lab: Site) -> None:
    features = run(NAMES[0]).features
    found, usual = band(2.0, features, lab), band(2.0, features)
    assert found.low_s < 2.0 < found.high_s
    assert found.high_s < usual.high_s
    assert math.sqrt(usual.low_s * usual.high_s) == pytest.approx(2.0)


def contended(site: str | None) -> tuple[Contender, ...]:
    """Two plans that lean on different things, the second 5 % slower, by the times of a site."""
    plans = [PLAN, PLAN | {"tp": 1, "pp": 128, "recompute_num_layers": 1}]
    request = asked(site)
    priced = []
    for fields, relative_s in zip(plans, (1.0, 1.05), strict=True):
        plan = ParallelPlan(**{**request.named_plan.model_dump(), **fields})
        found = cost_model(request).evaluate(Plans.of(plan))
        unit = float(found.iteration_time_s[0]) / relative_s
        parts = {name: float(seconds[0]) / unit for name, seconds in found.time_parts_s.items()}
        priced.append(Priced(plan, parts))
    return contenders(request, priced)


def test_chances_are_those_of_the_site(lab: Site) -> None:
    usual, empty, own = contended(None), contended("empty"), contended("lab")
    assert [one.chance_best for one in empty] == [one.chance_best for one in usual]
    assert [one.chance_best for one in own] != [one.chance_best for one in usual]
    # What the runs say is in the times once: the wider doubt of anybody's runs is gone, and what is
    # left is mostly the noise of a plan.
    for one, before in zip(own, usual, strict=True):
        assert one.expected_time_s / one.iteration_time_s < (
            before.expected_time_s / before.iteration_time_s
        )
    features = [run.features for run in lab.runs]
    here, anywhere = (
        np.diag(known.shared_covariance(features)) for known in (lab.correction, posterior())
    )
    assert (here < anywhere).all()
    assert here.mean() < anywhere.mean() / 2
