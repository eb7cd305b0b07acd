"""Launch files that start from weights: a name on Hugging Face where known, else they ask."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from cost_models.catalog import models
from planner import frameworks
from planner.answers.lint.lint import found_in
from planner.documents.request import PlanRequest
from planner.frameworks.sources import launch_at
from tests.fixtures.frameworks import CASES
from tests.fixtures.launches import run_script, written

# Case of each, and the program that its script starts.
STARTED = {
    "trl": ("llama-adapters", "accelerate"),
    "axolotl": ("llama-adapters", "accelerate"),
    "llama-factory": ("llama-adapters", "accelerate"),
    "unsloth": ("llama-one-card", "torchrun"),
}


def of_preset(case: tuple[PlanRequest, Any], name: str) -> tuple[PlanRequest, Any]:
    request, plan = case
    asked = request.model_copy(update={"model": models.model(name)})
    return asked, plan


@pytest.mark.parametrize("name", STARTED)
def test_a_preset_is_its_name_on_hugging_face(name: str, tmp_path: Path) -> None:
    case, program = STARTED[name]
    request, plan = of_preset(CASES[name][case], "qwen3-8b")
    made = frameworks.get(name).write(request, plan)
    assert 'MODEL="${MODEL:-Qwen/Qwen3-8B}"' in made.files["launch.sh"]
    written(tmp_path, made)
    (call,) = run_script(tmp_path, made.main, (program,))
    assert name == "unsloth" or any("Qwen/Qwen3-8B" in word for word in call)
    texts, _ = launch_at([str(tmp_path / made.main)])
    found, findings = found_in(texts, request.cluster)
    assert found.framework.name == name
    assert found.model.num_layers == request.model.num_layers
    assert [one.code for one in findings if one.severity == "error"] == []


@pytest.mark.parametrize("name", STARTED)
def test_a_model_of_ones_own_needs_weights(name: str, tmp_path: Path) -> None:
    """The script says so at once; weights beside its config.json are taken."""
    case, program = STARTED[name]
    made = frameworks.get(name).write(*CASES[name][case])
    written(tmp_path, made)
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_script(tmp_path, made.main, (program,))
    assert error.value.stderr == (
        "set MODEL: a name on Hugging Face, or a folder with weights and a tokenizer\n"
    )
    (tmp_path / "model.safetensors").touch()
    assert len(run_script(tmp_path, made.main, (program,))) == 1


def test_torchtune_takes_a_folder(tmp_path: Path) -> None:
    made = frameworks.get("torchtune").write(*next(iter(CASES["torchtune"].values())))
    written(tmp_path, made)
    with pytest.raises(subprocess.CalledProcessError) as error:
        run_script(tmp_path, made.main, ("tune",))
    assert "set MODEL: a folder with weights and a tokenizer" in error.value.stderr
    (tmp_path / "model.safetensors").touch()
    (call,) = run_script(tmp_path, made.main, ("tune",))
    assert "checkpointer.checkpoint_files=[model.safetensors]" in call


def test_names_on_hugging_face() -> None:
    """Of presets alone, in the case of their source; a changed model has none."""
    for name, wanted in (
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B"),
        ("opt-175b", ""),  # of the layout of another
        ("megatron-18.4b", ""),
    ):
        assert models.hub_name(models.model(name)) == wanted
    halved = models.model("llama-3.1-8b").model_copy(update={"num_layers": 16})
    assert models.hub_name(halved) == ""
