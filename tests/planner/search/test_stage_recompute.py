"""Stages that recompute as many layers as their own memory asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.catalog.models import model as preset
from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import TrainingSpec
from cost_models.stages import plan_stages
from planner import frameworks
from planner.answers.plans.plan_answers import estimate, find
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.evidence.uncertainty.site_storage import room_of
from planner.inputs.requests.parser import parse_cluster

FIXED = {"tp": 4, "pp": 8, "cp": 1, "schedule": "1f1b"}


def asked(**search: Any) -> PlanRequest:
    limits = {name: Bounds(values=(value,)) for name, value in FIXED.items()}
    return PlanRequest(
        model=preset("llama-3.1-70b"),
        cluster=parse_cluster("4x8xh100-sxm"),
        training=TrainingSpec(seq_length=8192, global_batch_size=64),
        search=SearchSpec(limits=limits, **search),
    )


def plan(**fields: Any) -> ParallelPlan:
    usual = {"pp": 4, "recompute": "full", "recompute_num_layers": 3}
    return ParallelPlan.model_validate(usual | fields)


def test_each_stage_recomputes_its_own_layers() -> None:
    llama = preset("llama-3.1-8b")
    stages = plan_stages(llama, plan(recompute_layers=(3, 2, 1, 0)))
    assert stages.recomputed.tolist() == [[3.0, 2.0, 1.0, 0.0]]
    chunks = {"vpp": 2, "schedule": "interleaved-1f1b"}
    folded = plan(recompute_layers=(3, 2, 1, 0, 1, 0, 3, 0), **chunks)
    assert plan_stages(llama, folded).recomputed.tolist() == [[3, 2, 1, 0, 1, 0, 3, 0]]


def test_the_same_count_everywhere_is_the_usual_plan() -> None:
    request = asked()
    usual = plan(pp=8, tp=4)
    each = plan(pp=8, tp=4, recompute_layers=(3,) * 8)
    cost = CostModel(request.model, request.cluster, request.training)
    found = cost.evaluate(Plans.from_rows([usual, each]))
    assert found.iteration_time_s[0] == found.iteration_time_s[1]
    assert found.peak_bytes[0] == found.peak_bytes[1]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"recompute_method": "uniform", "recompute_layers": (3, 0, 0, 0)}, "by block"),
        (
            {"recompute": "none", "recompute_num_layers": 0, "recompute_layers": (0,) * 4},
            "by block",
        ),
        ({"recompute_layers": (3, 0)}, "names 2 of 4"),
        ({"recompute_layers": (5, 0, 0, 0)}, "has to be 5"),
        (
            {"vpp": 2, "schedule": "dualpipe", "recompute_layers": (3,) * 8},
            "every stage twice",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**fields)


def test_opened_the_first_stages_recompute_more_and_a_step_is_shorter() -> None:
    framework = "pytorch"
    request = asked(open=("recompute_layers",), framework=framework)
    best, usual = find(request).best, find(asked(framework=framework)).best
    assert best is not None
    assert usual is not None
    counts = best.plan.recompute_layers
    assert len(counts) == 8
    assert counts[0] == max(counts) > counts[-1]
    assert best.iteration_time_s < 0.95 * usual.iteration_time_s
    most = room_of(request).of_plan(best.plan)
    for stage in (0, 3):
        fewer = [n - (k == stage) for k, n in enumerate(counts)]
        fields = {"recompute_layers": tuple(fewer), "recompute_num_layers": max(fewer)}
        other = ParallelPlan.model_validate({**best.plan.model_dump(), **fields})
        cost = CostModel(request.model, request.cluster, request.training)
        held = cost.evaluate(Plans.of(other), all_stages=True).memory
        needed = (held.total_bytes - held.spare_bytes)[:, 0]
        assert np.flatnonzero(needed > most).tolist() == [stage]


def test_who_counts_alike_refuses_with_its_own_reason() -> None:
    request = asked()
    own = plan(pp=8, tp=4, recompute_layers=(3, 3, 3, 2, 2, 1, 0, 0))
    for name in frameworks.FRAMEWORKS:
        framework = frameworks.get(name)
        field = framework.fields["recompute_layers"]
        reasons = [reason.text for reason in framework.reasons(request, own)]
        assert any(field.note and field.note in one for one in reasons) is not field.supported, name


def test_an_estimate_says_so() -> None:
    own = plan(pp=8, tp=4, recompute_layers=(3, 3, 3, 2, 2, 1, 0, 0))
    report = estimate(asked(), own).estimate
    assert report.plan.recompute_layers == (3, 3, 3, 2, 2, 1, 0, 0)
