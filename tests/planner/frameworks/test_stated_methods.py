"""Trainings on pairs or of adapters that a launch names and that no reader takes for such."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import read
from planner.frameworks.sources import framework_of, launch_files, reading_of
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.python_scripts import IMPORTS, PLAIN, SFT
from tests.fixtures.trainer_scripts import BATCH, LENGTH, MODEL

PAIRS = "names a training on pairs: costed as one on single sequences"
ADAPTERS = "which was not reached: all weights are taken to be trained"
UNUSED = "\ndef later(model):\n    return {}(model, LoraConfig(r=8))\n"
MEGATRON = (
    "torchrun --nproc_per_node 8 {} --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --vocab-size 32000\n"
)


def of_files(files: dict[str, str]) -> tuple[str, str]:
    """The loss of a launch, and what is said of it."""
    known = launch_files(files)
    reading = reading_of(framework_of(known, None), known, 8)
    return reading.training.loss, "\n".join(reading.assumed)


def of_script(*options: str, program: str = "train.py") -> tuple[str, str]:
    words = " ".join((MODEL, BATCH, LENGTH, *options))
    return of_files({"run.sh": f"torchrun --nproc_per_node 8 {program} {words}\n"})


def of_python(text: str, name: str = "train.py", **files: str) -> tuple[str, str]:
    return of_files({name: IMPORTS + text, **files})


@pytest.mark.parametrize(
    "options",
    [
        "--task DPO", "--use_dpo True", "--use_dpo", "--do_reward", "--method xdpo",
        "--mode my-dpo-v2", "--algorithm IKPO", "--dpo_training yes", "--own.task orpo",
    ],
)  # fmt: skip
def test_an_option_that_names_pairs_is_said(options: str) -> None:
    loss, said = of_script(options)
    assert loss == "next_token"
    assert f"{options} {PAIRS}" in said


@pytest.mark.parametrize(
    "options",
    [
        "--use_dpo False", "--use_dpo 0", "--task sft", "--task dporc", "--task tadpole",
        "--task mydpo-v2", "--dataset my-dpo-data", "--dpo_beta 0.1", "",
    ],
)  # fmt: skip
def test_what_names_no_pairs_is_not(options: str) -> None:
    assert PAIRS not in of_script(options)[1]


@pytest.mark.parametrize(
    ("options", "program"),
    [("--stage dpo", "train.py"), ("--task dpo", "run_dpo.py"), ("", "dpo_training.py")],
)
def test_a_loss_that_is_read_is_not_said_again(options: str, program: str) -> None:
    loss, said = of_script(options, program=program)
    assert loss == "dpo"
    assert PAIRS not in said


@pytest.mark.parametrize(
    ("name", "says"),
    [("dpo_training.py", True), ("run-KTO.py", True), ("sft.py", False), ("adopo.py", False)],
)
def test_a_program_that_is_named_after_pairs(name: str, says: bool) -> None:
    loss, said = of_python(PLAIN, name)
    assert loss == "next_token"
    assert (f"{name} {PAIRS}" in said) is says
    said = of_files({"run.sh": MEGATRON.format(f"own/{name}")})[1]
    assert (f"{name} {PAIRS}" in said) is says


@pytest.mark.parametrize(
    "more", ["python prepare.py\n", "python -u other/dpo.py\n", "# python prepare.py\n"]
)
def test_a_script_of_several_programs_is_named_after_none(more: str) -> None:
    script = MEGATRON.format("dpo_training.py")
    assert PAIRS in of_files({"run.sh": script})[1]
    assert (PAIRS in of_files({"run.sh": more + script})[1]) is more.startswith("#")
    commented = MEGATRON.format("pretrain_gpt.py") + "# python dpo_training.py\n"
    assert PAIRS not in of_files({"run.sh": commented})[1]


@pytest.mark.parametrize("call", ["get_peft_model", "PeftModel.from_pretrained"])
def test_adapters_that_are_not_reached_are_said(call: str) -> None:
    assert ADAPTERS not in of_python(PLAIN)[1]
    assert f"train.py has {call}, {ADAPTERS}" in of_python(PLAIN + UNUSED.format(call))[1]
    assert ADAPTERS not in of_python(f"{PLAIN}\n# model = {call}(model, x)\n")[1]


def test_adapters_that_are_trained_are_not() -> None:
    """Those of the trainer's peft_config, whatever else the program could make."""
    files = {"train.py": IMPORTS + SFT + UNUSED.format("get_peft_model")}
    answer = read(files, parse_cluster("1x8xh100-sxm"))
    assert answer.request["training"]["lora_rank"] == 16
    assert ADAPTERS not in str(answer.assumed)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("use_lora: false\n", False),
        ("peft: none\n", False),
        ("finetuning_type: full\n", False),
        ("use_cache: false\n", True),
        ("use_lora: maybe\n", True),
    ],
)
def test_an_option_that_switches_them_off_is_enough(document: str, says: bool) -> None:
    text = PLAIN + UNUSED.format("get_peft_model")
    said = of_python(text, **{"conf.yaml": document})[1]
    assert (ADAPTERS in said) is says


@pytest.mark.parametrize(("condition", "says"), [("args.use_lora", False), ("args.fast", True)])
def test_adapters_behind_an_option_of_their_own_are_not_said(condition: str, says: bool) -> None:
    made = (
        f"if {condition}:\n        return get_peft_model(model, LoraConfig(r=8))\n    return model"
    )
    text = f"{PLAIN}\ndef later(model, args):\n    {made}\n"
    assert (ADAPTERS in of_python(text)[1]) is says


def test_long_words_cost_no_time() -> None:
    script = f"export A={'a' * 200_000}\n{MEGATRON.format('dpo_training.py')}"
    assert PAIRS in of_files({"run.sh": script})[1]
