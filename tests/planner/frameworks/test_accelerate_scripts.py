"""Scripts of people's own that accelerate launches with its config: their options and lint."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import lint, read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

FSDP2 = """\
distributed_type: FSDP
fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}
mixed_precision: bf16
num_processes: 8
"""
OWN = (
    "accelerate launch --config_file a.yaml train.py --per_device_train_batch_size 1 "
    "--max_length 4096 --model_name_or_path google/gemma-4-31b-it --cpu_offload --compile\n"
)


def test_options_of_a_script_that_change_the_plan_are_read() -> None:
    found = read({"run.sh": OWN, "a.yaml": FSDP2}, parse_cluster("1x8xh100-sxm")).request
    assert (found["plan"]["offload_optimizer"], found["plan"]["compile"]) == (True, True)
    bare = OWN.replace(" --cpu_offload --compile", " --use_fp8 1 --shard_by 4")
    other = read({"run.sh": bare, "a.yaml": FSDP2}, parse_cluster("1x8xh100-sxm")).request
    assert "offload_optimizer" not in other["plan"]
    assert "may change time or memory: --shard_by 4" in str(other["guessed"])


def test_a_model_that_the_writer_cannot_write_is_linted() -> None:
    answer = lint({"run.sh": OWN, "a.yaml": FSDP2}, parse_cluster("1x8xh100-sxm"))
    assert answer.estimate is not None


def test_the_yaml_that_a_script_names_is_asked_for() -> None:
    launch = "accelerate launch --num_processes=4 scripts/run_dpo.py recipes/dpo.yaml --x=1\n"
    with pytest.raises(RequestError, match=r"may be in dpo\.yaml, which is not among the files"):
        read({"run.sh": launch}, parse_cluster("1x8xh100-sxm"))
