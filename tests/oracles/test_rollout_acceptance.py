"""Drawn steps in the trainers' own configurations and parsers, which take each key as it is."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.answers.plans.emission import NothingFits
from planner.answers.reinforcement.emission import files
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.frameworks.base import Bundle
from planner.frameworks.step_trainers import TRAINERS, Trainer
from tests.fixtures.launches import joining, run_script, written
from tests.tools.checkouts import MEGATRON_LM, checkout, environment, megatron_lm_versions

HERE = Path(__file__).parent
# What slime must hold as it is said.
ASKED = (
    "rollout_batch_size", "n_samples_per_prompt", "rollout_num_gpus_per_engine", "colocate",
    "over_sampling_batch_size", "max_tokens_per_gpu", "rollout_max_response_len",
    "global_batch_size", "rollout_num_gpus",
)  # fmt: skip
MODELS = ("llama-3.1-8b", "qwen3-4b", "qwen3-30b-a3b", "qwen2.5-7b", "mixtral-8x7b")
# Where NeMo-RL passes keys on that its own files don't list.
OPEN = ("policy.generation.vllm_kwargs.",)


def drawn(trainer: Trainer, count: int) -> list[Bundle]:
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
        if "ppo" in TRAINERS[trainer].algorithms and draw.random() < 0.2:
            step["algorithm"] = "ppo"
        if "generation_precision" not in TRAINERS[trainer].says:
            del step["generation_precision"]
        if not TRAINERS[trainer].offloads:
            del step["offload"]
        if not TRAINERS[trainer].references:
            del step["reference"]
        step["staleness"] = max(step["staleness"], TRAINERS[trainer].freshest)
        if "generated_per_trained" in TRAINERS[trainer].says and not step["staleness"]:
            step["generated_per_trained"] = draw.choice((1, 1.5, 2))
        if "oversampling" in TRAINERS[trainer].says:
            step["oversampling"] = draw.choice((1, 1.25))
            step["partial_rollouts"] = step["oversampling"] > 1
        nodes = draw.choice((2, 3, 4) if TRAINERS[trainer].apart else (1, 2, 4))
        cluster = f"{nodes}x8xh100-sxm"
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


def submitted(bundle: Bundle, folder: Path) -> list[str]:
    """The words that Ray's job hands to the program."""
    folder.mkdir()
    written(folder, bundle)
    variables = {
        "NODE_RANK": "0",
        "MASTER_ADDR": "node-0",
        "REF_LOAD": str(folder),
        "MODEL": "here",
    }
    joining(folder, [1_000_000])  # accelerators of all nodes, for verl
    _, submit = run_script(folder, bundle.main, ("ray",), variables)
    start = submit.index("python3") + 1
    return submit[start + (2 if submit[start] == "-m" else 1) :]


@pytest.mark.exhaustive
def test_trl_takes_a_hundred_steps(tmp_path: Path) -> None:
    root, paths = checkout("huggingface/trl"), []
    for number, bundle in enumerate(drawn("trl", 100)):
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_text(bundle.files["config.yaml"])
    done = subprocess.run(
        [sys.executable, str(HERE / "tuners_check.py"), "trl", str(root), *map(str, paths)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr[-2000:]


@pytest.mark.exhaustive
def test_slime_takes_a_hundred_steps(tmp_path: Path) -> None:
    """Its own options over Megatron-LM's, and its checks and Megatron-LM's of both together."""
    root, core = checkout("THUDM/slime"), checkout(MEGATRON_LM, megatron_lm_versions()["0.20.0"])
    texts = [path.read_text() for kind in ("*.sh", "*.md") for path in root.rglob(kind)]
    used = {word for text in texts for word in re.findall(r"--sglang-[\w-]+", text)}
    questions = []
    for number, bundle in enumerate(drawn("slime", 100)):
        words = submitted(bundle, tmp_path / str(number))
        said = given(words)
        # Those of the engines are SGLang's: slime's own scripts and documents have each.
        assert {word for word in words if word.startswith("--sglang-")} <= used
        world = int(said["--actor-num-nodes"]) * int(said["--actor-num-gpus-per-node"])
        variables = {one.name: one.words[1] for one in bundle.flags if one.name[0] != "-"}
        questions.append({
            "argv": words, "world_size": world, "last": "validate", "asks": ASKED,
            "environment": variables,
        })  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(HERE / "slime_check.py")],
        input="\n".join(map(json.dumps, questions)), capture_output=True, text=True, check=False,
        env=environment(MEGATRON_LM_PATH=core, SLIME_PATH=root),
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 100, done.stderr[-2000:]
    for question, answer in zip(questions, answers, strict=True):
        assert answer["failed"] is None, answer
        said = given(question["argv"])
        for name, value in answer["slime"].items():
            assert same_value(value, said.get("--" + name.replace("_", "-"), str(value))), name


@pytest.mark.exhaustive
def test_openrlhf_takes_a_hundred_steps(tmp_path: Path) -> None:
    """The parser of its program, and all that it asserts of what it parsed."""
    root, cases = checkout("OpenRLHF/OpenRLHF"), []
    for number, bundle in enumerate(drawn("openrlhf", 100)):
        cases.append(submitted(bundle, tmp_path / str(number)))
    done = subprocess.run(
        [sys.executable, str(HERE / "openrlhf_check.py"), str(root)],
        input=json.dumps(cases), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 100
    for words, answer in zip(cases, answers, strict=True):
        for name, value in given(words).items():
            section, _, key = name.lstrip("-").partition(".")
            node: Any = answer[section]
            for part in key.split("."):
                node = node[part]
            assert same_value(node, value), (name, node, value)


@pytest.mark.exhaustive
def test_areal_takes_a_hundred_steps() -> None:
    """Its dataclasses over the YAML, and its own reading of each engine's degrees."""
    root, cases = checkout("inclusionAI/AReaL"), []
    for bundle in drawn("areal", 100):
        cases.append(bundle.files["grpo.yaml"])
    done = subprocess.run(
        [sys.executable, str(HERE / "areal_check.py"), str(root)],
        input=json.dumps(cases), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 100
    for text, answer in zip(cases, answers, strict=True):
        held(answer, yaml.safe_load(text))
        total = answer["actor"]["world_size"] + answer["rollout"]["world_size"]
        cluster = answer["cluster"]
        assert total == cluster["n_nodes"] * cluster["n_gpus_per_node"]


def held(answer: Any, said: Any) -> None:
    """Asserts that a configuration has what was said, but for references and names."""
    if isinstance(said, dict):
        for key, value in said.items():
            assert key in answer, key
            held(answer[key], value)
    elif isinstance(said, list):
        for one, value in zip(answer, said, strict=True):
            held(one, value)
    elif "${" not in str(said):
        assert same_text(answer, said), (answer, said)


def same_text(answer: Any, said: Any) -> bool:
    """Whether two values are equal; an enumeration may be shown as its name."""
    return answer == said or (said == "None" and answer is None) or str(said) in str(answer)


@pytest.mark.exhaustive
def test_prime_rl_takes_a_hundred_steps() -> None:
    """The command `rl` over the TOML, with all its checks of trainer, orchestrator and engines."""
    python = os.environ.get("PRIME_RL_PYTHON")
    if not python:
        pytest.skip("PRIME_RL_PYTHON names no Python with what prime-rl's configuration needs")
    root, cases = checkout("PrimeIntellect-ai/prime-rl"), []
    for bundle in drawn("prime-rl", 100):
        cases.append(bundle.files["rl.toml"])
    done = subprocess.run(
        [python, str(HERE / "prime_rl_check.py"), str(root)],
        input=json.dumps(cases), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 100
    for text, answer in zip(cases, answers, strict=True):
        said = tomllib.loads(text)
        del said["model"]["name"]
        del said["orchestrator"]["train"]["source"]  # prompts
        held(answer, said)
        ranks = said["deployment"]["num_train_nodes"] * said["deployment"]["gpus_per_node"]
        splits = answer["trainer"]["model"]["cp"] * answer["trainer"]["model"]["dp_replicate"]
        assert ranks % splits == 0


def given(words: list[str]) -> dict[str, str]:
    """The options with their values; "" of a switch."""
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "" if following.startswith("--") else following
    return found


def same_value(held: Any, said: str) -> bool:
    """Whether a parsed value is the one that was said; a list of one counts as that one."""
    if isinstance(held, list):
        return held == [said]
    if isinstance(held, float):
        return held == float(said)
    return held is True if said == "" else str(held) == said


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
