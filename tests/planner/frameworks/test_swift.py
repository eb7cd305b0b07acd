"""ms-swift's `megatron sft`: Megatron-LM's attributes with its own defaults."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import lint
from planner.answers.lint.lint import read as said
from planner.frameworks import get
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable
from planner.inputs.requests.parser import parse_cluster

SCRIPT = """\
NNODES=2 \\
NPROC_PER_NODE=8 \\
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \\
megatron sft \\
    --model Qwen/Qwen3-30B-A3B-Instruct-2507 \\
    --dataset 'org/data-zh#500' \\
              'org/data-en#500' \\
    --tensor_model_parallel_size 2 \\
    --pipeline_model_parallel_size 2 \\
    --expert_model_parallel_size 4 \\
    --sequence_parallel true \\
    --micro_batch_size 1 \\
    --global_batch_size 32 \\
    --packing true \\
    --moe_grouped_gemm true \\
    --lr 1e-5 \\
    --max_length 8192 \\
    --system 'You are a helpful assistant.'
"""
PACKED = "--packing true"


def read(text: str = SCRIPT, given: GivenValues | None = None, size: int | None = None) -> Reading:
    framework = get("megatron")
    assert framework.read is not None
    files = LaunchFiles({"sft.sh": text}, given)
    assert framework.recognises(files)
    return framework.read(files, size)


def test_what_a_launch_says_with_the_defaults_of_its_own() -> None:
    reading = read()
    plan, training = reading.plan, reading.training
    assert (plan.tp, plan.pp, plan.ep, plan.etp, plan.dp) == (2, 2, 4, 1, 4)
    assert (plan.sequence_parallel, plan.zero_stage, plan.micro_batch_size) == (True, 1, 1)
    assert (plan.recompute, plan.recompute_modules) == ("selective", ("core_attn",))
    assert (plan.moe_dispatcher, plan.overlap_grad_reduce) == ("alltoall", False)
    assert (training.global_batch_size, training.seq_length) == (32, 8192)
    assert (training.precision, training.gradient_reduce_dtype) == ("bf16", "fp32")
    assert (reading.nodes, reading.accelerators_per_node) == (2, 8)
    assert (reading.model.num_layers, reading.refusals, reading.unknown) == (48, (), ())
    assert [one.name for one in reading.unread] == ["--moe-grouped-gemm"]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ("--recompute_granularity none", "recompute", "none"),
        ("--recompute_granularity full --recompute_method uniform --recompute_num_layers 1",
         "recompute", "full"),
        ("--virtual_pipeline_model_parallel_size 2", "vpp", 2),
        ("--optimizer_cpu_offload true", "offload_optimizer", True),
        ("--context_parallel_size 2", "cp", 2),
    ],
)  # fmt: skip
def test_options_of_the_plan(change: str, field: str, value: object) -> None:
    assert getattr(read(SCRIPT.replace(PACKED, f"{PACKED} {change}")).plan, field) == value


def test_samples_that_are_not_packed_are_taken_at_their_longest() -> None:
    assert not any("--max_length" in one for one in read().assumed)
    assert any("--max_length, 8192" in one for one in read(SCRIPT.replace(PACKED, "")).assumed)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ((PACKED, "--tuner_type longlora"), "--set tuner_type=full reads it as that"),
        ((PACKED, "--tuner_type lora --lora_rank x"), "--lora_rank 'x' is not a number"),
        ((PACKED, "--tuner_type lora --target_modules router"), "adapters at 'router' are not"),
        ((PACKED, "--freeze_llm true"), "--freeze_llm true: not understood"),
        ((PACKED, "--task_type seq_cls"), "--task_type seq_cls is not read"),
        (("--max_length 8192", ""), "--max_length is missing"),
        (("--model Qwen/Qwen3-30B-A3B-Instruct-2507", ""), "--model is missing"),
        (("Qwen3-30B-A3B-Instruct-2507", "nobody-7B"), "the model nobody-7B is no preset"),
    ],
)
def test_what_is_not_read_is_refused_by_name(change: tuple[str, str], text: str) -> None:
    assert change[0] in SCRIPT
    with pytest.raises(Unreadable, match=text):
        read(SCRIPT.replace(*change))


def test_adapters_and_what_they_are_where_nothing_is_said() -> None:
    usual = read(SCRIPT.replace(PACKED, f"{PACKED} --tuner_type lora")).training
    assert (usual.lora_rank, usual.lora_dropout) == (8, 0.05)
    assert usual.lora_targets == ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    some = "--tuner_type lora --lora_rank 64 --lora_alpha 32 --target_modules linear_qkv linear_fc2"
    training = read(SCRIPT.replace(PACKED, f"{PACKED} {some}")).training
    assert (training.lora_rank, training.lora_targets) == (64, ("linear_qkv", "linear_fc2"))
    assert read().training.lora_rank == 0


def test_another_task_is_read_as_text_where_that_is_asked_for() -> None:
    text = SCRIPT.replace(PACKED, f"{PACKED} --task_type seq_cls")
    given = GivenValues(values={"task_type": "causal_lm"})
    assert read(text, given=given).plan == read().plan


def test_an_encoder_that_no_preset_holds_is_said_to_be_left_out() -> None:
    seeing = SCRIPT.replace("Qwen3-30B-A3B-Instruct-2507", "Qwen3-VL-8B-Instruct")
    assert any("only the language model of" in one for one in read(seeing).assumed)
    assert not any("only the language model of" in one for one in read().assumed)


def test_the_world_is_asked_for_where_the_environment_leaves_it_open() -> None:
    alone = SCRIPT.replace("NNODES=2 \\\n", "")
    assert read(alone).nodes == 1
    bare = alone.replace("NPROC_PER_NODE=8 \\\n", "")
    assert (read(bare, size=16).plan.dp, read(bare, size=16).nodes) == (4, None)
    with pytest.raises(Unreadable, match="give a cluster"):
        read(bare)


def test_values_may_be_given() -> None:
    assert read(given=GivenValues(values={"--tensor_model_parallel_size": "4"})).plan.tp == 4


def test_it_is_judged() -> None:
    cluster = parse_cluster("2x8xh100-sxm")
    assert said({"sft.sh": SCRIPT}, cluster).framework == "megatron"
    assert lint({"sft.sh": SCRIPT}, cluster).estimate is not None


def test_alignment_trains_pairs_or_what_was_generated() -> None:
    """A sample of DPO is two sequences; one of GRPO is a prompt and its completion."""
    aligned = SCRIPT.replace("megatron sft", "megatron rlhf --rlhf_type {kind}")
    whole, dpo = read(), read(aligned.format(kind="dpo"))
    assert dpo.training.global_batch_size == 2 * whole.training.global_batch_size
    assert dpo.plan.micro_batch_size == 2 * whole.plan.micro_batch_size
    assert (dpo.training.loss, whole.training.loss) == ("dpo", "next_token")
    kto = read(aligned.format(kind="kto"))
    assert any("reference, reward, teacher" in one for one in kto.assumed)
    assert kto.training.global_batch_size == whole.training.global_batch_size
    grpo = read(aligned.format(kind="grpo --max_completion_length 2048"))
    assert grpo.training.seq_length == whole.training.seq_length + 2048
    with pytest.raises(Unreadable, match="--rlhf_type gkd is not read; dpo, kto, grpo are"):
        read(aligned.format(kind="gkd"))
