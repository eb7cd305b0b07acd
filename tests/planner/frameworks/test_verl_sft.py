"""verl's SFT trainers."""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

CALL = "torchrun --nproc_per_node={each} -m verl.trainer.fsdp_sft_trainer "
MODEL = "model.partial_pretrain=Qwen/Qwen2.5-7B-Instruct"


def reading(words: str, each: str = "8") -> ReadAnswer:
    return read({"run.sh": CALL.format(each=each) + words}, parse_cluster("1x4xh100-sxm"))


def test_its_keys_and_defaults() -> None:
    found = reading(
        f"{MODEL} data.train_batch_size=64 data.max_length=2048 data.micro_batch_size_per_gpu=2 "
        "ulysses_sequence_parallel_size=2 model.lora_rank=32 +model.fsdp_config.cpu_offload=True"
    ).request
    plan, training = found["plan"], found["training"]
    assert (plan["cp"], plan["dp"], plan["micro_batch_size"]) == (2, 4, 2)
    assert (plan["zero_stage"], plan["offload_optimizer"]) == (3, True)
    assert (training["global_batch_size"], training["seq_length"]) == (64, 2048)
    assert training["lora_rank"] == 32
    usual = reading(MODEL).request
    assert (usual["training"]["global_batch_size"], usual["training"]["seq_length"]) == (256, 1024)
    assert "enable_gradient_checkpointing: not set" in str(usual["guessed"])


def test_its_loss_reads_whole_logits_with_ligers_kernels_too() -> None:
    found = reading(f"{MODEL} model.use_liger=True").request
    assert found["plan"]["cross_entropy"] == "unfused"
    assert "reads the logits of all tokens" in str(found["guessed"])


def test_the_micro_batch_of_all_ranks_of_older_releases() -> None:
    found = reading(f"{MODEL} data.micro_batch_size=8", each="$1").request
    assert (found["plan"]["dp"], found["plan"]["micro_batch_size"]) == (4, 2)


def test_a_configuration_that_the_script_writes_and_its_call_overrides() -> None:
    written = "data:\n  max_length: 512\n  train_batch_size: 32\nmodel:\n  partial_pretrain: $M\n"
    call = CALL.format(each="4") + '--config-path="$D" --config-name=mine data.max_length=4096'
    script = f'M=Qwen/Qwen3-8B D=/a/b\ncat > "$D/mine.yaml" <<END\n{written}END\n{call}\n'
    found = read({"run.sh": script}, parse_cluster("1x4xh100-sxm")).request
    training = found["training"]
    assert (training["global_batch_size"], training["seq_length"]) == (32, 4096)
    assert found["model"]["num_layers"] == 36


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("model.partial_pretrain=$MODEL", "give it .--model"),
        ("--config-name mine", "partial_pretrain is missing, unless mine.yaml has it"),
        (f"{MODEL} data.max_length=$LEN", "--set LEN=..."),
        (f"{MODEL} engine=megatron", "only the engine fsdp"),
    ],
)
def test_what_stands_in_the_way(words: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        reading(words)


def test_a_release_whose_defaults_have_a_micro_batch_of_each_rank_reads_that() -> None:
    defaults = "data:\n  micro_batch_size: null\n  micro_batch_size_per_gpu: 4\n"
    script = (
        "torchrun --nnodes=1 --nproc_per_node=4 -m verl.trainer.fsdp_sft_trainer "
        f"{MODEL} data.micro_batch_size=8\n"
    )
    found = read({"run.sh": script, "sft_trainer.yaml": defaults}, parse_cluster("1x8xh100-sxm"))
    assert found.request["plan"]["micro_batch_size"] == 4
    assert "data.micro_batch_size is not looked at" in str(found.assumed)
