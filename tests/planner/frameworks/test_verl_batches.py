"""The batch of verl's updates, and a YAML beside a script that calls verl."""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

ROOT = "actor_rollout_ref."
CALL = (
    "python3 -m verl.trainer.main_ppo data.max_prompt_length=1024 data.max_response_length=3072 "
    f"{ROOT}model.path=Qwen/Qwen3-8B {ROOT}actor.ppo_micro_batch_size_per_gpu=1 "
    f"{ROOT}rollout.n=5 trainer.nnodes=1 {{}}\n"
)
MEGATRON = f" {ROOT}actor.strategy=megatron --config-name=ppo_megatron_trainer.yaml"
YAML = """\
data: {{max_prompt_length: 1024, max_response_length: 3072{}}}
actor_rollout_ref:
  model: {{path: /models/Qwen3-8B}}
  actor: {{ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 1}}
  rollout: {{n: 8}}
trainer: {{n_gpus_per_node: 8, nnodes: 1}}
"""


def found(files: dict[str, str]) -> ReadAnswer:
    return read(files, parse_cluster("1x8xh100-sxm"))


def batch(files: dict[str, str]) -> int:
    said = found(files).request["training"]["global_batch_size"]
    assert isinstance(said, int)
    return said


@pytest.mark.parametrize("engine", ["", MEGATRON])
@pytest.mark.parametrize(
    ("sizes", "prompts"),
    [
        ({"mini": 256, "step": 64}, 64),
        ({"mini": 256, "step": 256}, 256),
        ({"mini": 64, "step": 256}, 64),
        ({"mini": 64}, 64),
        ({"mini": 4096}, 1024),  # verl's own train_batch_size
        ({"step": 128}, 128),  # its own mini-batch is of 256
        ({}, 256),
    ],
)
def test_an_update_has_no_more_prompts_than_a_step(
    engine: str, sizes: dict[str, int], prompts: int
) -> None:
    keys = {"mini": f"{ROOT}actor.ppo_mini_batch_size", "step": "data.train_batch_size"}
    words = " ".join(f"{keys[name]}={count}" for name, count in sizes.items())
    assert batch({"run.sh": CALL.format(words + engine)}) == 5 * prompts


@pytest.mark.parametrize(("more", "prompts"), [("", 64), (", train_batch_size: 16", 16)])
def test_a_yaml_alone_is_a_training(more: str, prompts: int) -> None:
    assert batch({"grpo.yaml": YAML.format(more)}) == 8 * prompts


def test_a_yaml_beside_a_call_without_a_model_is_not_the_launch() -> None:
    """It may hold the defaults of a fork: only the call that names it trains with it."""
    yaml = {"grpo.yaml": YAML.format("")}
    words = f"data.train_batch_size=16 {ROOT}rollout.n=2 trainer.nnodes=1"
    call = f"python3 -m verl.trainer.main_ppo {words}\n"
    with pytest.raises(RequestError, match=r"the model actor_rollout_ref\.model\.path is missing"):
        found({"run.sh": call, **yaml})
    with pytest.raises(RequestError, match=r"grpo\.yaml is of verl's configuration alone"):
        found({"run.sh": "python3 -m verl.trainer.main_ppo data.train_batch_size=16\n", **yaml})
    named = call.replace("main_ppo", "main_ppo --config-name grpo")
    assert batch({"run.sh": named, **yaml}) == 2 * 16
    assert batch({"run.sh": "python3 -m own.main\n", **yaml}) == 8 * 64
