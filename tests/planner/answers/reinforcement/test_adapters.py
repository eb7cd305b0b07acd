"""Steps that train adapters: on the matrices that the trainer names, unless others are given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.answers.reinforcement.emission import files
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.frameworks.step_trainers import TRAINERS
from tests.fixtures.commands import Planner

# Several nodes: on one, adapters have PEFT's names whatever the trainer is.
STEP = [
    "--model", "llama-3.1-8b", "--cluster", "2x8xh100-sxm", "--prompts", "64", "--samples", "8",
    "--prompt-tokens", "512", "--max-response-tokens", "1536",
]  # fmt: skip
MEGATRON = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
PEFT = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SOME = ["q_proj", "v_proj"]


@pytest.fixture
def priced(ask: Planner) -> Any:
    """The answer of `planner rl` to these words."""

    def run(*words: str) -> Any:
        code, out, err = ask("rl", *STEP, *words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


@pytest.mark.parametrize(
    ("trainer", "framework", "names"),
    [("trl", "trl", PEFT), ("openrlhf", "accelerate", PEFT), ("verl", None, MEGATRON)],
)
def test_they_are_on_the_matrices_that_the_trainer_names(
    priced: Any, trainer: str, framework: str | None, names: list[str]
) -> None:
    """So its own plans are found; verl's Megatron trains no adapters, and is priced by others."""
    answer = priced("--trainer", trainer, "--lora-rank", "16")
    assert answer["request"]["training"]["lora_targets"] == names
    assert answer["framework"] == framework


@pytest.mark.parametrize("trainer", ["trl", "openrlhf"])
def test_they_are_where_they_were_asked_for(priced: Any, trainer: str) -> None:
    words = ["--trainer", trainer, "--lora-rank", "16"]
    every, some = priced(*words), priced(*words, "--lora-targets", ",".join(SOME))
    assert some["request"]["training"]["lora_targets"] == SOME
    assert some["framework"] == every["framework"]
    assert some["step_time_s"] < every["step_time_s"]


def test_names_that_nobody_has_are_refused(ask: Planner) -> None:
    code, out, err = ask("rl", *STEP, "--lora-rank", "16", "--lora-targets", "q_proj,bogus")
    assert (code, out) == (2, "")
    assert "--lora-targets" in err
    assert "bogus" in err


def test_without_adapters_nothing_of_them_is_taken_from_the_trainer(priced: Any) -> None:
    training = priced("--trainer", "trl")["request"]["training"]
    assert training["lora_rank"] == 0
    assert training["gradient_reduce_dtype"] == "bf16"  # of TRL's training of all weights
    assert training["lora_targets"] == MEGATRON


@pytest.mark.parametrize("given", [(), ("q_proj", "v_proj")])
def test_the_files_of_trl_have_the_names(given: tuple[str, ...]) -> None:
    training = {"lora_rank": 16, **({"lora_targets": list(given)} if given else {})}
    step = {
        "trainer": "trl", "prompts": 64, "samples": 8, "prompt_tokens": 512,
        "max_response_tokens": 1536,
    }  # fmt: skip
    bundle = files(parse_reinforcement({
        "model": "llama-3.1-8b", "cluster": "2x8xh100-sxm", "training": training,
        "reinforcement": step,
    }))  # fmt: skip
    assert "\nlora_r: 16  #" in bundle.files["config.yaml"]
    names = ", ".join(given or PEFT)
    assert f"\nlora_target_modules: [{names}]  #" in bundle.files["config.yaml"]


@pytest.mark.parametrize("trainer", sorted(TRAINERS.keys() - {"trl"}))
def test_files_that_would_train_all_weights_are_not_written(ask: Planner, trainer: str) -> None:
    """OpenRLHF has the options, but sends its engines the adapters' own names."""
    words = [*STEP, "--trainer", trainer, "--lora-rank", "16"]
    code, _, err = ask("rl-emit", *words)
    assert code != 0
    assert "with adapters are not written: take TRL" in " ".join(err.split())
    code, out, _ = ask("rl", *words)
    assert code == 0
    assert "adapters are not written" in " ".join(out.split())
