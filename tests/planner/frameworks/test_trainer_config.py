"""Options of transformers' Trainer in a file: JSON, ms-swift's dump, YAML with sections."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import lint, read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

FIREFLY: dict[str, Any] = {
    "model_name_or_path": "01-ai/Yi-34B",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 16,
    "max_seq_length": 1024,
    "lora_rank": 64,
    "gradient_checkpointing": True,
    "fp16": True,
}
SWIFT = FIREFLY | {
    "model": "Qwen/Qwen3-8B",
    "tuner_type": "full",
    "max_length": 4096,
    "freeze_parameters": ["model.vision_tower"],
    "freeze_parameters_ratio": 0.0,
    "sequence_parallel_size": 2,
    "global_world_size": 16,
    "local_world_size": 8,
    "deepspeed": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
}


def reading(files: dict[str, Any]) -> ReadAnswer:
    texts = {name: one if isinstance(one, str) else json.dumps(one) for name, one in files.items()}
    return read(texts, parse_cluster("1x8xh100-sxm"))


def test_a_json_alone_is_read_by_its_keys_and_its_name() -> None:
    found = reading({"yi-34b-sft-qlora.json": FIREFLY}).request
    assert found["model"]["num_layers"] == 60
    training = found["training"]
    assert (training["global_batch_size"], training["seq_length"]) == (2 * 16 * 8, 1024)
    assert (training["lora_rank"], training["frozen_dtype"], training["precision"]) == (
        64,
        "nf4",
        "fp16",
    )
    assert found["plan"]["recompute"] == "full"


@pytest.mark.parametrize(("mode", "rank"), [("full", 0), ("lora", 64)])
def test_what_it_says_of_adapters_counts_before_its_name(mode: str, rank: int) -> None:
    training = reading({"a-qlora.json": FIREFLY | {"train_mode": mode}}).request["training"]
    assert training.get("lora_rank", 0) == rank
    assert "frozen_dtype" not in training


def test_the_script_that_names_it_says_the_processes() -> None:
    script = "deepspeed --num_gpus=4 train.py --train_args_file train_args/sft.json"
    found = reading({"run.sh": script, "sft.json": FIREFLY | {"task_type": "dpo"}}).request
    assert found["plan"]["dp"] == 4
    assert found["training"]["loss"] == "dpo"


def test_what_swift_dumps() -> None:
    found = reading({"args.json": SWIFT})
    plan = found.request["plan"]
    assert (plan["cp"], plan["dp"], plan["zero_stage"]) == (2, 8, 3)
    assert plan["offload_optimizer"] is True
    assert found.accelerators_per_node == 8
    with pytest.raises(RequestError, match="freeze_parameters_ratio"):
        reading({"args.json": SWIFT | {"freeze_parameters_ratio": 0.5}})


def test_swifts_json_of_fsdp_in_a_folder_that_is_not_known() -> None:
    script = (
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-8B --tuner_type full --max_length 4096 "
        "--per_device_train_batch_size 1 --gradient_accumulation_steps 2 "
        "--fsdp /out/run_$(date +%s)/fsdp.json"
    )
    keys = {
        "fsdp": "full_shard auto_wrap offload",
        "fsdp_config": {"fsdp_version": 2, "activation_checkpointing": True},
    }
    found = reading({"run.sh": script, "fsdp.json": keys}).request
    plan = found["plan"]
    assert (plan["zero_stage"], plan["offload_optimizer"], plan["recompute"]) == (3, True, "full")
    assert "not read" not in str(found.get("guessed"))


SECTIONS = """\
model:
  base_model: Qwen/Qwen3-8B
  max_seq_length: 4096
  load_in_4bit: true
lora:
  r: 32
  target_modules: [q_proj, v_proj]
training:
  per_device_train_batch_size: 2
  gradient_accumulation_steps: 4
  gradient_checkpointing: true
  bf16: true
"""


def test_a_yaml_with_sections_of_its_own_is_read_by_its_keys() -> None:
    answer = reading({"finetune.yaml": SECTIONS})
    training, plan = answer.request["training"], answer.request["plan"]
    assert (training["seq_length"], training["global_batch_size"]) == (4096, 2 * 4 * 8)
    assert (training["lora_rank"], training["frozen_dtype"]) == (32, "nf4")
    assert training["lora_targets"] == ["q_proj", "v_proj"]
    assert (plan["micro_batch_size"], plan["recompute"]) == (2, "full")
    assert any("taken as options of transformers' Trainer" in one for one in answer.assumed)


@pytest.mark.parametrize(
    ("name", "old", "new", "text"),
    [
        ("a.yaml", "  base_model: Qwen/Qwen3-8B\n", "",
         "a leaves out the model: add --model NAME (read: per_device_train_batch_size 2"),
        ("a.yaml", "training:\n", "training:\n  algorithm: grpo\n", "a_grpo also generates"),
        ("grpo.yaml", "training:\n", "training:\n  a: 1\n", "grpo also generates samples"),
        ("a.yaml", "lora:\n", "dpo:\n  per_device_train_batch_size: 1\nlora:\n",
         "stands in several sections: dpo, training; give one"),
        ("a.yaml", "lora:\n", "tp_size: 2\nlora:\n", "parallelism of its own"),
    ],
)  # fmt: skip
def test_what_sections_leave_open_is_said(name: str, old: str, new: str, text: str) -> None:
    with pytest.raises(RequestError, match=re.escape(text)):
        reading({name: SECTIONS.replace(old, new)})


def test_ipo_costs_what_dpo_costs() -> None:
    assert reading({"ipo.yaml": SECTIONS}).request["training"]["loss"] == "dpo"


def test_a_yaml_that_a_script_names_is_read_with_the_processes_of_the_script() -> None:
    call = "torchrun --nproc_per_node 4 train.py --config conf/finetune.yaml\n"
    answer = reading({"run.sh": call, "finetune.yaml": SECTIONS})
    assert answer.request["training"]["global_batch_size"] == 2 * 4 * 4


def test_what_one_setting_would_gain_is_a_faster_plan() -> None:
    answer = lint({"finetune.yaml": SECTIONS}, parse_cluster("1x8xh100-sxm"))
    assert any("recompute" in one.code and one.gain for one in answer.findings)
    # With micro-batch and recompute together, in the file itself.
    assert answer.best is not None
    assert max(one.gain or 0.0 for one in answer.findings) <= answer.gain.share
    assert lint(answer.best.files, parse_cluster("1x8xh100-sxm")).best is None
    assert answer.verdict == "improvable"
    assert not any("load_in_4bit" in one.name for one in answer.unread)


def test_a_yaml_with_the_files_that_its_defaults_list_names() -> None:
    text = (
        "defaults:\n  - _self_\n  - model: qwen\ntraining_arguments:\n"
        "  per_device_train_batch_size: 4\n  bf16: true\n  max_length: ${model.max_position}\n"
    )
    model = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nmax_position: 2048\nlora: {r: 8, lora_alpha: 16}\n"
    )
    found = read(
        {"sft.yaml": text, "model/qwen.yaml": model}, parse_cluster("1x8xh100-sxm")
    ).request
    assert found["model"]["name"] == "qwen2.5-7b"
    assert (found["training"]["lora_rank"], found["training"]["seq_length"]) == (8, 2048)
    with pytest.raises(RequestError, match="leaves out the model"):
        read(
            {"sft.yaml": text.replace("${model.max_position}", "512")},
            parse_cluster("1x8xh100-sxm"),
        )


def test_the_types_of_four_bits_without_their_switch() -> None:
    text = (
        "base_model:\n  model_id: Qwen/Qwen2.5-7B\n  bnb_4bit_quant_type: nf4\n"
        "lora: {r: 8, lora_alpha: 16}\ntraining:\n  per_device_train_batch_size: 2\n"
        "  max_length: 512\n  bf16: true\n"
    )
    found = read({"run.yaml": text}, parse_cluster("1x8xh100-sxm"))
    assert found.request["training"]["frozen_dtype"] == "nf4"
    assert "4 bits, of which bnb_4bit_quant_type is" in str(found.assumed)
    off = text.replace("  bnb_4bit_quant_type", "  load_in_4bit: false\n  bnb_4bit_quant_type")
    plain = read({"run.yaml": off}, parse_cluster("1x8xh100-sxm")).request["training"]
    assert "frozen_dtype" not in plain


def test_adapters_in_some_layers_are_said() -> None:
    text = (
        "model: Qwen/Qwen2.5-7B\nper_device_train_batch_size: 2\nmax_length: 512\nbf16: true\n"
        "r: 8\nlora_alpha: 16\nlayers_to_transform: [1, 2]\n"
    )
    found = read({"run.yaml": text}, parse_cluster("1x8xh100-sxm"))
    assert "layers_to_transform: adapters in some layers are costed in every" in str(found.assumed)
