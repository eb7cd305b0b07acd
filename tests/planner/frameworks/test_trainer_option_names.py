"""Options of a trainer's scripts under names of their own: adapters, and who starts the program."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import read
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.trainer_scripts import BATCH, LENGTH, MODEL, reading


@pytest.mark.parametrize(
    "launcher",
    [
        "srun --ntasks=16 --ntasks-per-node=8 python t.py",
        "mpirun -np 8 python t.py",
        "NPROC_PER_NODE=8 python swift/cli/sft.py",
        "CUDA_VISIBLE_DEVICES=0 python t.py",
    ],
)
def test_python_under_a_launcher_is_not_one_process(launcher: str) -> None:
    found = reading(launcher, MODEL, BATCH, LENGTH)
    assert not any("one process" in one for one in found.assumed)


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        ("--lora_r 16 --vision_lora_r 0", 16),
        ("--vision_lora_r 8 --lora_r 0", 0),
        ("--lora_r 0", 0),
    ],
)
def test_a_rank_of_zero_of_another_part_counts_there_alone(words: str, rank: int) -> None:
    training = reading("torchrun t.py", MODEL, BATCH, LENGTH, words).request["training"]
    assert training.get("lora_rank", 0) == rank


@pytest.mark.parametrize(
    ("option", "rank"), [("", 24), ("--lora_r 4", 4), ("--lora_rank 4", 4), ("--peft_r 4", 4)]
)
def test_an_option_counts_before_a_file_of_adapters(option: str, rank: int) -> None:
    launch = f"torchrun --nproc_per_node 8 t.py {MODEL} {BATCH} {LENGTH} --use_lora True "
    files = {
        "run.sh": f"{launch}--lora_config lora.json {option}\n",
        "lora.json": '{"r": 24, "lora_dropout": 0.05}',
    }
    training = read(files, parse_cluster("1x8xh100-sxm")).request["training"]
    assert (training["lora_rank"], training["lora_dropout"]) == (rank, 0.05)
