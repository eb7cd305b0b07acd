"""OpenRLHF's trainings by the options of its older releases."""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

USUAL = (
    "--pretrain meta-llama/Meta-Llama-3-8B --micro_train_batch_size 2 --train_batch_size 256 "
    "--max_len 4096 --zero_stage 3 --bf16 --flash_attn --gradient_checkpointing --adam_offload"
)


def reading(call: str) -> ReadAnswer:
    return read({"run.sh": call}, parse_cluster("1x8xh100-sxm"))


def why(call: str) -> str:
    with pytest.raises(RequestError) as caught:
        reading(call)
    return str(caught.value)


def test_sft() -> None:
    found = reading(f"deepspeed --num_gpus 4 --module openrlhf.cli.train_sft {USUAL}").request
    plan, training = found["plan"], found["training"]
    assert (plan["dp"], plan["zero_stage"], plan["micro_batch_size"]) == (4, 3, 2)
    assert (plan["recompute"], plan["offload_optimizer"]) == ("full", True)
    assert (plan["attention_kernel"], plan["runtime"]) == ("flash2", "deepspeed")
    assert (training["global_batch_size"], training["seq_length"]) == (256, 4096)
    bare = reading("deepspeed --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-7B "
                   "--micro_train_batch_size 1 --max_len 2048").request  # fmt: skip
    assert bare["plan"]["attention_kernel"] == "unfused"
    packed = reading("deepspeed --module openrlhf.cli.train_sft --pretrain Qwen/Qwen2.5-7B "
                     "--micro_train_batch_size 1 --packing_samples").request  # fmt: skip
    assert packed["plan"]["attention_kernel"] == "flash2"
    assert "--bf16: not given" in str(bare["guessed"])


def test_pairs_go_through_one_pass_and_adapters_are_adapters() -> None:
    words = USUAL.replace("--max_len 4096", "--lora_rank 16 --load_in_4bit")
    found = reading(f"deepspeed --module openrlhf.cli.train_dpo {words}").request
    training = found["training"]
    assert (training["loss"], training["global_batch_size"], training["seq_length"]) == (
        "dpo",
        512,
        512,
    )
    assert found["plan"]["micro_batch_size"] == 4
    assert (training["lora_rank"], training["frozen_dtype"]) == (16, "nf4")


def test_the_policy_of_a_step_of_rl() -> None:
    words = (
        "--actor_num_nodes 2 --actor_num_gpus_per_node 8 --advantage_estimator group_norm "
        "--critic_pretrain x --prompt_max_len 1024 --generate_max_len 3072"
    )
    found = reading(
        "ray job submit -- python -m openrlhf.cli.train_ppo_ray "
        f"{USUAL.replace('--max_len 4096 ', '')} {words}"
    ).request
    assert (found["plan"]["dp"], found["training"]["seq_length"]) == (16, 4096)
    assert "only the policy's training" in str(found["guessed"])


@pytest.mark.parametrize(
    ("program", "words", "says"),
    [
        ("openrlhf.cli.train_kto", USUAL, "only sft, dpo and reward"),
        ("openrlhf.cli.train_sft", f"{USUAL} --ring_attn_size 4", "ring attention"),
        ("train.train_sft", USUAL.replace("meta-llama/Meta-Llama-3-8B", "$MODEL"), "--set MODEL="),
    ],
)
def test_what_stands_in_the_way(program: str, words: str, says: str) -> None:
    found = why(f"deepspeed --module {program} {words}")
    assert says in found
    assert "num-layers" not in found


def test_options_in_a_here_document() -> None:
    script = f"read -r -d '' words <<EOF\nopenrlhf.cli.train_sft {USUAL}\nEOF\n"
    found = reading(f"{script}deepspeed --num_gpus 4 --module $words\n").request
    assert (found["plan"]["dp"], found["training"]["seq_length"]) == (4, 4096)


def test_a_program_of_a_fork_is_said() -> None:
    said = str(reading(f"deepspeed --module openrlhf.cli.train_ebft {USUAL}").request["guessed"])
    assert "train_ebft is no program of OpenRLHF" in said
    assert "no program" not in str(
        reading(f"deepspeed --module openrlhf.cli.train_sft {USUAL}").request["guessed"]
    )


GROUPED = (
    "--model.model_name_or_path meta-llama/Meta-Llama-3-8B --train.micro_batch_size 2 "
    "--train.batch_size 256 --data.max_len 4096 --ds.zero_stage 3 --ds.param_dtype bf16 "
    "--ds.packing_samples --model.gradient_checkpointing_enable --ds.adam_offload"
)


def test_grouped_options_say_what_the_older_ones_did() -> None:
    for program in ("train_sft", "train_dpo", "train_rm"):
        older = reading(f"deepspeed --num_gpus 4 --module openrlhf.cli.{program} {USUAL}").request
        found = reading(f"deepspeed --num_gpus 4 --module openrlhf.cli.{program} {GROUPED}").request
        assert found["plan"] == older["plan"]
        assert found["training"] == older["training"]


def test_grouped_options_have_defaults_and_adapters_of_their_own() -> None:
    short = "--model.model_name_or_path meta-llama/Meta-Llama-3-8B --train.batch_size 128"
    for program, micro, length in (("sft", 8, 2048), ("dpo", 16, 512), ("rm", 2, 512)):
        call = f"deepspeed --num_gpus 8 --module openrlhf.cli.train_{program} {short}"
        request = reading(call).request
        assert request["plan"].get("micro_batch_size", 1) == micro
        assert request["training"]["seq_length"] == length
        assert request["plan"]["zero_stage"] == 2
    adapted = (
        f"{GROUPED} --ds.lora.rank 64 --ds.lora.target_modules q_proj v_proj --ds.load_in_4bit"
    )
    training = reading(f"deepspeed --module openrlhf.cli.train_sft {adapted}").request["training"]
    assert (training["lora_rank"], training["frozen_dtype"]) == (64, "nf4")
    assert training["lora_targets"] == ["q_proj", "v_proj"]


@pytest.mark.parametrize("program", ["openrlhf.cli.train_sft", "openrlhf/cli/train_sft.py"])
def test_its_own_programs_have_a_micro_batch_by_default(program: str) -> None:
    words = USUAL.replace("--micro_train_batch_size 2 ", "")
    found = reading(f"deepspeed --num_gpus 4 --module {program} {words}").request
    assert (found["plan"]["micro_batch_size"], found["training"]["global_batch_size"]) == (4, 256)


def test_reinforcement_whose_placement_is_open_is_still_one() -> None:
    """Responses have a length; where the policy is placed, a variable may say."""
    words = USUAL.replace("--max_len 4096", "--prompt_max_len 2048 --generate_max_len 4096")
    found = reading(f"python3 -m openrlhf.cli.train_ppo_ray {words} $SETUP")
    assert found.request["training"]["seq_length"] == 6144
    assert any("without generation, reference, reward and critic" in one for one in found.assumed)
