"""A plan given by hand takes what it leaves out from the framework that it is given for."""

from __future__ import annotations

from typing import Any

import pytest

import planner
from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_request
from tests.fixtures.frameworks import NAMES

CLUSTERS = {"mindspeed": "2x8xascend-910b4", "primus": "2x8xmi300x"}
MODELS = {"unsloth": "llama-3.2-1b"}  # there are no shards of larger ones
# Degrees of a plan with tensor and pipeline parallelism, as far as the framework has these.
TRAINERS = ("accelerate", "axolotl", "llama-factory", "trl", "unsloth")
DEGREES: dict[str, dict[str, Any]] = {
    name: {"dp": 16} if name in TRAINERS else {"tp": 4, "pp": 2, "dp": 2} for name in NAMES
} | {name: {"tp": 4, "dp": 4} for name in ("maxtext", "torchtune")}
TUNERS = (*TRAINERS, "megatron-bridge", "torchtune")


def document(name: str, plan: dict[str, Any], **training: Any) -> dict[str, Any]:
    """A request for a plan of one framework."""
    return {
        "model": MODELS.get(name, "llama-3.1-8b"),
        "cluster": CLUSTERS.get(name, "2x8xh100-sxm"),
        "training": {"seq_length": 2048, "global_batch_size": 32, **training},
        "search": {"framework": name},
        "plan": plan,
    }


@pytest.mark.parametrize("name", NAMES)
def test_degrees_are_enough_to_estimate_and_to_emit(name: str) -> None:
    asked = document(name, DEGREES[name])
    assert planner.estimate(asked).estimate.iteration_time_s > 0
    assert planner.emit(asked).framework == name


@pytest.mark.parametrize("name", NAMES)
def test_one_node_without_a_pipeline_is_enough(name: str) -> None:
    plan = {} if name in TRAINERS else {"tp": 8}
    assert planner.emit(document(name, plan)).framework == name


@pytest.mark.parametrize("name", NAMES)
def test_full_recompute_needs_no_other_field(name: str) -> None:
    assert planner.emit(document(name, {**DEGREES[name], "recompute": "full"})).framework == name


@pytest.mark.parametrize("name", TUNERS)
def test_a_rank_is_enough_for_adapters(name: str) -> None:
    plan = {"dp": 16}
    assert planner.emit(document(name, plan, lora_rank=16)).framework == name


@pytest.mark.parametrize("name", NAMES)
def test_what_is_given_stays(name: str) -> None:
    """Even a value that the framework refuses."""
    framework = frameworks.get(name)
    given = {
        "cross_entropy": "in_place", "overlap_grad_reduce": False, "attention_kernel": "unfused",
        "zero_stage": 2, "sequence_parallel": False,
    }  # fmt: skip
    plan = parse_request(document(name, {**DEGREES[name], **given})).named_plan
    assert {field: getattr(plan, field) for field in given} == given
    assert plan.runtime == framework.runtime


def test_the_answer_says_what_was_taken() -> None:
    answer = planner.estimate(document("deepspeed", {"tp": 8, "recompute": "full"}))
    (said,) = [one.text for one in answer.estimate.assumptions if one.code == "framework_defaults"]
    assert said == (
        "left out, and as DeepSpeed has it: recompute_method uniform, recompute_num_layers 1, "
        "cross_entropy unfused, overlap_grad_reduce false, overlap_param_gather false"
    )


def test_nothing_is_taken_without_a_framework() -> None:
    asked = document("", {"tp": 8})
    del asked["search"]
    assert parse_request(asked).named_plan == ParallelPlan(tp=8, dp=2)
    asked["plan"]["recompute"] = "full"
    with pytest.raises(RequestError, match="recompute_num_layers"):
        parse_request(asked)


def test_a_wrong_value_is_refused_at_its_place() -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(document("nanotron", {"tp": "many", "pp": True}))
    assert [one.pointer for one in caught.value.problems] == ["/plan/tp", "/plan/pp"]
