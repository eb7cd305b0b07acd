"""Trainings on pairs, with a reference and without one, and the training of GRPO."""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.python_scripts import IMPORTS, said
from tests.fixtures.trainer_scripts import BATCH, LENGTH, MODEL, TRL, reading

LOADED = IMPORTS + 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")\n'
UNSLOTH = """
from unsloth import FastLanguageModel
from transformers import TrainingArguments
from trl import {trainer}, {config}
model, tokenizer = FastLanguageModel.from_pretrained("unsloth/Qwen3-8B", max_seq_length=4096)
model = FastLanguageModel.get_peft_model(model, r=16)
arguments = {config}(per_device_train_batch_size=2, gradient_accumulation_steps=4)
trainer = {trainer}(model=model, args=arguments, beta=0.1{more})
"""


def of_file(name: str, text: str) -> ReadAnswer:
    return read({name: text}, parse_cluster("1x8xh100-sxm"))


def sizes(answer: ReadAnswer) -> tuple[str, int, int]:
    """The loss, and sequences of a pass and of a step."""
    plan, training = answer.request["plan"], answer.request["training"]
    return (
        training.get("loss", "next_token"),
        plan["micro_batch_size"],
        training["global_batch_size"],
    )


def alone(answer: ReadAnswer) -> bool:
    """Whether it is said that no reference scores the pairs."""
    return "no reference scores its pairs: costed as training on twice as many" in said(answer)


@pytest.mark.parametrize("program", ["orpo.py", "run_simpo.py", "train_cpo.py"])
def test_programs_of_pairs_without_a_reference(program: str) -> None:
    answer = reading(f"torchrun --nproc_per_node 8 {program}", MODEL, BATCH, LENGTH)
    assert sizes(answer) == ("next_token", 4, 4 * 16 * 8)
    assert alone(answer)
    assert "stated and not read" not in said(answer)


@pytest.mark.parametrize("kind", ["orpo", "simpo", "cpo"])
def test_their_kinds_of_ms_swift(kind: str) -> None:
    answer = reading(
        "swift rlhf --rlhf_type", kind, "--model Qwen/Qwen2.5-7B-Instruct --max_length 2048",
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 4",
    )  # fmt: skip
    assert (sizes(answer), alone(answer)) == (("next_token", 4, 16), True)


def test_their_keys_in_a_yaml() -> None:
    trl = TRL + "beta: 0.1\nmax_prompt_length: 512\nper_device_train_batch_size: 2\n"
    axolotl = "base_model: Qwen/Qwen2.5-7B\nsequence_len: 2048\nmicro_batch_size: 2\nrl: {}\n"
    factory = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nstage: dpo\ncutoff_len: 2048\n"
        "finetuning_type: full\nper_device_train_batch_size: 2\npref_loss: simpo\n"
    )
    assert sizes(of_file("run.yaml", trl + "output_dir: data/zephyr-orpo\n"))[:2] == (
        "next_token",
        4,
    )
    assert sizes(of_file("run.yaml", axolotl.format("orpo")))[:2] == ("next_token", 4)
    assert sizes(of_file("run.yaml", axolotl.format("ipo")))[:2] == ("dpo", 4)
    answer = of_file("run.yaml", factory)
    assert (sizes(answer)[:2], alone(answer)) == (("next_token", 4), True)
    assert sizes(of_file("run.yaml", factory.replace("simpo", "sigmoid")))[:2] == ("dpo", 4)


@pytest.mark.parametrize("kind", ["ORPO", "CPO"])
def test_their_classes_of_trl(kind: str) -> None:
    text = f"""{LOADED}from trl import {kind}Config, {kind}Trainer
args = {kind}Config(per_device_train_batch_size=2, max_length=2048, bf16=True)
{kind}Trainer(model=model, args=args).train()
"""
    answer = of_file("tune.py", text)
    assert (sizes(answer), alone(answer)) == (("next_token", 4, 32), True)
    assert answer.request["plan"]["cross_entropy"] == "unfused"


@pytest.mark.parametrize(
    ("trainer", "config", "more", "loss", "length"),
    [
        ("DPOTrainer", "DPOConfig", "", "dpo", 1024),
        ("DPOTrainer", "DPOConfig", ", max_length=768, max_prompt_length=256", "dpo", 768),
        # The arguments alone would be those of training on tokens.
        ("DPOTrainer", "TrainingArguments", ", max_length=2048", "dpo", 2048),
        ("ORPOTrainer", "ORPOConfig", ", max_length=2048", "next_token", 2048),
    ],
)
def test_pairs_in_a_script_of_unsloth(
    trainer: str, config: str, more: str, loss: str, length: int
) -> None:
    answer = of_file("tune.py", UNSLOTH.format(trainer=trainer, config=config, more=more))
    assert sizes(answer) == (loss, 4, 4 * 4 * 8)
    assert answer.request["training"]["seq_length"] == length
    assert answer.request["plan"]["cross_entropy"] == "unfused"
    assert alone(answer) is (loss == "next_token")


def test_the_length_that_a_trainer_of_unsloth_is_handed() -> None:
    text = UNSLOTH.format(trainer="SFTTrainer", config="TrainingArguments", more="{}")
    answer = of_file("tune.py", text.format(", max_seq_length=1024"))
    assert answer.request["training"]["seq_length"] == 1024
    assert sizes(answer) == ("next_token", 2, 2 * 4 * 8)
    assert of_file("tune.py", text.format("")).request["training"]["seq_length"] == 4096


@pytest.mark.parametrize(
    ("sized", "length"),
    [
        ("--max_prompt_length 1024 --max_completion_length 700", 1724),
        ("--max_completion_length 700", 512 + 700),
    ],
)
def test_programs_of_grpo_are_read_without_their_samples(sized: str, length: int) -> None:
    options = (MODEL, BATCH, sized, "--num_generations 8 --beta 0.04 --bf16 true")
    answer = reading("torchrun --nproc_per_node 8 src/open_r1/grpo.py", *options)
    assert answer.request["training"]["seq_length"] == length
    assert sizes(answer) == ("next_token", 2, 2 * 16 * 8)
    assert "only the training of GRPO is read" in said(answer)
    assert answer.request["plan"]["recompute"] == "full"
    off = reading("torchrun grpo.py", *options, "--gradient_checkpointing false")
    assert off.request["plan"].get("recompute", "none") == "none"


@pytest.mark.parametrize(("program", "length"), [("dpo.py", 1024), ("train.py", 4096)])
def test_which_of_several_lengths_is_read_is_said(program: str, length: int) -> None:
    answer = reading(f"torchrun {program}", MODEL, BATCH, "--max_seq_length 4096 --max_length 1024")
    assert answer.request["training"]["seq_length"] == length
    assert "of the lengths --max_seq_length 4096, --max_length 1024 the one of" in said(answer)


@pytest.mark.parametrize(
    "option", ["--use_lora true --use_dora true", "--lora_r 8 --lora_use_dora true"]
)
def test_dora_is_costed_as_lora(option: str) -> None:
    answer = reading("torchrun train.py", MODEL, BATCH, LENGTH, option)
    assert answer.request["training"]["lora_rank"] == 8
    assert "DoRA is costed as LoRA" in said(answer)


@pytest.mark.parametrize("trainer", ["RewardModelTrainer", "MyAutoRMTrainer"])
def test_trainers_of_rewards_by_their_names(trainer: str) -> None:
    text = f"""{LOADED}from own.auto import {trainer}
args = TrainingArguments("out", per_device_train_batch_size=2, bf16=True)
{trainer}(model=model, args=args, max_length=512).train()
"""
    assert sizes(of_file("tune.py", text)) == ("reward", 4, 32)


def test_grpo_in_a_yaml_that_leaves_a_length_out() -> None:
    keys = (
        "model_name_or_path: Qwen/Qwen2.5-7B\nnum_generations: 8\nmax_completion_length: 1024\n"
        "per_device_train_batch_size: 2\nbf16: true\n"
    )
    answer = of_file("run.yaml", keys)
    assert answer.request["training"]["seq_length"] == 512 + 1024
    assert "max_prompt_length: not set, 512 as in TRL" in said(answer)


def test_a_loss_of_pairs_that_is_named_after_dpo() -> None:
    keys = (
        "model: Qwen/Qwen2.5-7B\nbeta: 0.1\nmax_length: 512\nbf16: true\n"
        "per_device_train_batch_size: 2\n"
    )
    assert sizes(of_file("qwen_cmdpo.yaml", keys)) == ("dpo", 4, 32)
    assert sizes(of_file("qwen_math.yaml", keys)) == ("next_token", 2, 16)


@pytest.mark.parametrize("kind", ["rpo", "hinge", "sppo_hard", "apo_zero"])
def test_losses_of_trls_dpo_train_on_pairs(kind: str) -> None:
    text = f"{TRL}per_device_train_batch_size: 4\nbeta: 0.1\nloss_type: {kind}\n"
    found = read({"a.yaml": text}, parse_cluster("1x8xh100-sxm")).request
    assert (found["training"]["loss"], found["training"]["global_batch_size"]) == ("dpo", 64)


def test_a_prompt_and_its_target_are_the_length_of_pairs() -> None:
    words = "--max_prompt_length 512 --max_target_length 256 --beta 0.1 --bf16"
    found = reading("torchrun --nproc_per_node 8 dpo.py", MODEL, BATCH, words).request
    assert found["training"]["seq_length"] == 768


@pytest.mark.parametrize(("more", "kept"), [("", "none"), ("use_peft: true\n", "fp32")])
def test_trl_keeps_weights_in_the_type_in_which_it_loads_them(more: str, kept: str) -> None:
    text = f"{TRL}per_device_train_batch_size: 4\nbf16: true\ntorch_dtype: bfloat16\n{more}"
    training = read({"a.yaml": text}, parse_cluster("1x8xh100-sxm")).request["training"]
    assert training.get("master_weights_dtype", "fp32") == kept
    half = read({"a.yaml": text.replace("bfloat16", "float32")}, parse_cluster("1x8xh100-sxm"))
    assert half.request["training"].get("master_weights_dtype", "fp32") == "fp32"
    auto = read({"a.yaml": text.replace("bfloat16", "auto")}, parse_cluster("1x8xh100-sxm"))
    assert auto.request["training"].get("master_weights_dtype", "fp32") == kept
    assert any("taken as bf16" in one for one in auto.assumed)
    scaled = {"a.yaml": text.replace("bf16: true", "fp16: true")}
    unsaid = {"a.yaml": scaled["a.yaml"].replace("bfloat16", "auto")}
    found = read(unsaid, parse_cluster("1x8xh100-sxm")).request["training"]
    assert found["precision"] == "fp16"
    if not more:
        with pytest.raises(RequestError, match="weights in bf16, of which torch scales no"):
            read(scaled, parse_cluster("1x8xh100-sxm"))


@pytest.mark.parametrize(
    ("config", "stage", "said"),
    [("ds_zero3_offload.yaml", 3, "taken from its name"), ("mine.yaml", 0, "how it shards")],
)
def test_a_configuration_of_accelerates_that_is_absent(config: str, stage: int, said: str) -> None:
    """Beside a YAML of TRL: what its name says, else that nothing is known."""
    files = {
        "run.sh": f"accelerate launch --config_file a/{config} sft.py --config trl.yaml\n",
        "trl.yaml": f"{TRL}per_device_train_batch_size: 4\nbf16: true\n",
    }
    found = read(files, parse_cluster("1x8xh100-sxm"))
    assert found.request["plan"]["zero_stage"] == stage
    assert any(one.startswith(config) and said in one for one in found.assumed)
