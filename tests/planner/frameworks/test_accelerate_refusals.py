"""Accelerate: what it cannot run is refused, and every rule is reached."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.catalog.models import model as preset
from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.answers.lint.lint import read
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.frameworks.accelerate import (
    MISTRAL,
    RUNS,
)
from tests.fixtures.launches import launch, unreached
from tests.fixtures.patterns import PATTERNED

ACCELERATE = frameworks.get("accelerate")


def runs(model: str | ModelSpec = "llama", shape: tuple[int, int] = (2, 8), **plan: Any) -> Any:
    return launch(model, shape, **{**RUNS, **plan})


def on_volta(case: Any) -> Any:
    """The same on cards without FlashAttention 2."""
    request, plan = case
    cluster = parse_cluster("2x8xv100-sxm2-32gb")
    return request.model_copy(update={"cluster": cluster}), plan


SHARED_RULES = unreached(frameworks.get("megatron"), [])
SELECTIVE: dict[str, Any] = {"recompute": "selective", "recompute_modules": ("core_attn",)}
PEFT: dict[str, Any] = {"lora_rank": 8, "lora_targets": ["q_proj", "up_proj"]}
REFUSED: list[tuple[str, str, Any]] = [
    ("framework_unsupported", "a second optimizer", runs(training={"optimizer": "muon"})),
    (
        "framework_unsupported",
        "only AdamW steps over lists",
        runs(training={"optimizer": "sgd"}, runtime="transformers-foreach"),
    ),
    ("framework_unsupported", "no frozen parts", runs(training={"frozen": ["head"]})),
    ("framework_unsupported", "not in nf4", runs(training={**PEFT, "frozen_dtype": "nf4"})),
    ("framework_unsupported", "are modules of transformers", runs(training={"lora_rank": 8})),
    ("framework_unsupported", "does not have the modules", runs("gpt", training=PEFT)),
    ("framework_unsupported", "is unfused or flash2, got flash", runs(preset("gemma-2-9b"))),
    ("framework_unsupported", "differs in mtp_num_layers", runs("deepseek-v3")),
    ("framework_unsupported", "differs in moe.capacity_factor, qk_norm", runs("switch")),
    ("framework_unsupported", "position", runs("nope")),
    (
        "framework_unsupported",
        "transformers-foreach, not megatron",
        runs(runtime="megatron"),
    ),
    ("framework_unsupported", "ReplicateParallel", runs(tp=2)),
    ("framework_unsupported", "no pipeline axis", runs(pp=2, zero_stage=0)),
    ("framework_unsupported", "no expert axis", runs("mixtral", ep=2)),
    ("framework_unsupported", "not deepep", runs("mixtral", ep=2, moe_dispatcher="deepep")),
    ("cp_seq", "Ulysses", runs(cp=2, cp_kind="a2a")),
    ("cp_seq", "needs FSDP 2", runs(cp=2, zero_stage=0)),
    ("cp_seq", "with flash2", runs(cp=2, attention_kernel="flash2")),
    ("cp_seq", "no sliding window", runs(MISTRAL, cp=2)),
    ("cp_seq", "GPT-2 lacks", runs("gpt", cp=2)),
    ("cp_seq", "no other mixer with cp 2", runs(PATTERNED["qwen3-next"], cp=2)),
    ("framework_unsupported", "without attention", runs(PATTERNED["mamba-2"])),
    ("zero_stage", "shards weights, gradients and states together", runs(zero_stage=1)),
    ("zero_stage", "no axis to shard over", runs(shape=(1, 1))),
    ("zero_stage", "dp_shard 1", runs(dp_shard=1)),
    ("zero_stage", "dp_shard 2", runs(dp_shard=2, cp=2)),
    ("zero_stage", "a multiple of cp", runs(dp_shard=2, cp=4)),
    ("recompute", "whole layers", runs(**SELECTIVE)),
    ("recompute", "16 layers, got 4", runs(recompute="full", recompute_num_layers=4)),
    (
        "framework_unsupported",
        "fails on sharded weights",
        runs(training={"optimizer": "adafactor"}),
    ),
    (
        "framework_unsupported",
        "8-bit Adam runs on the device",
        runs(training={"optimizer": "adam_8bit"}, offload_optimizer=True),
    ),
    (
        "framework_unsupported",
        "not the shards of FSDP 2",
        runs(training={"optimizer": "paged_adam_8bit"}),
    ),
    ("offload", "only FSDP", runs(zero_stage=0, offload_optimizer=True)),
    ("offload", "full recompute", runs(offload_activations=True)),
    ("offload", "offloaded, or of none", runs(offload_activations=True, offload_num_layers=3)),
    ("framework_unsupported", "not flash1", runs(attention_kernel="flash1")),
    ("framework_unsupported", "sinks", runs("gpt-oss")),
    ("attention_kernel", "32 heads with 8", on_volta(runs(preset("llama-3.1-8b")))),
    ("framework_unsupported", "fp32 copy", runs(cross_entropy="fused")),
    ("framework_unsupported", "reduced during", runs(overlap_grad_reduce=False)),
    ("framework_unsupported", "prefetches weights", runs(overlap_param_gather=False)),
    ("framework_unsupported", "torchao", runs(training={"precision": "fp8"})),
    (
        "framework_unsupported",
        "fp32, fp32, bf16",
        runs(training={"optimizer_state_dtype": "bf16"}),
    ),
    (
        "framework_unsupported",
        "bf16 with ZeRO 0",
        runs(zero_stage=0, training={"gradient_reduce_dtype": "bf16"}),
    ),
    (
        "framework_unsupported",
        "in bf16; got fp16",
        runs(training={"gradient_reduce_dtype": "fp16"}),
    ),
]


@pytest.mark.parametrize(("code", "text", "case"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_refusals(code: str, text: str, case: tuple[PlanRequest, ParallelPlan]) -> None:
    reasons = ACCELERATE.reasons(*case)
    assert [r for r in reasons if r.code == code and text in r.text], reasons


def test_every_rule_is_reached_by_a_refusal() -> None:
    assert unreached(ACCELERATE, [case for *_, case in REFUSED]) <= SHARED_RULES


def test_a_configuration_alone_asks_for_its_script() -> None:
    config = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
    with pytest.raises(RequestError, match="names no model and no batch: give the script"):
        read({"fsdp.yaml": config})
