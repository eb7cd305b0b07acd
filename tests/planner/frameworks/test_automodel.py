"""NeMo Automodel's recipes, after those of its examples/llm_finetune."""

from __future__ import annotations

import pytest

from planner.answers.lint.findings import ReadAnswer
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

RECIPE = """\
recipe: TrainFinetuneRecipeForNextTokenPrediction
step_scheduler:
  global_batch_size: 32
  local_batch_size: 2
model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B
distributed:
  strategy: fsdp2
  tp_size: 2
  cp_size: 1
  activation_checkpointing: true
packed_sequence:
  packed_sequence_size: 8192
optimizer:
  _target_: torch.optim.Adam
"""
PEFT = """\
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  target_modules: '*_proj'
  dim: 16
quantization:
  load_in_4bit: true
"""


def reading(text: str) -> ReadAnswer:
    return read({"recipe.yaml": text}, parse_cluster("1x8xh100-sxm"))


def test_a_recipe() -> None:
    found = reading(RECIPE).request
    plan, training = found["plan"], found["training"]
    assert (plan["tp"], plan["dp"], plan["zero_stage"], plan["recompute"]) == (2, 4, 3, "full")
    assert (training["seq_length"], training["global_batch_size"]) == (8192, 32)
    assert plan["micro_batch_size"] == 2
    assert found["model"]["num_layers"] == 32


def test_adapters_and_replicas() -> None:
    training = reading(RECIPE + PEFT).request["training"]
    assert (training["lora_rank"], training["frozen_dtype"]) == (16, "nf4")
    nothing = reading(RECIPE.replace("tp_size: 2", "tp_size: none\n  dp_replicate_size: none"))
    assert nothing.request["plan"]["dp"] == 8
    replicas = reading(RECIPE.replace("fsdp2", "ddp").replace("tp_size: 2", "tp_size: 1")).request
    assert replicas["plan"].get("zero_stage", 1) == 0
    assert replicas["plan"]["dp"] == 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("packed_sequence_size: 8192", "packed_sequence_size: 0"), "no sequence length"),
        (("tp_size: 2", "tp_size: 3"), "8 accelerators are not a multiple of tp x cp x pp, 3"),
        (("NextTokenPrediction", "VLM"), "trains more than a decoder"),
        (("strategy: fsdp2", "strategy: fsdp7"), "must be one of fsdp2, ddp, megatron_fsdp"),
        (("meta-llama/Llama-3.1-8B", "nobody/knows"), "unknown model"),
        (("dim: 16", "dropout: lots"), "peft.dropout must be from 0 to below 1, got 'lots'"),
    ],
)
def test_what_cannot_be_read_is_named(change: tuple[str, str], said: str) -> None:
    with pytest.raises(RequestError, match=said):
        reading((RECIPE + PEFT).replace(*change))
