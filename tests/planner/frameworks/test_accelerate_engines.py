"""accelerate's configurations alone: what shards, and what they leave out."""

from __future__ import annotations

import json

import pytest

from planner.answers.lint.lint import lint
from planner.answers.lint.request import parse_given
from planner.frameworks import get
from planner.frameworks.launch_files import LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.requests.parser import parse_cluster

CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
{section}
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
GIVEN = {"per_device_train_batch_size": 2, "max_length": 4096}


def files_of(kind: str, section: str = "", **more: str) -> dict[str, str]:
    return {"config.yaml": CONFIG.format(kind=kind, section=section), **more}


def read(files: dict[str, str], model: str | None = "llama-3.1-8b", **given: object) -> Reading:
    document = {"set": {**GIVEN, **given}} | ({} if model is None else {"model": model})
    framework = get("accelerate")
    assert framework.read is not None
    assert framework.recognises(files)
    return framework.read(LaunchFiles(files, parse_given(document)), None)


@pytest.mark.parametrize(
    ("keys", "stage", "shard"),
    [
        ("fsdp_sharding_strategy: FULL_SHARD", 3, 0),
        ("fsdp_sharding_strategy: 1", 3, 0),
        ("fsdp_sharding_strategy: SHARD_GRAD_OP", 2, 0),
        ("fsdp_reshard_after_forward: FULL_SHARD", 3, 0),
        ("fsdp_sharding_strategy: NO_SHARD", 0, 0),
        ("fsdp_sharding_strategy: HYBRID_SHARD", 3, 8),
        ("fsdp_version: 2", 3, 0),
    ],
)
def test_what_fsdp_shards(keys: str, stage: int, shard: int) -> None:
    plan = read(files_of("FSDP", f"fsdp_config:\n  {keys}")).plan
    assert (plan.zero_stage, plan.dp_shard, plan.dp, plan.runtime) == (
        stage,
        shard,
        16,
        "transformers",
    )


@pytest.mark.parametrize(
    ("keys", "stage", "offload"),
    [
        ("zero_stage: 3", 3, False),
        ("zero_stage: 2\n  offload_optimizer_device: cpu", 2, True),
        ("gradient_accumulation_steps: 4", 2, False),
        ("zero_stage: 1\n  gradient_accumulation_steps: auto", 1, False),
    ],
)
def test_what_deepspeed_shards(keys: str, stage: int, offload: bool) -> None:
    reading = read(files_of("DEEPSPEED", f"deepspeed_config:\n  {keys}"))
    plan = reading.plan
    assert (plan.zero_stage, plan.offload_optimizer, plan.runtime) == (stage, offload, "deepspeed")
    assert reading.training.global_batch_size == 2 * 16 * (4 if "steps: 4" in keys else 1)
    assert reading.refusals == ()


def test_deepspeeds_json_counts_where_it_is_named() -> None:
    section = "deepspeed_config:\n  deepspeed_config_file: conf/ds.json"
    zero = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
    plan = read(files_of("DEEPSPEED", section, **{"ds.json": json.dumps(zero)})).plan
    assert (plan.zero_stage, plan.offload_optimizer) == (3, True)
    with pytest.raises(Unreadable, match=r"ds\.json, which is not among"):
        read(files_of("DEEPSPEED", section))


def test_what_a_configuration_leaves_out_is_named() -> None:
    files = files_of("FSDP")
    with pytest.raises(Unreadable, match="--model"):
        read(files, model=None)
    with pytest.raises(Unreadable, match="t5-large is an encoder, or has one"):
        read({**files, "run.sh": "accelerate launch train.py --model_name_or_path google/t5-large"},
             model=None)  # fmt: skip
    framework = get("accelerate")
    assert framework.read is not None
    for text in ("per_device_train_batch_size", "max_length"):
        given = {name: value for name, value in GIVEN.items() if name != text}
        asked = parse_given({"model": "llama-3.1-8b", "set": given})
        with pytest.raises(Unreadable, match=f"--set {text}="):
            framework.read(LaunchFiles(files, asked), None)


def test_the_launch_line_says_model_and_batch() -> None:
    line = (
        "accelerate launch --config_file config.yaml train.py --model_name_or_path "
        "meta-llama/Llama-3.1-8B --max_length 2048 --per-device-train-batch-size 4\n"
    )
    files = files_of("FSDP", **{"run.slurm": line})
    framework = get("accelerate")
    assert framework.read is not None
    reading = framework.read(files, None)
    assert (reading.model.num_layers, reading.plan.micro_batch_size) == (32, 4)
    silent = framework.read(
        {**files, "run.slurm": line.replace("--per-device-train-batch-size 4", "")}, None
    )
    assert silent.plan.micro_batch_size == 8
    assert any("8 as in transformers" in text for text in silent.assumed)


def test_engines_that_nobody_writes_are_judged_without_another_plan() -> None:
    files = files_of("DEEPSPEED", "deepspeed_config:\n  zero_stage: 3")
    given = parse_given({"model": "llama-3.1-8b", "set": GIVEN})
    answer = lint(files, parse_cluster("2x8xh100-sxm"), None, given)
    assert answer.best is None
    assert answer.estimate is not None
    assert [one for one in answer.findings if one.severity == "error"] == []


def test_a_key_that_stands_twice_counts_as_pyyaml_takes_it() -> None:
    reading = read(files_of("FSDP", "num_processes: 32\nfsdp_config:\n  fsdp_version: 2"))
    assert reading.plan.dp == 16
    assert any("num_processes occurs twice" in text for text in reading.assumed)
