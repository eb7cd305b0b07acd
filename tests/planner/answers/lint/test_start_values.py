"""Scripts that stop at their start since two of their values contradict each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.answers.lint.findings import Finding
from planner.answers.lint.lint import found_in
from planner.constraints import violations
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.scripts import PRETRAIN_7B

MEGATRON = f"{PRETRAIN_7B} --bf16"
TRAINER = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B"
    " --per_device_train_batch_size 8 --gradient_accumulation_steps 4 --learning_rate 2e-5"
    " --bf16 True --gradient_checkpointing True --max_seq_length 4096 --deepspeed ds.json"
)
AGREES: dict[str, Any] = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "weight_decay": "auto"}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


def errors(files: dict[str, str]) -> list[Finding]:
    _, found = found_in(files, parse_cluster("1x8xh100-sxm"))
    return [one for one in found if one.severity == "error"]


@pytest.mark.parametrize(
    ("options", "option", "text"),
    [
        ("--lr 3e-4 --min-lr 3e-3 --train-iters 100", "--min-lr", "3e-3 is above --lr 3e-4"),
        ("--lr 1e-4 --lr-warmup-init 2e-4 --train-iters 9", "--lr-warmup-init", "above --lr"),
        (
            "--train-iters 1000 --lr 1e-4 --lr-warmup-iters 2000",
            "--lr-warmup-iters",
            "2000 must be less than --train-iters 1000",
        ),
        (
            "--train-iters 1000 --lr 1e-4 --lr-decay-iters 500 --lr-warmup-iters 500",
            "--lr-warmup-iters",
            "500 must be less than --lr-decay-iters 500",
        ),
        (
            "--train-samples 640 --lr 1e-4 --lr-warmup-samples 6400",
            "--lr-warmup-samples",
            "less than --train-samples 640",
        ),
        ("--train-iters 10 --lr-warmup-fraction 1.0", "--lr-warmup-fraction", "all of the steps"),
    ],
)
def test_a_schedule_that_megatron_asserts_against(options: str, option: str, text: str) -> None:
    (one,) = errors({"a.sh": f"{MEGATRON} {options}"})
    assert (one.code, one.file, one.line, one.option) == (
        "learning_rate_schedule",
        "a.sh",
        2,
        option,
    )
    assert text in one.text


@pytest.mark.parametrize(
    "options",
    [
        "--lr 3e-4 --min-lr 3e-4 --train-iters 1000 --lr-warmup-iters 999",
        "--train-iters 100 --lr-decay-iters 3000 --lr-warmup-iters 2000",
        "--lr-warmup-fraction 0.1 --train-iters 10 --lr 1e-4 --min-lr 1e-5",
        "--train-iters 0 --lr-warmup-iters 0",
    ],
)
def test_a_schedule_that_it_takes(options: str) -> None:
    assert errors({"a.sh": f"{MEGATRON} {options}"}) == []


def test_a_json_that_agrees_is_not_blamed() -> None:
    auto = {**AGREES, "train_batch_size": "auto", "gradient_accumulation_steps": "auto"}
    for document in (AGREES, auto, {"zero_optimization": {"stage": 2}}):
        assert errors({"a.sh": TRAINER, "ds.json": json.dumps(document)}) == []


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (
            {"train_micro_batch_size_per_gpu": 4},
            {"train_batch_size", "train_micro_batch_size_per_gpu"},
        ),
        ({"train_micro_batch_size_per_gpu": 4, "train_batch_size": "auto"},
         {"train_micro_batch_size_per_gpu"}),
        ({"train_batch_size": 512}, {"train_batch_size"}),
        ({"gradient_accumulation_steps": "auto", "train_batch_size": 64}, {"train_batch_size"}),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}, {"optimizer.params.lr"}),
        ({"fp16": {"enabled": True}}, {"fp16.enabled"}),
        ({"bf16": {"enabled": False}}, {"bf16.enabled"}),
    ],
)  # fmt: skip
def test_a_json_that_contradicts_itself_or_the_options(
    change: dict[str, Any], keys: set[str]
) -> None:
    text = json.dumps({**AGREES, **change}, indent=1)
    found = errors({"a.sh": TRAINER, "ds.json": text})
    assert {one.code for one in found} == {"deepspeed_values"}
    assert {one.option for one in found} == keys
    for one in found:
        assert one.file == "ds.json"
        assert f'"{one.option.rsplit(".", 1)[-1]}"' in text.splitlines()[one.line - 1]


def test_advice_is_what_the_trainer_has_options_for() -> None:
    """Of a Trainer under DeepSpeed, which is not written here: layers are recomputed or not."""
    config = parse_cluster("1x1xa100-sxm-40gb")
    script = TRAINER.replace("--nproc_per_node 8", "--nproc_per_node 1").replace(
        "--deepspeed ds.json", "--use_peft True --lora_r 16"
    )
    launch, found = found_in({"a.sh": script}, config)
    rules = {
        rule
        for rule in launch.framework.rules
        if not violations(launch.context, launch.plan, (rule,))
    }
    assert launch.plan.recompute == "full"
    for one in found:
        changed = launch.plan.model_copy(update=one.set)
        assert not violations(launch.context, changed, rules), one
    neighbour = launch.fastest(
        [{"recompute_method": "block", "recompute_num_layers": n} for n in range(1, 32)],
        fitting=False,
    )
    assert neighbour is None
