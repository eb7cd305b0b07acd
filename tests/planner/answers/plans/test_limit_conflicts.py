"""Limits that no plan can meet are told by themselves, with the numbers that bind."""

from __future__ import annotations

from typing import Any

import pytest

from planner.answers.plans.emission import NothingFits, emit
from planner.answers.plans.limit_conflicts import limit_conflicts
from planner.answers.plans.plan_answers import find
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request


def asked(
    model: str = "llama-3.1-8b", cluster: str = "2x8xh100-sxm", batch: int = 64, **limits: Any
) -> PlanRequest:
    training = {"seq_length": 4096, "global_batch_size": batch}
    return parse_request(
        {"model": model, "cluster": cluster, "training": training, "search": limits}
    )


CASES: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({"micro_batch_size": 3}, ("micro_batch_size",), "3: must divide the batch of 64"),
    ({"micro_batch_size": 8, "dp": 16}, ("micro_batch_size", "dp"), "(16) must divide"),
    ({"tp": 2, "cp": 1, "pp": 1, "batch": 4}, ("tp", "cp", "pp"), "x dp (8) must divide"),
    ({"dp": [3, 5]}, ("dp",), "dp 3 or 5: must divide the 16 accelerators (1, 2, 4, 8, 16)"),
    ({"tp": 8, "pp": 4}, ("tp", "pp"), "product 32 must divide the 16 accelerators"),
    ({"tp": {"min": 3, "max": 3}}, ("tp",), "32 attention heads do not divide over tp 3"),
    ({"tp": {"max": 0}}, ("tp",), "tp at most 0: the least is 1"),
    ({"micro_batch_size": {"max": 0}}, ("micro_batch_size",), "the least is 1"),
    ({"ep": 4}, ("ep",), "the model has no experts"),
    ({"ep": 3, "model": "mixtral-8x7b"}, ("ep",), "must divide the 8 experts"),
    ({"schedule": "1f1b", "vpp": 3, "pp": 4}, ("schedule", "vpp"), "vpp of 1f1b is 1"),
    ({"schedule": "interleaved-1f1b", "vpp": 1}, ("schedule", "vpp"), "is 2 or more"),
    ({"pp": 1, "vpp": 2}, ("pp", "vpp"), "chunks need stages, pp > 1"),
    ({"pp": 16, "vpp": 3}, ("pp", "vpp"), "stages x chunks are more than 32 layers"),
]


@pytest.mark.parametrize(("limits", "fields", "words"), CASES, ids=lambda value: str(value)[:40])
def test_each_is_found(limits: dict[str, Any], fields: tuple[str, ...], words: str) -> None:
    found = limit_conflicts(asked(**limits))
    assert any(one.fields == fields and words in one.text for one in found), found


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CASES)))
def test_where_one_is_found_no_plan_is_legal(case: int) -> None:
    answer = find(asked(**CASES[case][0]))
    assert answer.best is None
    assert answer.conflicts
    assert answer.counts.costed == 0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b"])
def test_the_degrees_of_a_plan_that_fits_are_none(model: str) -> None:
    answer = find(asked(model))
    assert answer.conflicts == ()
    for plan in (report.plan for report in answer.plans):
        names = ("tp", "cp", "pp", "dp", "ep", "vpp", "schedule", "micro_batch_size")
        assert limit_conflicts(asked(model, **{name: getattr(plan, name) for name in names})) == ()


def test_emit_names_it() -> None:
    with pytest.raises(NothingFits, match="micro_batch_size 3: must divide the batch of 64"):
        emit(asked(micro_batch_size=3))


@pytest.mark.slow
def test_memory_says_what_the_least_plan_needs() -> None:
    answer = find(asked("llama-3.1-405b", "1x8xh100-sxm"))
    assert answer.conflicts == ()
    assert "the plan that needs least takes" in answer.counts.examples["memory"]
    assert "of 79.6 GiB" in answer.counts.examples["memory"]
