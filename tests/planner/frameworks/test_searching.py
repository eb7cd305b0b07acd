"""A search for a framework finds what the framework accepts, and only that."""

from __future__ import annotations

import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.spec import TrainingSpec
from planner import frameworks
from planner.answers.plans import plan_answers
from planner.documents.request import PlanRequest, SearchSpec
from planner.frameworks.accelerate.peft import NAMES
from tests.fixtures.frameworks.torchtune import KEPT

# Where it runs, if not on NVIDIA's.
DEVICES = {"mindspeed": "ascend-910b3", "primus": "mi300x", "maxtext": "tpu-v5p"}
# What the framework trains, and in which types, where the usual is refused.
TYPES = {
    "colossalai": {"gradient_dtype": "bf16", "gradient_reduce_dtype": "bf16"},
    **{
        name: {"gradient_reduce_dtype": "bf16"}
        for name in ("maxtext", "llama-factory", "trl")
    },
    "axolotl": KEPT,
    "nanotron": KEPT,
    "torchtune": KEPT,
    # Which has no shards: adapters alone are small enough.
    "unsloth": {"lora_rank": 16, "lora_targets": NAMES},
}  # fmt: skip


def ask(name: str, model: str, share: float) -> PlanRequest:
    """A request on a share of the memory: ample, or so little that layers are computed again."""
    cluster = parse_shorthand("2x8x" + DEVICES.get(name, "h100-sxm"))
    (group,) = cluster.groups
    chip = group.accelerator
    chip = chip.model_copy(update={"memory_bytes": share * chip.memory_bytes})
    groups = (group.model_copy(update={"accelerator": chip}),)
    return PlanRequest(
        model=preset(model),
        cluster=cluster.model_copy(update={"groups": groups}),
        training=TrainingSpec(seq_length=8192, global_batch_size=64, **TYPES.get(name, {})),
        search=SearchSpec(framework=name, top_k=20),
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("share", [1.0, pytest.param(0.45, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", frameworks.FRAMEWORKS)
def test_every_plan_of_a_ranking_is_written(name: str, share: float) -> None:
    request = ask(name, "llama-3.1-8b", share)
    answer = plan_answers.find(request)
    framework = frameworks.get(name)
    assert answer.best is not None
    for one in answer.plans:
        assert framework.reasons(request, one.plan) == ()
    made = framework.write(request, answer.best.plan)
    assert made.framework == name
    assert answer.launch is not None
    assert (answer.launch.framework, answer.launch.plan) == (name, answer.best)


def test_layers_that_a_framework_deals_out_itself_are_searched() -> None:
    request = ask("nanotron", "llama-3.1-8b", 0.45)
    answer = plan_answers.find(request)
    pipelines = [one.plan for one in answer.plans if one.plan.pp > 1]
    assert pipelines
    assert {plan.stage_layers for plan in pipelines} != {()}
