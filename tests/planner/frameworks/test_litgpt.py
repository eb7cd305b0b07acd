"""LitGPT's trainings by its YAML and its command line."""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

LORA = """\
checkpoint_dir: checkpoints/meta-llama/Llama-3.1-8B
out_dir: out/finetune/lora
precision: bf16-true
quantize:
devices: 1
num_nodes: 1
lora_r: 32
lora_alpha: 16
lora_dropout: 0.1
lora_query: true
lora_key: false
lora_value: true
lora_projection: false
lora_mlp: false
lora_head: false
train:
  global_batch_size: 8
  micro_batch_size: 2
  max_seq_length: 512
optimizer:
  class_path: bitsandbytes.optim.PagedAdamW
"""
PRETRAIN = """\
model_name: Llama-3.2-1B
model_config:
initial_checkpoint_dir:
precision: bf16-mixed
devices: auto
num_nodes: 2
train:
  global_batch_size: 512
  micro_batch_size: 4
  max_seq_length: 2048
optimizer: AdamW
"""


def reading(text: str, script: str = "", cluster: str = "2x8xh100-sxm") -> ReadAnswer:
    files = ({"run.sh": script} if script else {}) | {"lora.yaml": text}
    answer = read(files, parse_cluster(cluster))
    assert answer.framework == "pytorch"
    return answer


def test_lora_on_one_device() -> None:
    request = reading(LORA).request
    plan, training = request["plan"], request["training"]
    assert request["model"]["num_layers"] == 32
    assert (training["seq_length"], training["global_batch_size"]) == (512, 8)
    assert (training["lora_rank"], training["lora_targets"]) == (32, ["q_proj", "v_proj"])
    assert (training["lora_dropout"], training["optimizer"]) == (0.1, "paged_adam")
    assert (plan["dp"], plan["micro_batch_size"], plan["runtime"]) == (1, 2, "litgpt")
    assert plan.get("recompute", "none") == "none"


def test_modules_and_bits() -> None:
    mlp = LORA.replace("lora_mlp: false", "lora_mlp: true").replace(
        "quantize:", "quantize: bnb.nf4"
    )
    training = reading(mlp).request["training"]
    assert training["lora_targets"] == ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
    assert training["frozen_dtype"] == "nf4"
    plain = reading(mlp.replace("meta-llama/Llama-3.1-8B", "microsoft/phi-2")).request["training"]
    assert plain["lora_targets"] == ["q_proj", "v_proj", "linear_fc1", "linear_fc2"]
    head = reading(LORA.replace("lora_head: false", "lora_head: true"))
    assert any("output layer are not costed" in one for one in head.assumed)


def test_several_devices_shard_and_recompute() -> None:
    request = reading(LORA.replace("devices: 1", "devices: 4")).request
    plan = request["plan"]
    assert (plan["dp"], plan["zero_stage"], plan["recompute"]) == (4, 3, "full")
    assert request["training"]["global_batch_size"] == 8
    refused = reading(
        LORA.replace("devices: 1", "devices: 2").replace("quantize:", "quantize: bnb.nf4")
    )
    assert any("on one device only" in one.reason.text for one in refused.refusals)


def test_all_weights_in_half_precision_have_no_second_copy() -> None:
    full = "\n".join(one for one in LORA.splitlines() if not one.startswith("lora_")) + "\n"
    training = reading(full).request["training"]
    assert (training["master_weights_dtype"], training["optimizer_state_dtype"]) == ("none", "bf16")
    mixed = reading(full.replace("bf16-true", "bf16-mixed")).request["training"]
    assert "master_weights_dtype" not in mixed


def test_pretraining_shards_inside_a_node() -> None:
    request = reading(PRETRAIN).request
    plan = request["plan"]
    assert (plan["dp"], plan["dp_shard"], plan["zero_stage"]) == (16, 8, 3)
    assert plan.get("recompute", "none") == "none"
    assert plan["compile"] is True
    assert request["training"]["global_batch_size"] == 512


def test_its_command_line() -> None:
    script = (
        "srun litgpt finetune_lora checkpoints/Qwen/Qwen2.5-7B --config x/lora.yaml "
        "--devices 2 --train.micro_batch_size 4 --lora_r=8\n"
    )
    request = reading(LORA, script).request
    assert (request["plan"]["dp"], request["plan"]["micro_batch_size"]) == (2, 4)
    assert (request["training"]["lora_rank"], request["model"]["num_layers"]) == (8, 28)
    alone = "python3 -m litgpt finetune_full Qwen/Qwen2.5-7B --train.max_seq_length 128\n"
    request = read({"run.sh": alone}, parse_cluster("1x8xh100-sxm")).request
    assert (request["training"]["global_batch_size"], request["plan"]["dp"]) == (16, 1)
    older = alone.replace("python3 -m litgpt finetune_full", "litgpt finetune full")
    assert read({"run.sh": older}, parse_cluster("1x8xh100-sxm")).request == request


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("  max_seq_length: 512", "  max_seq_length:", "--set train.max_seq_length=..."),
        ("meta-llama/Llama-3.1-8B", "mine/other", "the model other is no preset"),
        ("precision: bf16-true", "precision: 64", "precision must be one of bf16-true"),
    ],
)
def test_what_cannot_be_read_is_said(old: str, new: str, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        reading(LORA.replace(old, new))
    assert reason in str(caught.value)


def test_other_adapters_are_refused() -> None:
    script = "litgpt finetune_adapter_v2 gpt2 --config lora.yaml\n"
    with pytest.raises(RequestError, match="LLaMA-Adapter adds parts"):
        reading(LORA, script)
    with pytest.raises(RequestError, match=r"other\.yaml is not among the files"):
        reading(LORA, "litgpt finetune_lora gpt2 --config other.yaml\n")


def test_a_task_of_a_fork_is_refused_by_its_name() -> None:
    config = "model_name: Llama-3.1-8B\ntrain:\n  micro_batch_size: 1\n  max_seq_length: 2048\n"
    files = {"run.sh": "litgpt pretrain_poet --config c.yaml\n", "c.yaml": config}
    with pytest.raises(RequestError, match="pretrain_poet is of a fork of LitGPT: not read"):
        read(files, parse_cluster("1x8xh100-sxm"))
    adapted = {"c.yaml": f"{config}lora_r: 8\n"}
    with pytest.raises(RequestError, match="pre-training of adapters is of a fork of LitGPT"):
        read(adapted, parse_cluster("1x8xh100-sxm"))
