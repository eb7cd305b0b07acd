"""Comments of launch files are true where they stand: of types, shards, packing and layers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from planner import frameworks
from tests.fixtures.frameworks import CASES

ADAPTERS = ("llama-adapters", "llama-sharded-adapters", "llama-packed-adapters")
TRAINERS = ("trl", "axolotl", "llama-factory")


def files(name: str, case: str) -> Any:
    return frameworks.get(name).write(*CASES[name][case]).files


def comment(text: str, key: str) -> str:
    found = re.search(rf"^\s*{key}[:=].*?  # (.*)$", text, re.MULTILINE)
    assert found, key
    return found[1]


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("case", ADAPTERS)
def test_types_beside_adapters(name: str, case: str) -> None:
    """Frozen weights are not in fp32; in four bits they have no half precision either."""
    said = comment(files(name, case)["config.yaml"], "(?:bf16|fp16)")
    assert "weights stay in fp32" not in said
    narrow = name == "trl" and "packed" in case
    assert f"adapters stay in {'bf16' if narrow else 'fp32'}" in said
    assert ("frozen weights" in said) == ("packed" not in case)


@pytest.mark.parametrize("name", TRAINERS)
def test_types_where_all_is_trained(name: str) -> None:
    said = comment(files(name, "llama-fsdp")["config.yaml"], "bf16")
    assert "adapters" not in said
    assert ("weights stay in fp32" in said) == (name != "axolotl")


def test_axolotl_shards_by_its_own_file() -> None:
    """Accelerate's MULTI_GPU makes no replicas there."""
    for case, sharded in (("llama-fsdp", True), ("llama-copies", False)):
        said = comment(files("axolotl", case)["accelerate.yaml"], "distributed_type")
        assert ("replicas" in said) != sharded


def test_wrapped_samples_see_each_other() -> None:
    texts = (files("trl", case)["config.yaml"] for case in CASES["trl"])
    wrapped = [text for text in texts if "packing_strategy: wrapped" in text]
    assert wrapped
    for text in wrapped:
        assert "see each other" in comment(text, "packing_strategy")


def test_a_layer_specification_names_what_the_model_has() -> None:
    for case, said in (
        ("mixtral-experts", "layers with experts"),
        ("deepseek-v3", "layers with experts and latent attention"),
    ):
        recipe = files("megatron-bridge", case)["recipe.py"]
        assert comment(recipe, "transformer_layer_spec") == said


def test_heads_say_a_name_and_one_accelerator_once() -> None:
    for name in frameworks.FRAMEWORKS:
        title = frameworks.get(name).title
        for case in list(CASES[name])[:2]:
            for text in files(name, case).values():
                assert f"# {title} ({title}" not in text
                assert not re.search(r"\b1 accelerators", text)


@pytest.mark.parametrize("name", TRAINERS)
def test_adapters_have_one_scale(name: str) -> None:
    """Defaults of the trainers differ: the same question gives the same training."""
    config = yaml.safe_load(files(name, "llama-adapters")["config.yaml"])
    rank = CASES[name]["llama-adapters"][0].training.lora_rank
    assert config["lora_alpha"] == 2 * rank
    program = files("unsloth", "llama-one-card")["train.py"]
    own = CASES["unsloth"]["llama-one-card"][0].training.lora_rank
    assert f"lora_alpha={2 * own}," in program
