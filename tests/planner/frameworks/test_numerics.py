"""What a config.json states is written and read back, or said to have no option."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models.catalog import models as presets
from cost_models.catalog.hardware import cluster
from cost_models.layers import layers_of
from cost_models.numerics import Numerics, RopeScaling
from cost_models.plans import ParallelPlan, Plans, code
from cost_models.spec import ModelSpec, TrainingSpec
from planner import frameworks
from planner.constraints import RULES, Context
from planner.documents.request import PlanRequest
from planner.frameworks.base import Bundle, Framework
from planner.frameworks.supported import CHOICES
from planner.huggingface import model_from_config
from tests.fixtures import alike
from tests.fixtures.frameworks import NAMES
from tests.fixtures.frameworks.mindspeed import ASCEND
from tests.fixtures.frameworks.primus import INSTINCT

FILE = Path(__file__).parents[2] / "fixtures" / "configurations" / "stated.jsonl"
CONFIGS = [json.loads(line) for line in FILE.read_text().splitlines()]
WINDOWS = ("sliding_window", "full_attention_period")
GRADIENTS = ("gradient_dtype", "gradient_reduce_dtype")
DEVICES = {"mindspeed": ASCEND, "primus": INSTINCT}
READ = [name for name in NAMES if frameworks.get(name).reads_back]


@cache
def models() -> tuple[ModelSpec, ...]:
    """Every preset and real config."""
    return (
        *(entry.spec for entry in presets.models()),
        *(model_from_config(one["config"], one["id"]).model for one in CONFIGS),
    )


@cache
def one_of_each() -> tuple[ModelSpec, ...]:
    """Of models that differ only in sizes, and so are written by the same options, the first."""
    found: dict[Any, ModelSpec] = {}
    for model in models():
        found.setdefault(alike.kind(model), model)
    return tuple(found.values())


@cache
def choices(runtime: str) -> Plans:
    """Plans on eight accelerators with data parallelism alone, in all their variants."""
    rows = np.array(list(product(*CHOICES.values())))
    fields = dict(zip(CHOICES, rows.T, strict=True))
    return Plans.build(runtime=code("runtime", runtime), dp=8, **fields)


def asked(framework: Framework, model: ModelSpec) -> tuple[PlanRequest, ParallelPlan] | None:
    """A plan on eight accelerators that the framework runs, by data parallelism alone."""
    if framework.unsaid(model):
        return None
    plans = choices(framework.runtime)
    alike = (dict.fromkeys(GRADIENTS, dtype) for dtype in ("fp32", "bf16"))
    for kept in (*alike, framework.training):
        training = TrainingSpec(seq_length=512, global_batch_size=8).model_copy(update=kept)
        node = cluster("1x8xh100-sxm")
        if framework.name in DEVICES:
            group = node.groups[0].model_copy(update={"accelerator": DEVICES[framework.name]})
            node = node.model_copy(update={"groups": (group,)})
        context = Context(model, node, training)
        legal = np.ones(len(plans), dtype=np.bool_)
        for rule in (*RULES, *framework.rules):
            legal = legal & rule.legal(context, plans)
            if not legal.any():
                break
        else:
            plan = plans.row(int(legal.argmax()))
            request = PlanRequest(model=model, cluster=context.cluster, training=training)
            return request, plan
    return None


def lost(bundle: Bundle) -> set[str]:
    """Fields that the bundle says it has no option for."""
    notes = [note.text for note in bundle.notes if note.code == "cannot_be_said"]
    return {part.split()[0] for note in notes for part in note.split(": ", 1)[1].split("; ")}


def shape(model: ModelSpec, asked: ModelSpec) -> dict[str, Any]:
    """The fields that some tensor of the model asked for has its shape from."""
    unused = {"name", "numerics", "layer_pattern", "sliding_window", "full_attention_period"}
    if asked.position != "learned":
        unused.add("max_position_embeddings")
    if "dense" not in asked.feed_forwards:
        unused |= {"ffn_hidden_size", "mlp_bias"}
    if asked.mla is not None:
        unused |= {"head_dim", "num_query_groups"}
    fields = model.model_dump(exclude=unused)
    for name in ("num_dense_layers", "layer_frequency", "layer_offset") if model.moe else ():
        del fields["moe"][name]
    return fields | {"layers": layers_of(model)}


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    ("which", "least"), [(one_of_each, 7), pytest.param(models, 8, marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_stated_is_written_or_named(
    name: str, which: Callable[[], tuple[ModelSpec, ...]], least: int
) -> None:
    framework, written = frameworks.get(name), 0
    for model in which():
        if (case := asked(framework, model)) is None:
            continue
        written += 1
        bundle = framework.write(*case)
        stated, unsaid = model.numerics.stated, lost(bundle)
        if name == "torchtune":  # begins with a checkpoint; its windows are as long as sequences
            stated -= {"init_std"}
            model = model.model_copy(update=dict.fromkeys(WINDOWS))
        assert unsaid <= stated, model.name
        if framework.read is None or not framework.reads_back:
            continue
        reading = framework.read(bundle.files, None).model
        for field in stated - unsaid:
            said = getattr(reading.numerics, field)
            assert said == getattr(model.numerics, field), (model.name, field)
        # A field that has no option is not read as something else.
        assert not {field for field in unsaid if field in reading.numerics.stated} - {
            "rope_theta"
        }, model.name
        one, other = (shape(each, model) for each in (reading, model))
        assert one == other, model.name
    assert written >= least


def test_llama_keeps_its_base_and_its_scaling() -> None:
    llama = presets.model("llama-3.1-8b")
    for name in ("megatron", "torchtitan", "accelerate"):
        case = asked(frameworks.get(name), llama)
        assert case is not None
        bundle = frameworks.get(name).write(*case)
        assert lost(bundle) == set(), name
        text = "\n".join(bundle.files.values())
        assert "500000" in text, name
        assert "8.0" in text, name


def test_what_has_no_option_is_said_in_the_script_too() -> None:
    model = presets.model("llama-3.1-8b").model_copy(
        update={"numerics": Numerics(logit_softcap=30.0, rope_scaling=LINEAR)}
    )
    for name in ("megatron", "deepspeed", "torchtitan", "nanotron", "pytorch"):
        case = asked(frameworks.get(name), model)
        assert case is not None
        bundle = frameworks.get(name).write(*case)
        assert lost(bundle) == {"logit_softcap", "rope_scaling"}, name
        assert any("logit_softcap 30.0" in text for text in bundle.files.values()), name


LINEAR = RopeScaling(kind="linear", factor=4.0)


def test_real_configs_state_what_they_state() -> None:
    by_id = {one["id"]: model_from_config(one["config"]).model.numerics for one in CONFIGS}
    assert len(by_id) >= 30
    llama = by_id["Meta-Llama-3.1-70B"]
    assert (llama.norm_epsilon, llama.init_std, llama.rope_theta) == (1e-5, 0.02, 500_000)
    assert llama.rope_scaling == RopeScaling(
        kind="llama3",
        factor=8,
        original_max_position_embeddings=8192,
        low_freq_factor=1,
        high_freq_factor=4,
    )
    assert by_id["Qwen3.5-27B"].rotary_share == 0.25
    assert by_id["gemma-4-26B-A4B"].logit_softcap == 30
    assert by_id["gemma-4-26B-A4B"].local_rope_theta == 10_000
    assert by_id["DeepSeek-V3"].routed_scaling == 2.5
    assert by_id["Nemotron-H-56B-Base-8K"].activation == "relu2"
