"""Layers by virtual stage: written, read back, and taken by Megatron's own parser."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.megatron.layout import layout
from tests.fixtures.frameworks import mindspeed, pytorch, torchtitan
from tests.fixtures.frameworks.megatron import CASES
from tests.fixtures.launches import INTERLEAVED, MODELS, launch
from tests.planner.frameworks.test_megatron_core import ask

ALONE = (0, 3, 2, 2, 3, 2, 4, 0)  # embedding and head by themselves, uneven chunks between
FILLED = (1, 3, 2, 2, 3, 2, 2, 1)
Case = tuple[PlanRequest, ParallelPlan]


def laid_out(case: Case, layers: tuple[int, ...], **update: Any) -> Case:
    request, plan = case
    ends = {"first_stage_layers": 0, "last_stage_layers": 0, "stage_layers": layers}
    fields = {**plan.model_dump(), **ends, **update}
    return request, ParallelPlan.model_validate(fields)


LOOP = {"pp": 4, "vpp": 2, "schedule": "interleaved-1f1b"}
WAVE = {"pp": 4, "vpp": 2, "schedule": "zb-v"}
CASES_OF: dict[str, Case] = {
    "megatron": laid_out(launch(**INTERLEAVED), ALONE),
    "mindspeed": mindspeed.on_ascend(laid_out(launch(**INTERLEAVED), ALONE)),
    "torchtitan": laid_out(torchtitan.CASES["llama-interleaved-replicated"], ALONE, **LOOP, dp=4),
    "pytorch": laid_out(pytorch.CASES["llama-interleaved-replicated"], FILLED, **LOOP, dp=4),
    "pytorch zb-v": laid_out(pytorch.CASES["llama-zb-v"], FILLED, **WAVE),
}


@pytest.mark.parametrize("name", CASES_OF)
def test_what_is_written_reads_back(name: str) -> None:
    framework = frameworks.get(name.partition(" ")[0])
    request, plan = CASES_OF[name]
    assert framework.reasons(request, plan) == ()
    assert framework.read
    made = framework.write(request, plan)
    reading = framework.read(dict(made.files), None)
    assert reading.plan.stage_layers == plan.stage_layers
    assert (reading.plan.pp, reading.plan.vpp) == (plan.pp, plan.vpp)


def test_a_recipe_of_the_bridge_has_the_same_layout() -> None:
    request, plan = CASES_OF["megatron"]
    made = frameworks.get("megatron-bridge").write(request, plan)
    text = "E|ttt|tt|tt|ttt|tt|tttt|L"
    assert [name for name, content in dict(made.files).items() if text in content]
    assert [flag.value for flag in made.flags if "layout" in flag.name] == [f'"{text}"']


def changed(model: str, **update: Any) -> ModelSpec:
    return ModelSpec(**{**MODELS[model].model_dump(), **update})


@pytest.mark.exhaustive
def test_megatrons_own_parser_takes_them() -> None:
    """With and without layers beside the embedding and the loss, and with prediction layers."""
    llama, deepseek = changed("llama", num_layers=16), CASES["deepseek-v3"]
    layers = deepseek[0].model.num_layers
    cases = [
        laid_out(launch(llama, **INTERLEAVED), ALONE),
        laid_out(launch(llama, **INTERLEAVED), FILLED),
        laid_out(launch(llama, pp=4), (0, 8, 8, 0)),
        laid_out(deepseek, (layers, 0)),
        laid_out(deepseek, (0, layers)),
    ]
    assert layout(*(part.model if part is cases[3][0] else part for part in cases[3])) == (
        "E" + "t" * layers + "|mL"
    )
    answers = ask(cases)
    assert [answer["error"] for answer in answers] == [None] * len(cases)
    assert all("pipeline_model_parallel_layout" in answer["fields"] for answer in answers)
