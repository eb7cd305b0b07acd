"""NeMo 2's performance scripts: a recommended configuration with what the options set otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from planner.answers.lint.lint import lint
from planner.frameworks import get
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.megatron_bridge.nemo2_performance import script_of, table
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.requests.parser import parse_cluster
from tests.planner.frameworks.test_nemo2 import read

START = "python -m scripts.performance.llm."


def command(words: str, values: dict[str, str] | None = None) -> Reading:
    return read(
        {"run.sh": f"{START}{words} -a me -p batch -t 00:20:00\n"}, GivenValues(values or {})
    )


def test_a_recommended_configuration() -> None:
    reading = command("pretrain_llama3_70b -g h100 -c bf16")
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.pp, plan.cp, plan.vpp, plan.dp) == (4, 4, 2, 5, 2)
    assert (reading.nodes, reading.accelerators_per_node, plan.micro_batch_size) == (8, 8, 1)
    assert (training.global_batch_size, training.seq_length) == (128, 8192)
    assert (training.precision, training.gradient_dtype) == ("bf16", "bf16")
    assert (plan.sequence_parallel, plan.overlap_tp, plan.recompute) == (True, True, "none")
    assert reading.model.num_layers == 80
    assert any("recommended configuration of pre_train of llama3 70b" in t for t in reading.assumed)


def test_options_lie_over_it() -> None:
    reading = command(
        "pretrain_llama3_70b --gpu=h100 -c fp8 -fr cs -ng 128 -tp 8 -pp 2 -vp 1 -cp 1 -mb 2 "
        "-gb 256 -rl 4 --max_steps 50 -hf $HF_TOKEN"
    )
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.pp, plan.cp, plan.vpp, plan.dp) == (8, 2, 1, 1, 8)
    assert (training.precision, training.fp8_recipe) == ("fp8", "tensorwise")
    assert (plan.recompute, plan.recompute_num_layers, plan.micro_batch_size) == ("full", 4, 2)
    assert (reading.nodes, training.global_batch_size) == (16, 256)


def test_a_configuration_with_sharded_weights() -> None:
    plan = command("pretrain_llama3_70b -g gb200 -c bf16").plan
    assert (plan.dp, plan.zero_stage, plan.recompute_num_layers) == (64, 3, 20)
    assert command("pretrain_llama3_70b -g gb200 -c bf16").accelerators_per_node == 4
    off = command("pretrain_llama3_70b -g gb200 -c bf16 -fsdp false -rl 0").plan
    assert (off.zero_stage, off.recompute) == (1, "none")


def test_layers_of_stages_follow_the_degrees() -> None:
    reading = command("pretrain_deepseek_v3 -g b200 -c bf16 -pp 8 -vp 2")
    assert (reading.plan.pp, reading.plan.vpp) == (8, 2)
    assert reading.model.moe is not None
    assert reading.model.moe.capacity_factor == 1.0
    with pytest.raises(Unreadable, match=r"pipeline_parallel_size 8, .* it takes"):
        command("pretrain_deepseek_v3 -g b200 -c bf16 -pp 8 -vp 4")


def test_tuning() -> None:
    adapters = command("finetune_llama3_70b -g h100 -c fp8 -f lora")
    assert (adapters.training.lora_rank, adapters.training.seq_length) == (16, 4096)
    whole = command("finetune_llama3_70b -g h100 -c fp8 -f sft")
    assert whole.training.lora_rank == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("pretrain_llama3_8b -g a100", r"--gpu must be h100 or b200 or gb200, got 'a100'"),
        ("pretrain_llama3_8b -g h100 -ng 24", r"there is one for 8\): give --micro_batch_size"),
        ("pretrain_llama3_8b -g h100 -ng many", r"--num_gpus must be a whole number from 1"),
        ("pretrain_llama3_8b -g h100 -ng $NODES", r"--num_gpus is \$NODES, .*: --set NODES="),
        ("pretrain_llama3_8b -g h100 --tensr 2", "unrecognized arguments: --tensr 2"),
        ("pretrain_llama3_8b -g h100 -cg maybe", "--cuda_graphs must be true or false"),
        ("finetune_llama3_8b -g h100", r"stops with an error \(NameError: name 'use_mcore_fsdp'"),
        ("pretrain_deepseek_v3 -g h100", "recompute_granularity must be selective"),
    ],
)
def test_what_cannot_be_read_is_said(words: str, text: str) -> None:
    with pytest.raises(Unreadable, match=text):
        command(words)


def test_what_is_given_lies_over_the_options() -> None:
    reading = command("pretrain_llama3_8b -g h100 -c bf16 -gb $GBS", {"global_batch_size": "64"})
    assert reading.training.global_batch_size == 64
    assert command("pretrain_llama3_8b -g h100 -ng $N", {"N": "8"}).nodes == 1


def test_only_its_own_scripts_are_taken_for_it() -> None:
    other = LaunchFiles({"run.sh": "python -m llm.pretrain_llama3_8b -g h100\n"})
    assert not get("megatron-bridge").recognises(other)
    assert script_of("scripts/performance/llm/pretrain_gpt3_175b.py") == "pretrain_gpt3_175b"


def recommended() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every recommended configuration of a script that runs, with the call that takes it."""
    for name, row in table()["scripts"].items():
        for gpu, rows in table()["configurations"].items():
            for one in rows:
                tasks = [row["task"]] if row.get("task") else ["sft", "lora"]
                same = [row.get("model"), row.get("size")] == [one["model"], one["size"]]
                if same and one["task"] in tasks:
                    tuning = "" if one["task"] == "pre_train" else f" -f {one['task']}"
                    count = f"-c {one['dtype']} -ng {one['num_gpus']}"
                    yield f"{name} -g {gpu} {count}{tuning}", one


@pytest.mark.slow
def test_every_recommended_configuration_of_a_preset_is_read() -> None:
    refused: list[str] = []
    count = 0
    for told, row in recommended():
        try:
            reading = command(told)
        except Unreadable as error:
            refused.append(error.text)
            continue
        count += 1
        assert reading.plan.tp == row["tp_size"], told
        assert reading.training.global_batch_size == row["gbs"], told
    assert count > 60
    known = ("which is no preset", "the script stops", "is not read with")
    assert not [text for text in refused if not any(words in text for words in known)]


def test_lint_judges_it() -> None:
    text = f"{START}pretrain_llama3_70b -g h100 -c bf16 -a a -p p\n"
    found = lint({"run.sh": text}, parse_cluster("8x8xh100-sxm")).findings
    assert [one for one in found if one.severity == "error"] == []
