"""A framework that cannot build the model: why, who can, and the best of theirs at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.catalog.models import model as preset
from planner import cli, frameworks
from planner.answers.plans.emission import NothingFits, emit
from planner.answers.plans.plan_answers import find
from planner.inputs.requests.parser import parse_request

ASKED: dict[str, Any] = {
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 64},
}


def asked(framework: str, **changes: Any) -> dict[str, Any]:
    """A small model that no Megatron builds, and torch's own script does."""
    dims = preset("llama-3.2-1b").model_dump(mode="json", exclude_none=True)
    return {**ASKED, "model": dims | changes, "search": {"framework": framework}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"norms_per_layer": 4}, "a layer has two norms, before attention and before the MLP"),
        ({"parallel_residual": True}, "it has no parallel attention and MLP"),
        ({"position": "alibi"}, "it has no ALiBi positions"),
    ],
)
def test_a_model_that_it_cannot_build(changes: dict[str, Any], why: str) -> None:
    found = find(parse_request(asked("megatron", **changes)))
    assert found.best is None
    assert found.unbuildable is not None
    assert not found.unbuildable.builds
    assert found.unbuildable.reasons == (why,)
    assert found.unbuildable.sentence.startswith(f"Megatron-LM cannot build it: {why}; ")
    assert "megatron" not in found.unbuildable.able
    assert found.nearest == ()


def test_the_best_of_those_that_can() -> None:
    found = find(parse_request(asked("megatron", embedding_norm=True))).unbuildable
    assert found is not None
    assert "pytorch" in found.able
    assert found.instead is not None
    own = [find(parse_request(asked(name, embedding_norm=True))).best for name in found.able]
    times = [one.iteration_time_s for one in own if one is not None]
    assert found.instead.plan.iteration_time_s == min(times)
    request = parse_request(asked(found.instead.framework, embedding_norm=True))
    assert frameworks.get(found.instead.framework).reasons(request, found.instead.plan.plan) == ()


def test_a_request_that_it_refuses_is_no_model_that_it_cannot_build() -> None:
    document = {**asked("colossalai"), "training": {**ASKED["training"], "gradient_dtype": "fp32"}}
    found = find(parse_request(document)).unbuildable
    assert found is not None
    assert found.builds
    assert "gradients accumulate in the type of the weights" in found.sentence


@pytest.mark.slow
def test_what_a_framework_runs_is_no_case_of_it() -> None:
    assert find(parse_request(asked("megatron"))).unbuildable is None
    starved = {**asked("megatron"), "model": "llama-3.1-405b", "cluster": "1x1xh100-sxm"}
    found = find(parse_request(starved))
    assert (found.best, found.unbuildable) == (None, None)


def test_a_framework_runs_with_its_own_defaults() -> None:
    request = parse_request(asked("colossalai"))
    assert request.training.gradient_dtype == "bf16"
    assert "/training/gradient_dtype" in request.defaulted
    assert find(request).best is not None
    assert parse_request(asked("megatron")).training.gradient_dtype == "fp32"


def test_emit_says_who_can() -> None:
    with pytest.raises(NothingFits, match=r"cannot build it: .*; pytorch can"):
        emit(parse_request(asked("megatron", embedding_norm=True)))


def test_the_screen_plans_for_the_best(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:

    file = tmp_path / "request.json"
    file.write_text(json.dumps(asked("megatron", embedding_norm=True)))
    assert cli.run(["plan", str(file)]) == 4
    out = capsys.readouterr().out
    assert "Megatron-LM cannot build it" in out
    assert "tokens/s" in out
    emitted = next(line for line in out.splitlines() if "planner emit" in line)
    assert "--framework megatron" not in emitted
