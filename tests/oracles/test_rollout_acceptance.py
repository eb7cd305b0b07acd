"""Drawn steps in verl's and NeMo-RL's own configurations: every key is one that they have."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.answers.plans.emission import NothingFits
from planner.answers.reinforcement.emission import files
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.frameworks.base import Bundle
from tests.tools.checkouts import checkout

MODELS = ("llama-3.1-8b", "qwen3-4b", "qwen3-30b-a3b", "qwen2.5-7b", "mixtral-8x7b")
# Where NeMo-RL passes keys on that its own files don't list.
OPEN = ("policy.generation.vllm_kwargs.",)


def drawn(trainer: str, count: int) -> list[Bundle]:
    """Files of so many steps that fit."""
    draw, found = random.Random(36), []
    while len(found) < count:
        longest = draw.choice((1024, 4096, 16_384))
        step = {
            "trainer": trainer, "prompts": draw.choice((32, 64, 128)),
            "samples": draw.choice((4, 8, 16)), "prompt_tokens": draw.choice((256, 1024)),
            "response_tokens": draw.choice((longest, longest // 3)),
            "max_response_tokens": longest, "staleness": draw.choice((0, 1, 2, 5)),
            "reference": draw.random() < 0.7, "offload": draw.random() < 0.8,
            "generation_precision": draw.choice(("bf16", "fp8")),
        }  # fmt: skip
        if trainer == "verl" and draw.random() < 0.2:
            step["algorithm"] = "ppo"
        cluster = f"{draw.choice((1, 2, 4))}x8xh100-sxm"
        document = {"model": draw.choice(MODELS), "cluster": cluster, "reinforcement": step}
        try:
            found.append(files(parse_reinforcement(document)))
        except NothingFits:
            continue
    return found


def words(script: str) -> list[str]:
    """The overrides, as bash hands them on."""
    array = script[script.index("OVERRIDES=(") :]
    array = array[: array.index("\n)\n") + 3]
    printed = subprocess.run(
        ["bash", "-c", f'{array}\nprintf "%s\\0" "${{OVERRIDES[@]}}"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return printed.stdout.split("\0")[:-1]


@pytest.mark.exhaustive
def test_verl_composes_a_hundred_steps() -> None:
    root, cases = checkout("volcengine/verl", "b178a3cd56f5"), []
    for bundle in drawn("verl", 100):
        script = bundle.files["launch.sh"]
        (main,), (name,) = (
            re.findall(r"python3 -m (\S+)", script),
            re.findall(r"--config-name=(\S+)", script),
        )
        package = main.rpartition(".")[0]
        # `config` is beside the module that has the decorator (verl/trainer/main_ppo.py).
        cases.append([f"{package.replace('.', '/')}/config", name, words(script)])
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.rollouts_check", str(root)],
        input=json.dumps(cases), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    composed = json.loads(done.stdout)
    assert len(composed) == 100
    for (_, _, said), one in zip(cases, composed, strict=True):
        given = dict(word.lstrip("+").split("=", 1) for word in said)
        rollout = one["rollout"]
        for key in ("n", "tensor_model_parallel_size", "max_num_seqs", "gpu_memory_utilization"):
            assert str(rollout[key]) == given[f"actor_rollout_ref.rollout.{key}"]


@pytest.mark.exhaustive
def test_nemo_rl_has_every_key_of_a_hundred_steps() -> None:
    folder = checkout("NVIDIA-NeMo/RL") / "examples" / "configs"
    whole = merged(folder, "grpo_math_1B_megatron.yaml")
    for bundle in drawn("nemo-rl", 100):
        document = yaml.safe_load(bundle.files["grpo.yaml"])
        assert document.pop("defaults") == "grpo_math_1B_megatron.yaml"
        for key, value in leaves(document):
            if key.startswith(OPEN):
                continue
            node: Any = whole
            for part in key.split("."):
                assert part in node, key
                node = node[part]
            assert node is None or value is None or same_kind(node, value), (key, node, value)


def merged(folder: Path, name: str) -> dict[str, Any]:
    """A configuration over those that it inherits."""
    document = yaml.safe_load((folder / name).read_text())
    parent = document.pop("defaults", None)
    return over(merged(folder, parent) if parent else {}, document)


def over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: over(below[key], value)
        if isinstance(value, dict) and isinstance(below.get(key), dict)
        else value
        for key, value in above.items()
    }
    return below | both


def leaves(node: dict[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found = []
    for key, value in node.items():
        inner = isinstance(value, dict)
        found += leaves(value, f"{above}{key}.") if inner else [(f"{above}{key}", value)]
    return found


def same_kind(one: Any, other: Any) -> bool:
    """Whether a value may stand for another: a reference for anything."""
    if "${" in f"{one}{other}":
        return True
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return type(one) is type(other) or (numbers and not isinstance(one, bool))
