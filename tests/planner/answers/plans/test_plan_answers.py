"""The answer as a whole: parts add up, nothing fits is an answer, the baseline is honest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.cost_parts import MEMORY_PARTS, TIME_PARTS
from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner.answers.plans.plan_answers import estimate, find
from planner.documents.answer import REASONS, PlanAnswer
from planner.documents.plan_report import PlanReport
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.inputs.requests.parser import parse_request


def ask(
    model: str = "llama-3.1-8b", cluster: str = "2x8xh100-sxm", seq: int = 4096, batch: int = 64,
    tokens: float | None = None, **search_fields: object,
) -> PlanRequest:  # fmt: skip
    return PlanRequest(
        model=preset(model),
        cluster=parse_shorthand(cluster),
        training=TrainingSpec(seq_length=seq, global_batch_size=batch, tokens=tokens),
        search=SearchSpec.model_validate(search_fields),
    )


@pytest.fixture(scope="module")
def answer() -> PlanAnswer:
    return find(ask("mixtral-8x7b", tokens=1e12))


@pytest.fixture(scope="module")
def dense() -> PlanAnswer:
    return find(ask())


def check_report(report: PlanReport, request: PlanRequest) -> None:
    assert set(report.time_parts_s) == set(TIME_PARTS)
    assert sum(report.time_parts_s.values()) == pytest.approx(report.iteration_time_s, rel=1e-12)
    assert len(report.memory.stages) == report.plan.pp
    assert sum(report.layers_per_stage) == request.model.num_layers
    for stage in report.memory.stages:
        assert set(stage.parts) == set(MEMORY_PARTS)
        assert sum(stage.parts.values()) == pytest.approx(stage.total_bytes, rel=1e-12)
    worst = report.memory.stages[report.memory.worst_stage]
    assert worst.total_bytes == report.memory.peak_bytes
    assert worst.total_bytes == max(s.total_bytes for s in report.memory.stages)
    assert report.fits == (report.memory.peak_bytes <= report.memory.capacity_bytes)
    plan, training = report.plan, request.training
    batch = plan.micro_batch_size * report.num_micro_batches * plan.dp
    assert batch == training.global_batch_size
    assert plan.accelerators == request.cluster.accelerators
    tokens = training.seq_length * training.global_batch_size / report.iteration_time_s
    assert report.tokens_per_s == pytest.approx(tokens)
    assert report.hfu >= report.mfu >= report.mfu_causal > 0


class TestAnswer:
    @pytest.mark.slow
    def test_every_report_adds_up(self, answer: PlanAnswer) -> None:
        request = ask("mixtral-8x7b")
        assert answer.best == answer.plans[0]
        for report in (*answer.plans, *answer.pareto):
            check_report(report, request)
            assert report.fits

    @pytest.mark.slow
    def test_days_cost_and_energy_follow_from_the_tokens(self, answer: PlanAnswer) -> None:
        best = answer.best
        assert best is not None
        assert best.days == pytest.approx(1e12 / best.tokens_per_s / 86400)
        group = parse_shorthand("2x8xh100-sxm").groups[0]
        price = group.price_usd_per_accelerator_hour
        assert price is not None
        assert best.days is not None
        assert best.cost_usd == pytest.approx(best.days * 24 * 16 * price)
        assert best.energy_kwh is not None
        assert best.energy_kwh > 0

    @pytest.mark.slow
    def test_without_tokens_there_is_no_cost(self, dense: PlanAnswer) -> None:
        best = dense.best
        assert best is not None
        assert (best.days, best.cost_usd, best.energy_kwh) == (None, None, None)

    @pytest.mark.slow
    def test_closed_sets(self, answer: PlanAnswer) -> None:
        assert set(answer.counts.rejected) <= set(REASONS)
        assert {a.axis for a in answer.space} >= {"tp", "pp", "zero_stage", "micro_batch_size"}

    def test_is_one_json_document(self, answer: PlanAnswer) -> None:
        text = answer.model_dump_json()
        assert PlanAnswer.model_validate(json.loads(text)).model_dump_json() == text

    def test_names_its_profile_and_what_it_leaves_out(self, answer: PlanAnswer) -> None:
        assert (answer.profile.id, answer.profile.kind) == ("h100-sxm", "built in")
        assert answer.best is not None
        codes = {note.code for note in answer.best.not_modelled}
        assert {"batch_ramp_up", "packing", "frozen"} <= codes
        assert {"efficiency", "moe_imbalance"} <= {n.code for n in answer.best.assumptions}

    @pytest.mark.slow
    def test_fallback_profiles_are_marked(self) -> None:
        assert find(ask(cluster="1x8xa40", batch=8)).profile.kind == "fallback"


class TestBaseline:
    @pytest.mark.slow
    def test_is_never_faster_than_the_best(self, answer: PlanAnswer, dense: PlanAnswer) -> None:
        for baseline in (answer.baseline, dense.baseline):
            assert baseline is not None
            assert baseline.speedup >= 1.0
            assert baseline.report.fits

    @pytest.mark.slow
    def test_uses_recompute_only_where_nothing_fits_without(self, dense: PlanAnswer) -> None:
        roomy = dense.baseline
        tight = find(ask("llama-3.1-70b", cluster="1x8xh200-sxm", batch=8)).baseline
        assert roomy is not None
        assert roomy.report.plan.recompute == "none"
        assert tight is None or tight.report.plan.recompute == "full"

    @pytest.mark.slow
    def test_uses_the_memory_that_there_is(self) -> None:
        """Four micro-batches per stage of a pipeline, all of the batch without one."""
        alone = find(ask("gpt2", cluster="1x4xh100-sxm", seq=1024, batch=64)).baseline
        assert alone is not None
        assert alone.report.plan.micro_batch_size == 16
        deep = find(ask("llama-3.1-70b", cluster="4x8xh100-sxm", seq=1024, batch=32)).baseline
        assert deep is not None
        plan = deep.report.plan
        assert plan.pp == 2
        assert plan.micro_batch_size == 2 == 32 // plan.dp // (4 * plan.pp)


class TestNothingFits:
    @pytest.mark.slow
    def test_says_by_how_much_and_what_would_fit(self) -> None:
        answer = find(ask("llama-3.1-405b", "2x8xh100-sxm", 8192, 64))
        assert answer.best is None
        assert answer.plans == ()
        assert answer.counts.rejected["memory"] > 0
        (nearest,) = answer.nearest
        assert nearest.over_by_bytes is not None
        assert nearest.over_by_bytes > 0
        nodes = next(c for c in nearest.changes if "nodes" in c.set)
        larger = ask("llama-3.1-405b", f"{nodes.set['nodes']}x8xh100-sxm", 8192, 64)
        assert estimate(larger, nodes.plan).estimate.fits
        half = ask("llama-3.1-405b", f"{nodes.set['nodes'] // 2}x8xh100-sxm", 8192, 64)
        assert find(half).best is None

    @pytest.mark.slow
    def test_offload_is_offered_where_it_helps(self) -> None:
        """On two nodes; on one it is searched at once."""
        answer = find(ask("llama-3.1-8b", "2x1xa40", 2048, 2))
        assert answer.best is None
        changes = [c for n in answer.nearest for c in n.changes if "offload_optimizer" in c.set]
        assert changes
        assert changes[0].plan.offload_optimizer
        request = ask("llama-3.1-8b", "2x1xa40", 2048, 2)
        assert estimate(request, changes[0].plan).estimate.fits

    def test_no_legal_plan_at_all(self) -> None:
        answer = find(ask(limits={"tp": Bounds(values=(3,))}))
        assert answer.best is None
        assert answer.counts.costed == 0
        assert answer.counts.rejected["world_size"] > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"pp": 4, "dp": 4, "stage_layers": (7, 9, 9, 7)},
        {"tp": 2, "cp": 2, "dp": 4, "cp_kind": "a2a", "sequence_parallel": True},
        {"tp": 2, "cp": 2, "dp": 4, "cp_kind": "all_gather"},
        {"dp": 16, "dp_shard": 8, "zero_stage": 3},
        {"pp": 2, "dp": 8, "zero_stage": 3, "runtime": "torch", "reshard_after_forward": False},
        {"dp": 16, "offload_optimizer": True},
        {"dp": 16, "offload_activations": True},
        {"tp": 4, "dp": 4, "attention_kernel": "unfused", "cross_entropy": "unfused"},
        {"tp": 4, "dp": 4, "sequence_parallel": True, "overlap_tp": True},
        {"pp": 4, "dp": 4, "schedule": "gpipe"},
        {"pp": 4, "tp": 2, "dp": 2, "rank_order": "tp-cp-ep-pp-dp"},
        {"dp": 16, "recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 4},
    ],
)
def test_every_field_can_be_estimated(fields: dict[str, object]) -> None:
    request = ask()
    plan = ParallelPlan.model_validate(fields)
    check_report(estimate(request, plan).estimate, request)


class TestLaunch:
    @pytest.mark.slow
    def test_a_schedule_that_none_runs_heads_nothing(self) -> None:
        limits = {"pp": Bounds(values=(4,)), "schedule": Bounds(values=("zb-h2", "1f1b"))}
        found = find(ask("llama-3.1-8b", "4x8xh100-sxm", limits=limits, top_k=1))
        assert found.best is not None
        assert found.launch is not None
        assert found.best.plan.schedule == "1f1b"
        assert (found.launch.plan, found.launch.slower_by) == (found.best, 0.0)

    @pytest.mark.slow
    def test_none_where_nothing_runs_it(self) -> None:
        limits = {"pp": Bounds(values=(4,)), "schedule": Bounds(values=("v-half",))}
        assert find(ask("llama-3.1-8b", "4x8xh100-sxm", limits=limits)).launch is None


@pytest.mark.slow
def test_a_profile_says_what_it_changes() -> None:
    """Planned with another profile: the usual best plan beside it, both priced by the new one."""
    document = {
        "model": "llama-3.1-8b",
        "cluster": "2x8xh100-sxm",
        "training": {"seq_length": 8192, "global_batch_size": 128},
        "search": {"framework": "megatron"},
    }
    usual = find(parse_request(document))
    assert usual.replanned is None
    other = find(parse_request({**document, "profile": "b200-sxm"}))
    assert other.replanned is not None
    assert other.best is not None
    assert usual.best is not None
    assert other.replanned.usual_profile == "h100-sxm"
    assert other.replanned.usual_time_s == pytest.approx(usual.best.iteration_time_s)
    assert other.replanned.plan.plan == usual.best.plan
    assert other.replanned.slower_by >= 0.0
    assert bool(other.replanned.differences) == (other.best.plan != usual.best.plan)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        ({"runtime": "megatron", "zero_stage": 1}, "whole matrices of its own"),
        ({"runtime": "torch", "zero_stage": 3}, "gathers and updates all"),
        ({"zero_stage": 0}, "each rank updates all"),
    ],
)
def test_what_muon_is_taken_to_do_is_said(plan: dict[str, Any], text: str) -> None:
    asked = {
        "model": "llama-3.1-8b",
        "cluster": "1x8xh100-sxm",
        "training": {"seq_length": 2048, "global_batch_size": 64, "optimizer": "muon"},
        "plan": {"dp": 8, **plan},
    }
    request = parse_request(asked)
    report = estimate(request, request.named_plan).estimate
    (note,) = [note for note in report.assumptions if note.code == "optimizer"]
    assert text in note.text


@pytest.mark.slow
def test_samples_of_many_lengths_may_be_assigned_to_ranks() -> None:
    """Opened, the search takes it where long samples are few, and says how many ranks they get."""
    lengths = (1000,) * 15 + (32768,)
    request = PlanRequest(
        model=preset("llama-3.1-8b"),
        cluster=parse_shorthand("2x8xh100-sxm"),
        training=TrainingSpec(seq_length=32768, global_batch_size=256, sample_lengths=lengths),
        search=SearchSpec(
            limits={name: Bounds(values=(n,)) for name, n in (("tp", 1), ("cp", 8), ("pp", 1))},
            open=("dynamic_cp",),
        ),
    )
    best = find(request).best
    assert best is not None
    assert best.plan.dynamic_cp
    (note,) = [note.text for note in best.assumptions if note.code == "dynamic_cp"]
    assert "(94% on 1, 6% on 8)" in note
    whole = best.plan.model_copy(update={"dynamic_cp": False})
    assert estimate(request, whole).estimate.iteration_time_s > best.iteration_time_s
    told = find(request.for_framework("torchtitan"))
    assert told.best is None or not told.best.plan.dynamic_cp


@pytest.mark.slow
def test_a_change_that_leaves_too_many_plans_is_not_offered() -> None:
    """Offloaded activations try every count of recomputed layers: too many of 3,000."""
    model = preset("llama-3.1-8b").model_copy(update={"num_layers": 3_000})
    request = parse_request(
        {
            "model": model.model_dump(mode="json"),
            "cluster": "2x8xh100-sxm",
            "training": {"seq_length": 4096, "global_batch_size": 16},
            "search": {"framework": "megatron", "micro_batch_size": 1},
        }
    )
    found = find(request)
    assert found.best is None
    changes = [change for near in found.nearest for change in near.changes]
    assert not any("offload_activations" in change.set for change in changes)
