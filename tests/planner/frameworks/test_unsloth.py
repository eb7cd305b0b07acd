"""Unsloth's script: read back, started on every node, refused, and taken by its own signatures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner import frameworks
from planner.answers.lint.lint import lint
from planner.answers.lint.lint import read as lint_read
from planner.frameworks.launch_files import GivenValues, LaunchFiles
from planner.frameworks.read_results import Reading, Unreadable
from planner.frameworks.rules import HALF_BESIDE_PACKED
from planner.frameworks.sources import launch_at
from planner.frameworks.unsloth.rules import OFFLOADED_CHECKPOINTS, RULES, TYPES
from planner.inputs.requests.parser import parse_cluster, parse_request
from tests.fixtures.frameworks import accelerate, legal_cases
from tests.fixtures.frameworks.llama_factory import LORA, Case
from tests.fixtures.frameworks.unsloth import CASES, offloaded, on_one_card, tuned
from tests.fixtures.launches import run_script, unreached, written
from tests.planner.frameworks.test_tuners import changed, same
from tests.tools.checkouts import checkout

UNSLOTH = frameworks.get("unsloth")
ORACLE = Path(__file__).parents[2] / "oracles" / "unsloth_check.py"
# As in its notebooks.
SCRIPT = """\
from unsloth import FastLanguageModel, is_bfloat16_supported
from trl import SFTTrainer, SFTConfig
from datasets import load_dataset

max_seq_length = 4096
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit",
    max_seq_length=max_seq_length,
)
model = FastLanguageModel.get_peft_model(model, r=32, use_gradient_checkpointing="unsloth")
trainer = SFTTrainer(
    model=model,
    tokenizer=tokenizer,
    train_dataset=load_dataset("yahma/alpaca-cleaned", split="train"),
    args=SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4),
)
trainer.train()
"""

NAMED = 'model_name="unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit",'


def read(text: str, given: GivenValues | None = None, **more: str) -> Reading:
    files = LaunchFiles({"tune.py": text, **more}, given)
    assert UNSLOTH.recognises(files)
    assert UNSLOTH.read is not None
    return UNSLOTH.read(files, None)


def changed_training(case: Case, **fields: Any) -> Case:
    request, plan = case
    training = request.training.model_copy(update=fields)
    return request.model_copy(update={"training": training}), plan


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_reads_back(case: str) -> None:
    same("unsloth", CASES[case])


def test_drawn_plans_read_back() -> None:
    legal = legal_cases("unsloth", 200)
    assert len(legal) > 15
    for case in legal:
        same("unsloth", case)


def test_it_starts_on_every_node(tmp_path: Path) -> None:
    made = UNSLOTH.write(*CASES["mistral-window"])
    written(tmp_path, made)
    (call,) = run_script(
        tmp_path, made.main, variables={"NODE_RANK": "1", "MASTER_ADDR": "node-0", "MODEL": "here"}
    )
    assert call[0] == "torchrun"
    assert call[call.index("--nproc_per_node") + 1] == "8"
    assert call[-1].endswith("train.py")


def test_it_is_judged_under_its_own_name() -> None:
    files = dict(UNSLOTH.write(*CASES["llama-copies-packed"]).files)
    answer = lint(files, parse_cluster("1x8xh100-sxm"))
    assert [one for one in answer.findings if one.severity == "error"] == []
    assert answer.framework == "Unsloth"


def test_what_a_notebook_leaves_open_is_as_unsloth_has_it() -> None:
    reading = read(SCRIPT)
    training, plan = reading.training, reading.plan
    assert (training.frozen_dtype, training.lora_rank, len(training.lora_targets)) == ("nf4", 32, 7)
    assert (training.seq_length, training.global_batch_size) == (4096, 8)
    assert training.optimizer == "adam_8bit"
    assert (plan.recompute, plan.offload_activations, plan.dp) == ("full", True, 1)
    assert reading.model.num_layers == 32
    assert any("no launcher among the files" in note for note in reading.assumed)
    alone = SCRIPT + '\nos.environ["CUDA_VISIBLE_DEVICES"] = "3"\n'
    assert not any("no launcher" in note for note in read(alone).assumed)
    bare = SCRIPT.replace("per_device_train_batch_size=2, gradient_accumulation_steps=4", "")
    assert read(bare).training.global_batch_size == 4 * 2
    older = bare.replace("SFTConfig", "TrainingArguments").replace(
        "from trl import SFTTrainer, TrainingArguments",
        "from transformers import TrainingArguments",
    )
    assert read(older).training.global_batch_size == 8
    assert read(older).training.optimizer == "adam"


@pytest.mark.parametrize(
    ("word", "found"),
    [('"unsloth"', ("full", True)), ("True", ("full", False)), ("False", ("none", False))],
)
def test_checkpoints_are_offloaded_by_its_own_word(word: str, found: tuple[str, bool]) -> None:
    plan = read(SCRIPT.replace('"unsloth")', f"{word})")).plan
    assert (plan.recompute, plan.offload_activations) == found
    short = read(SCRIPT.replace("4096", "256").replace('"unsloth")', f"{word})")).plan
    assert not short.offload_activations


def test_ranks_are_those_of_the_launcher() -> None:
    torchrun = read(SCRIPT, **{"run.sh": "torchrun --nproc_per_node 4 tune.py\n"})
    assert (torchrun.plan.dp, torchrun.nodes, torchrun.accelerators_per_node) == (4, 1, 4)
    launch = "accelerate launch --num_machines 2 --num_processes 8 tune.py\n"
    accelerated = read(SCRIPT, **{"run.sh": launch})
    assert (accelerated.plan.dp, accelerated.nodes) == (8, 2)


def test_a_script_takes_what_its_launch_hands_on() -> None:
    """Words of the command, the environment, also into a container, and the processes."""
    options = (
        "import argparse, os\np = argparse.ArgumentParser()\np.add_argument('--bs', type=int)\n"
        "options = p.parse_args()\nON = os.environ.get('WORLD_SIZE', '1') == '1'\n"
    )
    text = SCRIPT.replace(NAMED, 'os.getenv("MODEL", "x/7b"),')
    text = text.replace('checkpointing="unsloth"', "checkpointing=ON")
    text = options + text.replace("batch_size=2", "batch_size=options.bs")
    inside = "apptainer exec a.sif bash -c 'torchrun --nproc_per_node 2 tune.py --bs 8'\n"
    launch = f'V=(SINGULARITYENV_MODEL=unsloth/Qwen2.5-7B)\nenv "${{V[@]}}" {inside}'
    reading = read(text, **{"run.sh": launch})
    assert (reading.model.num_layers, reading.plan.micro_batch_size, reading.plan.dp) == (28, 8, 2)
    assert reading.plan.recompute == "none"
    assert read(SCRIPT, **{"run.sh": "python tune.py\n"}).plan.dp == 1


def test_defaults_of_variables_that_nothing_sets_are_said() -> None:
    text = "import os\n" + SCRIPT.replace(NAMED, 'os.environ.get("BASE", "Qwen/Qwen2.5-3B"),')
    reading = UNSLOTH.read(LaunchFiles({"tune.py": text}), 1)  # type: ignore[misc]
    assert reading.model.num_layers == 36
    assert any("have their defaults: BASE" in note for note in reading.assumed)
    unknown = text.replace('.get("BASE", "Qwen/Qwen2.5-3B")', '["BASE"]')
    with pytest.raises(Unreadable, match=r"the model is os.environ\['BASE'\], known only at run"):
        read(unknown)


def test_whole_models_are_kept_in_bf16_unless_told_otherwise() -> None:
    whole = SCRIPT.replace("max_seq_length,\n)", "max_seq_length,\n    full_finetuning=True,\n)")
    reading = read(whole)
    assert reading.training.lora_rank == 0
    assert reading.training.master_weights_dtype == "none"
    mixed = whole.replace("=True,\n)", "=True,\n    float32_mixed_precision=True,\n)")
    assert read(mixed).training.master_weights_dtype == "fp32"
    halves = (CASES["llama-whole-bf16"], "False"), (CASES["llama-whole-fp32"], "True")
    for case, kept in halves:
        script = UNSLOTH.write(*case).files["train.py"]
        assert f"float32_mixed_precision={kept}," in script
        assert "full_finetuning=True," in script
        assert "get_peft_model" not in script
    said = {"model": "llama-3.2-1b", "cluster": "1x4xh100-sxm", "search": {"framework": "unsloth"}}
    for training, master in (({}, "none"), ({"lora_rank": 8}, "fp32")):
        asked = {"seq_length": 2048, "global_batch_size": 8, **training}
        assert parse_request({**said, "training": asked}).training.master_weights_dtype == master


def test_a_script_with_a_main_function_is_followed() -> None:
    imports, _, body = SCRIPT.partition("\n\n")
    inside = "".join(f"    {line}\n" for line in body.splitlines())
    text = f'{imports}\n\ndef main():\n{inside}\nif __name__ == "__main__":\n    main()\n'
    assert read(text).training == read(SCRIPT).training


def test_a_script_whose_model_is_made_in_a_module_beside_it(tmp_path: Path) -> None:
    loading, training = SCRIPT.split("trainer = ")
    body = "\n    ".join(loading.split("max_seq_length = 4096\n")[1].splitlines())
    module = f"from unsloth import FastLanguageModel\ndef made(max_seq_length):\n    {body}"
    (tmp_path / "making.py").write_text(module + "\n    return model, tokenizer\n")
    starts = "from trl import SFTTrainer, SFTConfig\nfrom making import made\n"
    (tmp_path / "tune.py").write_text(
        f"{starts}model, tokenizer = made(2048)\ntrainer = {training}"
    )
    files, _ = launch_at([str(tmp_path / "tune.py")])
    training = lint_read(files, parse_cluster("1x1xh100-sxm")).request["training"]
    assert (training["seq_length"], training["lora_rank"]) == (2048, 32)


def test_given_values_take_the_place_of_those_in_the_script() -> None:
    said = {"gradient_accumulation_steps": "8", "get_peft_model.r": "8", "optim": "adamw_torch"}
    training = read(SCRIPT, GivenValues(values=said)).training
    assert (training.global_batch_size, training.lora_rank) == (16, 8)
    assert training.optimizer == "adam"
    unknown = SCRIPT.replace("steps=4", "steps=int(steps())")
    assert any("gradient_accumulation_steps: known only" in one for one in read(unknown).assumed)


@pytest.mark.parametrize(
    ("lengths", "length"),
    [
        ("max_prompt_length=500, max_completion_length=1000", 1500),
        ("max_completion_length=1000", 512 + 1000),
        ("max_prompt_length=500, max_completion_length=9000", 4096),  # cut to the model's
        ("max_prompt_length=longest(data), max_completion_length=1000", 4096),
    ],
)
def test_the_training_of_grpo(lengths: str, length: int) -> None:
    text = SCRIPT.replace("SFTConfig", "GRPOConfig").replace("steps=4", f"steps=4, {lengths}")
    found = read(text)
    assert (found.training.seq_length, found.training.global_batch_size) == (length, 8)
    assert f"only the training of GRPO is read, each sequence as long as {length}" in str(
        found.assumed
    )
    # All samples of a prompt are of one step.
    six = read(text.replace("steps=4", "steps=4, num_generations=6"))
    assert (six.plan.micro_batch_size, six.training.global_batch_size) == (6, 24)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("SFTConfig", "KTOConfig", "only training on tokens and by DPO or its like can be read"),
        ("r=32", "r=32, lora_dropout=2", "lora_dropout must be from 0 to below 1, got '2'"),
        ("r=32", 'r=32, modules_to_save=["lm_head"]', "only adapters in every layer"),
        ("r=32", 'r=32, target_modules=["lm_head"]', "adapters at lm_head cannot be read"),
        ("Meta-Llama-3.1-8B-Instruct", "Nobody-9B", "--model"),
        ("model = FastLanguageModel.get_peft_model", "model = other", "get_peft_model is reached$"),
        (
            "model = " + SCRIPT.split("model = ")[1],
            "",
            "get_peft_model is reached, nor one of a trainer",
        ),
    ],
)
def test_what_is_not_read_is_refused_by_name(old: str, new: str, says: str) -> None:
    with pytest.raises(Unreadable, match=says):
        read(SCRIPT.replace(old, new))


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("run.sh", "export A=1\nUNSLOTH_FSDP2=1 torchrun --nproc_per_node 4 tune.py\n", "FSDP2=1"),
        ("accelerate.yaml", "distributed_type: FSDP\n", "distributed_type: FSDP"),
        ("run.sh", "accelerate launch --use_deepspeed tune.py\n", "--use_deepspeed"),
    ],
)
def test_ranks_that_hold_parts_of_a_model_are_refused(file: str, text: str, says: str) -> None:
    with pytest.raises(Unreadable, match=f"{says} cannot be read") as found:
        read(SCRIPT, **{file: text})
    assert (found.value.file, found.value.line) == (file, 1 + text.startswith("export"))
    with pytest.raises(Unreadable, match="deepspeed cannot be read"):
        read(SCRIPT.replace("steps=4", 'steps=4, deepspeed="zero3.json"'))
    assert read(SCRIPT.replace("steps=4", "steps=4, context_parallel_size=1")).plan.cp == 1


def test_refusals() -> None:
    card, copies = CASES["llama-one-card"], CASES["llama-copies"]
    offloads = changed(card, offload_activations=True)
    short = changed_training(offloaded(on_one_card()), seq_length=256)
    half = changed_training(CASES["llama-copies"], gradient_reduce_dtype="bf16")
    mixed = changed_training(CASES["llama-whole-bf16"], optimizer_state_dtype="fp32")
    refused: dict[str, Any] = {
        "activation offload needs full recompute": offloads,
        "stay in half precision": changed_training(card, frozen_dtype="nf4 and fp32"),
        "checkpoints of less than 512 tokens on the card": short,
        "copies reduce gradients in their own type, fp32": half,
        "of a whole model in bf16, all in bf16": mixed,
        "of Unsloth its own layers are modelled here": tuned(accelerate.CASES["qwen3-moe"], **LORA),
        "without shards": changed(copies, zero_stage=3),
        "in chunks with the output layer": changed(card, cross_entropy="unfused"),
    }
    for text, case in refused.items():
        assert any(text in reason.text for reason in UNSLOTH.reasons(*case)), text
    own = {OFFLOADED_CHECKPOINTS, HALF_BESIDE_PACKED, TYPES, RULES[4], RULES[-1]}
    assert not own & unreached(UNSLOTH, list(refused.values()))


@pytest.mark.exhaustive
def test_its_functions_and_trls_configuration_take_every_argument(tmp_path: Path) -> None:
    """Over drawn plans; an argument that is misspelt is found."""
    cases = [*CASES.values(), *legal_cases("unsloth", 500)]
    assert len(cases) > 100
    files = []
    for place, case in enumerate(cases):
        path = tmp_path / f"{place}.py"
        path.write_text(UNSLOTH.write(*case).files["train.py"])
        files.append(str(path))
    broken = tmp_path / "broken.py"
    text = Path(files[0]).read_text()
    broken.write_text(text.replace("lora_alpha", "lora_alfa").replace("max_steps", "most_steps"))
    own, trl = checkout("unslothai/unsloth"), checkout("huggingface/trl")
    command = [sys.executable, str(ORACLE), str(own), str(trl), *files, str(broken)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    wrong = [line for line in found.stdout.splitlines() if line.startswith("WRONG")]
    assert all("broken.py" in line for line in wrong), wrong
    assert [name for name in ("lora_alfa", "most_steps") if name not in "".join(wrong)] == []
