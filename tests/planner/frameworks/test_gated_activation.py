"""gpt-oss: a gate by a sigmoid of 1.702 times itself, clamped at 7, beside a half plus one."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.catalog.models import model as preset
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.answers.plans.plan_answers import find
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle
from planner.huggingface import model_from_config
from planner.huggingface.export.exporter import config_of
from planner.huggingface.numerics import keys_of
from planner.inputs.requests.parser import parse_request

NAMES = ("activation", "gate_limit", "gate_offset")
GATE = ("quick_gelu", 7.0, 1.0)
# Framework -> its cluster, and what its files say of the gate, in this order.
WRITTEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "megatron": (
        "1x8xb200",
        ("--quick-geglu ", "--glu-linear-offset 1.0", "--activation-func-clamp-value 7.0"),
    ),
    "megatron-bridge": (
        "1x8xb200",
        (
            "fused_bias_geglu import quick_gelu",
            "gated_linear_unit=True",
            "activation_func=quick_gelu",
            "glu_linear_offset=1.0",
            "activation_func_clamp_value=7.0",
        ),
    ),
    "slime": (
        "1x8xb200",
        ("--quick-geglu ", "--glu-linear-offset 1.0", "--activation-func-clamp-value 7.0"),
    ),
    "primus": (
        "1x8xmi300x",
        ("quick_geglu: true", "activation_func_clamp_value: 7.0", "swiglu: false"),
    ),
    "torchtitan": ("1x8xb200", ()),
    "accelerate": ("1x8xb200", ()),
}


def written(name: str, cluster: str) -> tuple[PlanRequest, Bundle]:
    request = parse_request(
        {
            "model": "gpt-oss-20b",
            "cluster": cluster,
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "search": {"framework": name},
        }
    )
    report = find(request).best
    assert report is not None
    return request, frameworks.get(name).write(request, report.plan)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_files_train_the_gate_of_gpt_oss_or_say_that_they_do_not(name: str) -> None:
    cluster, said = WRITTEN[name]
    request, made = written(name, cluster)
    text = "\n".join(made.files.values())
    assert [one for one in said if one not in text] == []
    assert "--swiglu" not in text
    assert "functional.silu" not in text
    lost = " ".join(note.text for note in made.notes if note.code == "cannot_be_said")
    assert not any(field in lost for field in NAMES)
    framework = frameworks.get(name)
    assert framework.read is not None
    read = framework.read(made.files, None).model.numerics
    assert tuple(getattr(read, field) for field in NAMES) == GATE
    assert request.model.numerics.gate_limit == 7.0


def test_yarn_is_not_said_to_have_no_option() -> None:
    """Megatron-Core 0.19 has --position-embedding-type yarn."""
    _, made = written("megatron", "1x8xb200")
    (lost,) = (note.text for note in made.notes if note.code == "cannot_be_said")
    assert "no option" not in lost
    assert "since core 0.19 --position-embedding-type yarn" in lost


def test_another_gate_of_the_same_kind_is_said_as_it_is() -> None:
    request, _ = written("megatron", "1x8xb200")
    numerics = request.model.numerics.model_copy(
        update={"gate_limit": None, "gate_offset": None, "rope_scaling": None}
    )
    model = request.model.model_copy(update={"numerics": numerics})
    changed = request.model_copy(update={"model": model})
    plan = find(changed).best
    assert plan is not None
    text = "\n".join(frameworks.get("megatron").write(changed, plan.plan).files.values())
    assert "--quick-geglu" in text
    assert "--glu-linear-offset" not in text
    assert "--activation-func-clamp-value" not in text


def whole(model: ModelSpec) -> dict[str, Any]:
    """The config.json of a model."""
    config = config_of(model)
    assert config is not None
    return config | keys_of(model, config)


def test_the_configuration_says_what_its_family_does_not_do_anyway() -> None:
    model = preset("gpt-oss-20b")
    config = whole(model)
    assert "hidden_act" not in config
    assert "swiglu_limit" not in config
    read = model_from_config(config | {"hidden_act": "silu"}, "custom").model
    assert read.numerics == model.numerics
    other = model_from_config(config | {"swiglu_limit": 5.0}, "custom").model
    assert (other.numerics.gate_limit, other.numerics.gate_offset) == (5.0, 1.0)
    assert whole(other)["swiglu_limit"] == 5.0
