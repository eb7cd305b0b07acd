"""Plans' pipelines: the simulator and the closed form tell the same time where both are exact."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.schedules.simulate import Links, simulate
from cost_models.spec import ModelSpec, TrainingSpec
from planner.answers.plans.pipeline import simulated_s
from planner.answers.plans.plan_answers import find
from planner.documents.request import PlanRequest, SearchSpec
from planner.search.exhaustive import search

# Equal stages but for the ends: a small vocabulary keeps embedding and head light.
MODEL = ModelSpec(
    num_layers=32, hidden_size=4096, num_attention_heads=32, vocab_size=128, name="even"
)


def plan_of(name: str, pp: int = 4, micro_batches: int = 16) -> ParallelPlan:
    counts = SCHEDULES[name].chunk_counts
    return ParallelPlan(pp=pp, vpp=counts[0] if counts else 2, schedule=name, overlap_p2p=True)  # type: ignore[arg-type]


def cost_model(batch: int = 16, model: ModelSpec = MODEL) -> CostModel:
    training = TrainingSpec(seq_length=8192, global_batch_size=batch)
    return CostModel(model, parse_shorthand("1x4xh200-sxm"), training)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_stage_times_are_those_of_the_closed_form(name: str) -> None:
    """The busiest rank works as long per micro-batch as the step's own parts say."""
    model, plan = cost_model(), plan_of(name)
    estimates = model.evaluate(Plans.from_rows([plan]))
    times, _ = model.stage_times(plan)
    schedule = SCHEDULES[name]
    visits = len(schedule.route(plan.pp, plan.vpp, 0)) / plan.pp
    work = times.work_s * visits / plan.vpp
    parts = ("forward", "backward", "recompute", "tp_comm", "cp_comm", "ep_comm")
    expected = sum(float(estimates.time_parts_s[p][0]) for p in parts) / 16
    assert work.max() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", sorted(n for n, s in SCHEDULES.items() if s.synchronous))
def test_simulated_waiting_is_near_the_closed_form(name: str) -> None:
    """With nearly equal stages and free messages the two differ by little of the bubble."""
    model, plan = cost_model(), plan_of(name)
    schedule = SCHEDULES[name]
    closed = float(model.evaluate(Plans.from_rows([plan])).time_parts_s["bubble"][0])
    times, _ = model.stage_times(plan)
    visits = len(schedule.route(plan.pp, plan.vpp, 0)) / plan.pp
    busy = (times.work_s * visits / plan.vpp).max()
    free = simulate(schedule, plan.pp, plan.vpp, 16, times, Links())
    waited = free.makespan_s - 16 * busy
    work = 16 * busy
    if schedule.extra_s is None:
        # Scaled from a small simulation at rounded costs: an estimate for the search.
        assert waited == pytest.approx(closed, abs=0.05 * work)
    else:
        assert waited == pytest.approx(closed, abs=0.01 * work)


@pytest.mark.parametrize(
    "layers",
    [
        (8, 2, 2, 8, 2, 2, 2, 6),
        (2, 4, 8, 2, 6, 6, 2, 2),
        (1, 7, 7, 1, 7, 1, 1, 7),
    ],
)
@pytest.mark.parametrize("name", ["interleaved-1f1b", "interleaved-zero-bubble"])
def test_chunks_that_differ_wait_for_each_other(name: str, layers: tuple[int, ...]) -> None:
    """What a step waits with uneven virtual stages, long or short, is simulated, not a formula."""
    for batch in (8, 40):
        model = cost_model(batch)
        plan = plan_of(name).model_copy(update={"stage_layers": layers})
        even = float(model.evaluate(Plans.from_rows([plan_of(name)])).time_parts_s["bubble"][0])
        estimates = model.evaluate(Plans.from_rows([plan, plan_of(name)]))
        waits, as_before = estimates.time_parts_s["bubble"].tolist()
        assert as_before == pytest.approx(even)
        times, _ = model.stage_times(plan)
        whole = simulate(SCHEDULES[name], 4, 2, batch, times, Links()).makespan_s
        busy = batch * times.work_s.max()
        assert waits == pytest.approx(whole - busy, abs=0.01 * busy)


def test_a_long_step_goes_on_at_its_pace() -> None:
    """Simulated in part and continued: what the whole order takes."""
    model, plan = cost_model(batch=128), plan_of("1f1b")
    times, links = model.stage_times(plan)
    whole = simulate(SCHEDULES["1f1b"], 4, 1, 128, times, links).makespan_s
    assert simulated_s(plan, 128, times, links) == pytest.approx(whole, rel=1e-9)


class TestSearch:
    def ask(self, **fields: object) -> PlanRequest:
        return PlanRequest(
            model=preset("llama-3.1-70b"),
            cluster=parse_shorthand("8x8xh100-sxm"),
            training=TrainingSpec(seq_length=4096, global_batch_size=512),
            search=SearchSpec.model_validate(fields),
        )

    @pytest.mark.slow
    def test_every_synchronous_schedule_is_in_the_space(self) -> None:
        names = set()
        for name in SCHEDULES:
            limits = {"schedule": {"values": (name,)}, "pp": {"values": (4, 8)}}
            outcome = search(self.ask(limits=limits, top_k=1))
            assert outcome.counts is not None
            if outcome.counts.costed:
                names.add(name)
        assert names == set(SCHEDULES)  # asynchronous ones too, when asked for

    @pytest.mark.slow
    def test_asynchronous_schedules_only_when_asked_for(self) -> None:
        best = search(self.ask(limits={"pp": {"min": 2}}, top_k=200)).best
        assert all(SCHEDULES[plan.schedule].synchronous for plan in best)
        asked = {"schedule": {"values": ("pipedream-2bw",)}, "pp": {"min": 2}}
        answer = find(self.ask(limits=asked))
        assert answer.best is not None
        assert answer.best.pipeline is not None
        assert "one update old" in answer.best.pipeline.staleness

    @pytest.mark.slow
    def test_the_answer_says_which_time_it_shows(self) -> None:
        answer = find(self.ask(limits={"pp": {"min": 4}}))
        for report in answer.plans:
            assert report.pipeline is not None
            assert report.pipeline.schedule == report.plan.schedule
            simulated = report.pipeline.simulated_iteration_time_s
            assert simulated is not None
            assert simulated == pytest.approx(report.iteration_time_s, rel=0.05)

    @pytest.mark.slow
    def test_uneven_layouts_head_by_the_time_they_take(self) -> None:
        """Dense first layers and a heavy last stage: whole layers fit the ranks badly."""
        request = PlanRequest(
            model=preset("deepseek-v3"),
            cluster=parse_shorthand("32x8xb200-sxm"),
            training=TrainingSpec(seq_length=4096, global_batch_size=4096),
            search=SearchSpec.model_validate({"limits": {"vpp": {"min": 2}}}),
        )
        answer = find(request)
        assert any(len(set(report.plan.stage_layers)) > 1 for report in answer.plans)
        for report in answer.plans:
            assert report.pipeline is not None
            simulated = report.pipeline.simulated_iteration_time_s
            assert simulated == pytest.approx(report.iteration_time_s, rel=0.03)

    def test_two_directions_hold_two_copies(self) -> None:
        model = cost_model()
        one = model.evaluate(Plans.from_rows([plan_of("1f1b")]), all_stages=True).memory.parts
        two = model.evaluate(Plans.from_rows([plan_of("dualpipe")]), all_stages=True).memory.parts
        for name in ("weights", "optimizer"):
            assert np.allclose(two[name][1], 2 * one[name][1])
        # fp32 beside half-precision weights; the placeholders of gradients are shared.
        assert np.allclose(two["gradients"][1] - one["gradients"][1], 2 * one["weights"][1])


def test_a_step_whose_cut_is_no_legal_step_is_simulated_too() -> None:
    """136 micro-batches on 16 stages go in 8 rounds of 17; 56, a few rounds of it, do not."""
    schedule = SCHEDULES["interleaved-zero-bubble"]
    assert not schedule.allowed(16, 2, 136)
    assert schedule.allowed(16, 2, 56)
    model = cost_model(batch=136)
    plan = plan_of(schedule.id, pp=16)
    times, links = model.stage_times(plan)
    whole = simulate(schedule, 16, 2, 136, times, links).makespan_s
    assert simulated_s(plan, 136, times, links) == pytest.approx(whole, rel=0.02)
