"""What a Python script says by itself where its configuration is not among the files."""

from __future__ import annotations

import json

import pytest

from planner.answers.lint.lint import read
from planner.frameworks.python.notebooks import cells
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.python_scripts import IMPORTS, PLAIN, reading, said

BY_CONFIG = """\
def main(config):
    train = config.get("training", {})
    model = AutoModelForCausalLM.from_pretrained(config.get("model_name", "Qwen/Qwen2.5-7B"))
    args = SFTConfig("out", per_device_train_batch_size=train.get("batch_size", 2),
                     gradient_accumulation_steps=getattr(config, "steps", 4), bf16=True,
                     max_length=train.get("max_length", default=2048))
    SFTTrainer(model=model, args=args).train()
"""


def test_keys_of_a_configuration_that_is_not_here_have_their_defaults() -> None:
    answer = reading(BY_CONFIG)
    training = answer.request["training"]
    assert (training["seq_length"], training["global_batch_size"]) == (2048, 2 * 4 * 8)
    assert answer.request["model"]["name"] == "qwen2.5-7b"
    keys = "model_name, batch_size, steps, max_length"
    assert f"keys that a configuration could set have their defaults: {keys}" in said(answer)


def test_a_configuration_that_is_here_says_them() -> None:
    opened = BY_CONFIG.replace("def main(config):", "def main(path):\n    config = load_config(path)")
    text = opened + 'main("run.yaml")\n'
    keys = "model_name: Qwen/Qwen2.5-3B\ntraining: {batch_size: 8, max_length: 512}\n"
    answer = reading(text, files={"run.yaml": keys})
    assert answer.request["training"]["seq_length"] == 512
    assert answer.request["plan"]["micro_batch_size"] == 8
    assert "could set have their defaults" not in said(answer)


def notebook(*sources: str) -> str:
    made = [{"cell_type": "code", "source": one.splitlines(keepends=True)} for one in sources]
    return json.dumps({"cells": made}, indent=1)


INSTALLS = "!pip install -q \\\n    trl peft \\\n    bitsandbytes\n%cd \\\n  here\nimport os"


@pytest.mark.parametrize("broken", ["", "the next cell is the training\n", "x = !nvidia-smi\n"])
def test_commands_over_several_lines_and_cells_that_are_no_python(broken: str) -> None:
    text = notebook(INSTALLS, broken, IMPORTS + PLAIN)
    answer = read({"tune.ipynb": text}, parse_cluster("1x8xh100-sxm"))
    assert answer.request["training"]["global_batch_size"] == 16
    assert ("cells that are no Python are left out: tune.ipynb:" in said(answer)) is bool(broken)


def test_the_lines_of_a_cell_are_those_of_its_file() -> None:
    text = notebook(INSTALLS, "no python here", "a = 1")
    code, lines, left_out = cells(text)
    assert code.splitlines() == ["pass", "", "", "pass", "", "import os", "", "a = 1"]
    shown = text.splitlines()
    assert "no python here" in shown[left_out[0] - 1]
    assert "a = 1" in shown[lines[7] - 1]
