"""Models whose layers differ, as a config.json: transformers builds the planned model from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cost_models.catalog.models import model as preset
from cost_models.catalog.models import models
from cost_models.parameters import total_parameters
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.huggingface.export.exporter import PATTERNED as FAMILIES
from planner.huggingface.export.exporter import config_of, nearest_family
from planner.huggingface.importer import model_from_config
from planner.huggingface.module_inspection import inspect_model
from tests.fixtures import alike
from tests.fixtures.launches import launch
from tests.fixtures.patterns import PATTERNED

ACCELERATE = frameworks.get("accelerate")
CONVOLUTIONS = ["conv", "conv", "full_attention", "conv"] * 8
# Defaults of the class of each family, and what they leave out.
STATED: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": CONVOLUTIONS},
    "lfm2_moe": {"layer_types": CONVOLUTIONS},
    "qwen3": {
        "use_sliding_window": True,
        "layer_types": ["sliding_attention", "full_attention"] * 16,
        "sliding_window": 512,
    },
}


def built(family: str, **keys: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **keys)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def rebuilt(model: ModelSpec) -> Any:
    keys = dict(config_of(model) or {})
    architecture = keys.pop("architectures")
    made = built(keys.pop("model_type"), **keys)
    assert [type(made).__name__] == architecture
    return made


def looked(made: Any) -> ModelSpec:
    return inspect_model(made, made.config, "found").model


# The modules of Gemma 4 do not say that layers share keys, nor which width belongs to which kind.
@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("family", [one for one in FAMILIES if one != "gemma4_text"])
def test_what_is_read_of_a_family_is_written_and_builds_the_same_model(family: str) -> None:
    model = looked(built(family, **STATED.get(family, {})))
    keys = config_of(model)
    assert keys is not None, nearest_family(model)
    assert keys["model_type"] == family
    again = rebuilt(model)
    assert sum(p.numel() for p in again.parameters()) == total_parameters(model)
    assert looked(again) == model
    assert again._no_split_modules  # the units that FSDP wraps
    assert again.supports_gradient_checkpointing


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"num_kv_shared_layers": 10, "use_double_wide_mlp": True},
        {"attention_k_eq_v": True, "num_global_key_value_heads": 2},
        {
            "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
            "moe_intermediate_size": 64, "hidden_size_per_layer_input": 0,
        },
    ],
)  # fmt: skip
def test_gemma_4_is_written_with_all_that_its_layers_differ_in(more: dict[str, Any]) -> None:
    made = built("gemma4_text", **more)
    read = model_from_config({**made.config.to_dict(), "architectures": ["Gemma4ForCausalLM"]})
    assert config_of(read.model) is not None, nearest_family(read.model)
    counts = [sum(p.numel() for p in one.parameters()) for one in (made, rebuilt(read.model))]
    assert counts == [total_parameters(read.model)] * 2


@pytest.mark.one_in(1, quick=4)
@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("bamba", "bamba"),
        ("mamba-2", "mamba2"),
        ("nemotron-h", "nemotron_h"),
        ("qwen3-next", "qwen3_next"),
        ("qwen3.5", "qwen3_5_text"),
        ("smollm3", "smollm3"),
    ],
)
def test_small_models_build_with_their_parameters(name: str, family: str) -> None:
    model = PATTERNED[name]
    keys = config_of(model)
    assert keys is not None, nearest_family(model)
    assert keys["model_type"] == family
    made = rebuilt(model)
    assert sum(p.numel() for p in made.parameters()) == total_parameters(model)


def test_prediction_layers_and_other_mixers_are_named_where_no_family_has_them() -> None:
    assert config_of(PATTERNED["nemotron-3"]) is None
    assert nearest_family(PATTERNED["nemotron-3"]) == ("nemotron_h", ("mtp_num_layers",))
    assert nearest_family(PATTERNED["every-letter"])[1]


@pytest.mark.parametrize("name", ["nemotron-h", "qwen3-next", "smollm3"])
def test_accelerate_writes_them(name: str) -> None:
    more = {"zero_stage": 3, "runtime": "transformers", "cross_entropy": "unfused"}
    request, plan = launch(PATTERNED[name], **more)
    files = ACCELERATE.write(request, plan).files
    assert '"layer' in files["config.json"] or '"no_rope_layers"' in files["config.json"]


# Presets that no family of transformers builds, or none that is written yet, by what stands in the
# way.
UNWRITTEN = {
    "falcon-40b": "two norms side by side", "falcon-180b": "two norms side by side",
    "grok-1": "no family", "deepseek-v4-flash": "compressed attention",
    "deepseek-v4-pro": "compressed attention", "mimo-v2-flash": "heads that differ by layer",
    "step-3.7-flash": "gates that differ by layer",
    "dbrx": "LayerNorms without biases", "llama-4-scout": "norms without weights",
    "llama-4-maverick": "every second layer has experts",
    "llama-3.3-nemotron-super-49b": "layers without attention", "glm-5.2": "shared indexers",
    "deepseek-v2": "groups of experts that are chosen first",
    "longcat-flash": "transformers gives its zero-computation experts weights",
}  # fmt: skip


def tiers() -> Iterator[Any]:
    """Every preset; one that differs from another only in sizes waits for the exhaustive tests."""
    seen: set[Any] = set()
    for one in models():
        kind = alike.kind(one.spec)
        known = kind in seen and one.id not in UNWRITTEN
        yield pytest.param(one.id, marks=pytest.mark.exhaustive if known else ())
        seen.add(kind)


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", list(tiers()))
def test_every_preset_is_built_by_transformers_or_listed(name: str) -> None:
    """With exactly its parameters; heads for multi-token prediction aside, which it drops."""
    model = preset(name).model_copy(update={"mtp_num_layers": 0})
    if name in UNWRITTEN:
        assert config_of(model) is None
    else:
        assert sum(p.numel() for p in rebuilt(model).parameters()) == total_parameters(model)
