"""What the search held fixed, and what another value there would save."""

from __future__ import annotations

import pytest

from planner.answers.plans.plan_answers import estimate, find
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request

SMALL = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 8192, "global_batch_size": 64},
}


def asked(**changed: object) -> PlanRequest:
    return parse_request({**SMALL, "search": {"framework": "megatron"}, **changed})


def test_each_saving_is_that_of_the_best_plan_with_this_value_alone() -> None:
    request = asked()
    answer = find(request)
    assert answer.best is not None
    values = [one for one in answer.held_fixed if one.field not in ("precision", "schedule")]
    assert len(values) >= 2
    for one in values:
        plan = answer.best.plan.model_copy(update={one.field: one.other})
        seconds = estimate(request, plan).estimate.iteration_time_s
        assert 1.0 - seconds / answer.best.iteration_time_s == pytest.approx(one.saves)
        assert getattr(answer.best.plan, one.field) == one.value != one.other
    assert list(answer.held_fixed) == sorted(answer.held_fixed, key=lambda one: -one.saves)


@pytest.mark.slow
def test_fp8_is_offered_where_the_hardware_has_it() -> None:
    offered = {one.field: one for one in find(asked()).held_fixed}
    assert (offered["precision"].value, offered["precision"].other) == ("bf16", "fp8")
    assert 0.1 < offered["precision"].saves < 0.5
    older = find(asked(cluster="1x8xa100-sxm-80gb")).held_fixed
    assert older
    assert "precision" not in {one.field for one in older}


@pytest.mark.slow
def test_a_schedule_that_the_framework_does_not_run_says_who_does() -> None:
    limits = {"pp": {"min": 4, "max": 4}, "micro_batch_size": {"values": [1]}}
    request = asked(search={"framework": "megatron", "limits": limits})
    held = {one.field: one for one in find(request).held_fixed}
    assert held["schedule"].value in ("1f1b", "interleaved-1f1b")
    assert held["schedule"].saves > 0
    assert "Megatron-LM" not in held["schedule"].runs_in


def test_what_was_searched_or_bound_by_the_schedule_limit_is_not_held() -> None:
    request = asked(
        search={
            "framework": "megatron",
            "limits": {"schedule": {"values": ["1f1b"]}},
            "open": ["offload_optimizer"],
        }
    )
    fields = {one.field for one in find(request).held_fixed}
    assert not fields & {"schedule", "offload_optimizer", "tp", "overlap_tp", "runtime"}
