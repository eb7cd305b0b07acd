"""Values that a document of a launch states and that its reading passes over without a word."""

from __future__ import annotations

import pytest

from planner.answers.lint.lint import read
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.python_scripts import IMPORTS

TRAINS = "SFTTrainer(model='gpt2', args=SFTConfig('x', max_length=64{}))\n"


def assumed(documents: dict[str, str], arguments: str = "") -> str:
    files = {"train.py": IMPORTS + TRAINS.format(arguments), **documents}
    return "\n".join(read(files, parse_cluster("1x8xh100-sxm")).assumed)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("train:\n  max_seq_length: 512\n", "train.max_seq_length 512 (conf.yaml:2)"),
        ("use_lora: false\nlora:\n  lora_r: 16\n", ""),
        ("lora:\n  lora_r: 16\n", "lora.lora_r 16 (conf.yaml:2)"),
        ("model:\n  lora_config:\n    r: 16\n", "model.lora_config.r 16 (conf.yaml:3)"),
        ("optimizer:\n  r: 16\n", ""),
        ("train:\n  per_device_train_batch_size: 8\n", ""),  # as it was read
        ("train:\n  gradient_accumulation_steps: ${steps}\n", ""),
        ("eval:\n  gradient_accumulation_steps: 32\n", ""),
        ("critic:\n  micro_batch_size_per_gpu: 32\n", ""),
    ],
)
def test_what_no_reader_took_is_said(document: str, said: str) -> None:
    found = assumed({"conf.yaml": document})
    assert ("stated and not read" in found) is bool(said)
    assert said in found


def test_a_key_with_another_value_is_overridden() -> None:
    document = {"conf.yaml": "train:\n  gradient_accumulation_steps: 32\n"}
    assert "stated and not read" not in assumed(document, ", gradient_accumulation_steps=2")


def test_a_document_of_another_part_may_override_a_value_and_is_not_asked() -> None:
    base = {"conf.yaml": "policy:\n  train_micro_batch_size: 4\n"}
    over = {"megatron.yaml": "policy:\n  train_micro_batch_size: 8\n"}
    assert "train_micro_batch_size 4" in assumed(base)
    assert "stated and not read" not in assumed(base | over)
    assert "stated and not read" not in assumed({"megatron.yaml": base["conf.yaml"]})


def test_defaults_of_a_program_override_no_document() -> None:
    """An object's defaults, which the program may fill from the document in a way of its own."""
    text = IMPORTS + (
        "class Own:\n    steps = 2\n\n"
        "SFTTrainer(model='gpt2', args=SFTConfig('x', max_length=64,\n"
        "    gradient_accumulation_steps=Own().steps))\n"
    )
    files = {"train.py": text, "conf.yaml": "train:\n  gradient_accumulation_steps: 32\n"}
    found = "\n".join(read(files, parse_cluster("1x8xh100-sxm")).assumed)
    assert "stated and not read: train.gradient_accumulation_steps 32 (conf.yaml:2)" in found
