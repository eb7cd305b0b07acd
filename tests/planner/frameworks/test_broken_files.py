"""Files beside a script that are broken: bad input with the place, never a failure of ours."""

from __future__ import annotations

import json

import pytest

from planner import frameworks
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.frameworks.config_files import json_value, toml_table
from planner.frameworks.launch_files import GivenValues
from planner.frameworks.read_results import Unreadable
from tests.fixtures.frameworks import CASES, NAMES, bundle

TRAINER = (
    "torchrun --nproc_per_node 8 train.py --model_name_or_path meta-llama/Llama-3.1-8B"
    " --per_device_train_batch_size 1 --max_seq_length 4096 --bf16 True"
)
ZERO = '{\n "zero_optimization": {"stage": 3}\n "bf16": {"enabled": true}\n}'
MODEL = '{"hidden_size": 4096,\n "num_hidden_layers": 32 "vocab_size": 128256}'
OPENED = """
import json
from transformers import Trainer, TrainingArguments
with open("b.json") as file:
    said = json.load(file)
Trainer(model="meta-llama/Llama-3.1-8B", args=TrainingArguments(**said)).train()
"""
LAUNCHES = {
    "DeepSpeed by the Trainer": {"a.sh": f"{TRAINER} --deepspeed b.json", "b.json": ZERO},
    "FSDP by the Trainer": {
        "a.sh": f"{TRAINER} --fsdp full_shard --fsdp_config b.json",
        "b.json": '{"fsdp_version": 2,\n "a": [1,, 2]}',
    },
    "FSDP by ms-swift": {
        "a.sh": "swift sft --model Qwen/Qwen3-8B --max_length 4096 --fsdp b.json",
        "b.json": '{"fsdp": "full_shard",\n "fsdp_config": }',
    },
    "options of the Trainer": {
        "b.json": '{"model_name_or_path": "a/b",\n"per_device_train_batch_size": 1 "a": 2}'
    },
    "DeepSpeed by accelerate": {
        "a.sh": f"accelerate launch --config_file c.yaml {TRAINER.partition('8 ')[2]}",
        "c.yaml": "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
        "  deepspeed_config_file: b.json\nnum_processes: 8\n",
        "b.json": ZERO,
    },
    "DeepSpeed itself": {"a.sh": "deepspeed train.py --deepspeed_config b.json", "b.json": ZERO},
    "YAML of no framework": {"a.sh": "trl sft --config b.yaml", "b.yaml": "a: 1\nb: [1, 2}\n"},
    "a notebook": {"b.ipynb": '{"cells": [\n {"cell_type": "code" "source": ""}]}'},
    "TOML of torchtitan": {
        "a.sh": "torchrun train.py --job.config_file b.toml",
        "b.toml": '[training]\nflavor = "8B\nlocal_batch_size = 1\n[model]\nflavor = "8B"\n',
    },
    "TOML of prime-rl": {
        "a.sh": "uv run rl @ b.toml",
        "b.toml": "[trainer.model]\nname = \n[orchestrator]\nbatch_size = 1\n",
    },
}


def refused(files: dict[str, str]) -> RequestError:
    with pytest.raises(RequestError) as error:
        read(files)
    return error.value


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_file_and_the_line_are_said(name: str) -> None:
    broken = next(file for file in LAUNCHES[name] if file.startswith("b."))
    problem = refused(LAUNCHES[name]).problems[0]
    assert problem.pointer == f"/files/{broken}"
    line = 3 if LAUNCHES[name][broken] == ZERO else 2
    assert problem.detail.startswith(f"line {line}: ")


@pytest.mark.parametrize(("text", "said"), [(ZERO, "Expecting ',' delimiter (column 2)")])
def test_what_was_expected_is_said(text: str, said: str) -> None:
    with pytest.raises(Unreadable) as error:
        json_value(text, "ds.json")
    assert (error.value.text, error.value.line) == (f"is not JSON: {said}", 3)


def test_a_toml_that_just_ends_breaks_in_its_last_line() -> None:
    with pytest.raises(Unreadable) as error:
        toml_table('[a]\nb = "c', "a.toml")
    assert error.value.line == 2


def test_a_script_that_opens_a_broken_file_says_so() -> None:
    (problem,) = refused({"a.py": OPENED, "b.json": "{,}"}).problems
    assert (problem.pointer, problem.detail[:19]) == ("/files/b.json", "line 1: is not JSON")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if frameworks.get(name).read])
@pytest.mark.parametrize("made", ["half of it", "a bracket", "nothing", "a list", "a deep list"])
def test_no_file_of_a_bundle_makes_the_planner_fail(name: str, made: str) -> None:
    files = bundle(name, next(iter(CASES[name]))).files
    for file, text in files.items():
        if not file.endswith((".json", ".yaml", ".yml", ".toml")):
            continue
        broken = {
            "half of it": text[: len(text) // 2],
            "a bracket": f"{text}\n}}]: [",
            "nothing": "",
            "a list": "[1]",
            "a deep list": "[" * 5000,
        }[made]
        for framework in (name, None):
            try:
                read({**files, file: broken}, framework=framework)
            except RequestError as error:
                json.dumps([one.document() for one in error.problems])


@pytest.mark.parametrize("value", ["[1", "{a: ]", "2020-99-99", "*a", "!!python/object:a.b c"])
def test_a_given_value_that_is_no_yaml_is_a_text(value: str) -> None:
    files = bundle("primus", next(iter(CASES["primus"]))).files
    given = GivenValues({"tensor_model_parallel_size": value})
    (refusal,) = read(files, given=given).refusals
    assert "it is not an integer" in refusal.reason.text
