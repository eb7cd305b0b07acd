"""Experts beside weights of 4 bits: bitsandbytes quantizes linear layers, and they are none.

Transformers 5 keeps the experts of a layer in one parameter (bitsandbytes issue 1849).
"""

from __future__ import annotations

import pytest

import planner
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_cluster

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
CLUSTER = "1x8xh100-sxm"
YAML = """\
base_model: mistralai/Mixtral-8x7B-v0.1
load_in_4bit: true
adapter: qlora
lora_r: 16
lora_target_modules: [q_proj, v_proj]
sequence_len: 2048
micro_batch_size: 1
gradient_accumulation_steps: 1
bf16: true
"""


def asked(model: str, framework: str, frozen: str) -> dict[str, object]:
    training = {"lora_rank": 16, "lora_targets": ATTENTION, "frozen_dtype": frozen}
    return {
        "model": model,
        "cluster": CLUSTER,
        "training": {"seq_length": 2048, "global_batch_size": 16, **training},
        "search": {"framework": framework},
    }


@pytest.mark.parametrize("framework", ["trl", "llama-factory"])
def test_trainers_that_leave_experts_in_half_precision_refuse(framework: str) -> None:
    assert planner.plan(asked("olmoe-1b-7b", framework, "as trained")).best is not None
    assert planner.plan(asked("llama-3.2-1b", framework, "nf4")).best is not None
    with pytest.raises(RequestError, match="bitsandbytes leaves experts in half precision"):
        planner.emit(asked("olmoe-1b-7b", framework, "nf4"))


def test_axolotl_is_told_to_quantize_them() -> None:
    files = planner.emit(asked("olmoe-1b-7b", "axolotl", "nf4")).files
    assert "quantize_moe_experts: true" in files["config.yaml"]
    found = read(dict(files), parse_cluster(CLUSTER))
    assert found.request["training"]["frozen_dtype"] == "nf4"
    assert not any("experts" in one for one in found.assumed)
    dense = planner.emit(asked("llama-3.2-1b", "axolotl", "nf4")).files
    assert "quantize_moe_experts" not in dense["config.yaml"]


@pytest.mark.parametrize(("more", "said"), [("", True), ("quantize_moe_experts: true\n", False)])
def test_a_file_that_does_not_say_so_is_read_with_a_note(more: str, said: bool) -> None:
    found = read({"config.yaml": YAML + more}, parse_cluster(CLUSTER))
    assert found.request["training"]["frozen_dtype"] == "nf4"
    noted = any("weights of experts are taken in 4 bits too" in one for one in found.assumed)
    assert noted == said
