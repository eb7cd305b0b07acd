"""ms-swift's `swift sft` and its like, on transformers' Trainer."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import read as read_files
from planner.documents.problems import RequestError
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.sources import framework_of, reading_of
from planner.inputs.requests.parser import parse_cluster

CALL = "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen2.5-7B-Instruct --max_length 2048 --dataset d"


def read(script: str, asked: int = 64) -> Reading:
    files = {"run.sh": script}
    return reading_of(framework_of(files, None), files, asked)


def test_defaults_are_adapters_and_sixteen_sequences_a_step() -> None:
    reading = read(CALL)
    training, plan = reading.training, reading.plan
    assert (training.lora_rank, training.seq_length) == (8, 2048)
    assert len(training.lora_targets) == 7
    assert (plan.dp, plan.micro_batch_size, plan.recompute) == (8, 1, "full")
    assert training.global_batch_size == 16
    assert (reading.nodes, reading.accelerators_per_node) == (1, 8)


@pytest.mark.parametrize(
    ("words", "rank", "batch", "frozen"),
    [
        ("--train_type full --batch_size 2 --gradient_accumulation_steps 4", 0, 64, None),
        ("--tuner_type lora --lora_rank 32 --per_device_train_batch_size 4", 32, 32, None),
        ("--sft_type full --batch_size 4 --gradient_accumulation_steps 1", 0, 32, None),
        ("--train_type lora --quant_method bnb --quant_bits 4", 8, 16, "nf4"),
    ],
)  # fmt: skip
def test_names_of_all_its_releases(words: str, rank: int, batch: int, frozen: str | None) -> None:
    training = read(f"{CALL} {words} --deepspeed zero3").training
    assert (training.lora_rank, training.global_batch_size) == (rank, batch)
    assert (training.frozen_dtype if frozen else None) == frozen


def test_a_stage_of_zero_is_named_and_one_process_is_the_default() -> None:
    reading = read(CALL.replace("NPROC_PER_NODE=8 ", "") + " --train_type full --deepspeed zero2")
    assert (reading.plan.zero_stage, reading.plan.accelerators) == (2, 1)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("gkd", "gkd also generates samples"),
        ("ppo", "ppo also generates samples"),
        ("kto", "the loss of kto cannot be planned"),
    ],
)
def test_other_losses_are_refused_by_name(kind: str, why: str) -> None:
    with pytest.raises((Unreadable, RequestError), match=why):
        read(CALL.replace("swift sft", f"swift rlhf --rlhf_type {kind}"))


def test_of_grpo_the_training_is_read_with_the_longest_responses() -> None:
    call = CALL.replace("swift sft", "swift rlhf --rlhf_type grpo --num_generations 8 --beta 0.1")
    reading = read(f"{call} --reward_funcs accuracy --max_completion_length 1024")
    assert (reading.training.loss, reading.training.seq_length) == ("next_token", 2048 + 1024)
    assert "2048 + 1024" in str(reading.assumed)
    assert read(call).training.seq_length == 2048 + 512


def test_dpo_is_its_own_loss() -> None:
    assert read(CALL.replace("swift sft", "swift rlhf --rlhf_type dpo")).training.loss == "dpo"


@pytest.mark.parametrize("option", ["--pre_seq_len 128", "--medusa_num_heads 3"])
def test_parts_that_are_added_and_trained_alone_are_no_full_tuning(option: str) -> None:
    call = (
        "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B "
        f"--model_max_length 2048 --per_device_train_batch_size 1 {option}"
    )
    with pytest.raises((Unreadable, RequestError), match="adds parts to the model"):
        read(call)


@pytest.mark.parametrize(
    ("start", "dp"),
    [
        ("torchrun --nproc_per_node=4 $(which swift) sft", 4),
        ("torchrun --nproc_per_node=2 -m swift.cli.sft", 2),
        ("deepspeed --num_gpus 3 swift/cli/sft.py", 3),
    ],
)
def test_a_launcher_before_it_starts_the_processes(start: str, dp: int) -> None:
    words = "--model Qwen/Qwen2.5-7B-Instruct --max_length 2048 --dataset d"
    assert read(f"{start} {words}").plan.dp == dp


def test_adapters_beside_those_of_every_linear_layer_are_said() -> None:
    reading = read(f"{CALL} --target_modules all-linear embed_tokens lm_head")
    assert "adapters at embed_tokens, lm_head are not costed" in reading.assumed
    assert len(reading.training.lora_targets) == 7


def test_a_model_without_its_name_is_missing() -> None:
    words = "--model_type qwen2_5_vl --model --max_length 2048 --dataset d"
    with pytest.raises(RequestError, match="leaves out the model: add --model NAME"):
        read(f"NPROC_PER_NODE=8 swift sft {words}")


CONFIG = """\
model: Qwen/Qwen2.5-7B-Instruct
train_type: full
torch_dtype: bfloat16
max_length: 4096
attn_impl: flash_attn
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
use_ray: true
device_groups:
  nproc_per_node: 8
  default:
    device: GPU
    ranks: list(range(0, 16))
    workers: [default]
"""


def test_a_configuration_in_yaml_is_read_by_its_call_and_alone() -> None:
    call = 'swift sft --config "$(cd "$(dirname "$0")" && pwd)/swift.yaml"\n'
    for files in ({"run.sh": call, "swift.yaml": CONFIG}, {"swift.yaml": CONFIG}):
        answer = read_files(files, parse_cluster("2x8xh100-sxm"))
        plan, training = answer.request["plan"], answer.request["training"]
        assert (answer.nodes, answer.accelerators_per_node, plan["dp"]) == (2, 8, 16)
        assert plan["attention_kernel"] == "flash2"
        assert (training["seq_length"], training["global_batch_size"]) == (4096, 128)


def test_activations_that_its_fsdp_keeps_in_host_memory() -> None:
    call = f"{CALL} --train_type lora --fsdp a/fsdp2.json"
    keys = '{"fsdp": "full_shard auto_wrap", "fsdp_config": {"fsdp_version": 2, "%s": true}}'
    for key, moved in (("activation_cpu_offload", True), ("reshard_after_forward", False)):
        files = {"run.sh": call, "fsdp2.json": keys % key}
        plan = reading_of(framework_of(files, None), files, 8).plan
        assert (plan.zero_stage, bool(plan.offload_activations)) == (3, moved)


def test_its_megatron_takes_the_model_from_a_checkpoint_and_saves_by_itself() -> None:
    call = (
        "NPROC_PER_NODE=8 megatron sft --load x/Qwen2.5-7B-Instruct-mcore --max_length 2048 "
        "--micro_batch_size 1 --global_batch_size 16 --save out"
    )
    reading = read(call, 8)
    assert (reading.model.name, reading.refusals) == ("qwen2.5-7b", ())
    assert "no --model: Qwen2.5-7B-Instruct by the name of its checkpoint" in reading.assumed


def test_parts_around_the_language_model_that_its_megatron_freezes() -> None:
    call = (
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen3-VL-8B-Instruct --max_length 2048 "
        "--micro_batch_size 1 --global_batch_size 16 --freeze_llm {} --freeze_vit true "
        "--freeze_aligner true"
    )
    reading = read(call.format("false"), 8)
    assert reading.training.global_batch_size == 16
    assert "only the language model is costed, without its image encoder" in reading.assumed
    with pytest.raises((Unreadable, RequestError), match="--freeze_llm true"):
        read(call.format("true"), 8)
