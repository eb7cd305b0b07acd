"""DeepSpeed bundles: golden files, the real config class and parser, and every refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.documents.request import PlanRequest
from tests.fixtures.frameworks.deepspeed import CASES, RUNS
from tests.fixtures.frameworks.deepspeed import drawn as drawn_launches
from tests.fixtures.launches import (
    MODELS,
    TP2,
    launch,
    misfits,
    stored_flags,
    unreached,
)
from tests.fixtures.tiers import examples

DEEPSPEED = frameworks.get("deepspeed")
FLAGS = stored_flags("megatron_deepspeed")["flags"]

# The real config class and launcher parser, in a process of their own: both are slow to import.
REAL = """
import json, sys
import deepspeed.runtime.config as config
from deepspeed.launcher.runner import _parse_hostfile

answers = []
for case in json.load(sys.stdin):
    config.dist.get_rank = lambda *a, **k: 0
    config.dist.get_world_size = lambda *a, **k: case["world"]

    class Grid:
        get_data_parallel_world_size = staticmethod(lambda: case["dp"])
        get_data_parallel_rank = staticmethod(lambda: 0)
        get_model_parallel_world_size = staticmethod(lambda: case["tp"])
        get_model_parallel_rank = staticmethod(lambda: 0)

    try:
        read = config.DeepSpeedConfig(case["config"], Grid())
        answers.append({
            "world_size": read.world_size,
            "train_batch_size": read.train_batch_size,
            "accumulation": read.gradient_accumulation_steps,
            "zero_stage": read.zero_optimization_stage,
            "slots": sum(_parse_hostfile(case["hostfile"].splitlines()).values()),
        })
    except Exception as error:
        answers.append(f"{type(error).__name__}: {error}")
print("ANSWERS" + json.dumps(answers))
"""


def ask_deepspeed(cases: list[dict[str, Any]]) -> list[Any]:
    result = subprocess.run(
        [sys.executable, "-c", REAL],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("ANSWERS")]
    answers: list[Any] = json.loads(line.removeprefix("ANSWERS"))
    return answers


def as_question(request: PlanRequest, plan: ParallelPlan) -> dict[str, Any]:
    files = DEEPSPEED.write(request, plan).files
    return {
        "world": plan.accelerators,
        "dp": plan.dp,
        "tp": plan.tp,
        "config": json.loads(files["ds_config.json"]),
        "hostfile": files["hostfile"],
    }


def words(request: PlanRequest, plan: ParallelPlan) -> list[str]:
    flags = DEEPSPEED.write(request, plan).flags
    return [word for flag in flags if flag.name.startswith("--") for word in flag.words]


@pytest.mark.parametrize("case", CASES)
def test_every_flag_exists_and_fits_its_type_and_choices(case: str) -> None:
    assert misfits(words(*CASES[case]), FLAGS) == []


@settings(max_examples=examples(200), deadline=None)
@given(drawn=drawn_launches())
def test_every_drawn_flag_exists_and_fits(drawn: tuple[PlanRequest, ParallelPlan]) -> None:
    if DEEPSPEED.reasons(*drawn):
        return
    assert misfits(words(*drawn), FLAGS) == []


@pytest.mark.slow
def test_the_real_config_class_accepts_every_case_and_refuses_broken_ones() -> None:
    questions = [as_question(*case) for case in CASES.values()]
    wrong_batch = json.loads(json.dumps(questions[0]))
    wrong_batch["config"]["train_batch_size"] += 1
    wrong_key = json.loads(json.dumps(questions[0]))
    wrong_key["config"]["zero_optimization"]["overlap"] = True
    *answers, bad_batch, bad_key = ask_deepspeed([*questions, wrong_batch, wrong_key])
    for (request, plan), answer in zip(CASES.values(), answers, strict=True):
        assert answer == {
            "world_size": plan.dp,
            "train_batch_size": request.training.global_batch_size,
            "accumulation": request.training.global_batch_size // (plan.micro_batch_size * plan.dp),
            "zero_stage": plan.zero_stage,
            "slots": plan.accelerators,
        }
    assert "train_batch_size" in bad_batch
    assert "overlap" in bad_key


def changed(model: str, **update: Any) -> ModelSpec:
    return ModelSpec(**{**MODELS[model].model_dump(), **update})


def runs(model: str | ModelSpec = "llama", shape: tuple[int, int] = (2, 8), **plan: Any) -> Any:
    return launch(model, shape, **{**RUNS, **plan})


# Tested with Megatron-LM, whose rules they are too.
SHARED_RULES = unreached(frameworks.get("megatron"), [])
FP16 = {"precision": "fp16", "gradient_dtype": "fp16"}
SELECTIVE: dict[str, Any] = {"recompute": "selective", "recompute_modules": ("core_attn",)}
FULL: dict[str, Any] = {"recompute": "full", "recompute_num_layers": 1}
REFUSED: list[tuple[str, str, Any]] = [
    (
        "framework_unsupported",
        "Megatron-DeepSpeed does not have",
        runs(training={"optimizer": "muon"}),
    ),
    ("framework_unsupported", "no experts", runs("mixtral")),
    ("framework_unsupported", "latent", runs("deepseek-v3")),
    ("framework_unsupported", "norms on queries", runs(changed("llama", qk_norm="head"))),
    ("framework_unsupported", "sinks", runs(changed("llama", attention_sinks=True))),
    ("framework_unsupported", "window", runs(changed("llama", sliding_window=8))),
    ("framework_unsupported", "multi-token", runs(changed("llama", mtp_num_layers=1))),
    ("framework_unsupported", "in all places", runs("qwen2")),
    ("framework_unsupported", "fp8", runs(training={"precision": "fp8"})),
    ("framework_unsupported", "states are", runs(training={"optimizer_state_dtype": "bf16"})),
    ("framework_unsupported", "without ZeRO gradients", runs(zero_stage=0)),
    ("framework_unsupported", "runtime is deepspeed, not megatron", runs(runtime="megatron")),
    ("kv_heads", "over tp 8", runs(tp=8)),
    ("cp_seq", "only without tp and pp", runs(cp=2, cp_kind="a2a", tp=2)),
    ("cp_seq", "does not split into 2", runs(cp=2, cp_kind="a2a", training={"seq_length": 2047})),
    ("cp_seq", "not p2p", runs(cp=2)),
    ("heads_not_divisible", "over tp 1 x cp 3", runs(shape=(3, 1), cp=3, cp_kind="a2a")),
    ("layers_not_divisible", "evenly", runs(pp=2, first_stage_layers=7)),
    ("framework_unsupported", "one chunk", runs(pp=2, vpp=2, schedule="interleaved-1f1b")),
    ("framework_unsupported", "1F1B only", runs(pp=2, schedule="gpipe")),
    ("framework_unsupported", "outermost", runs(pp=2, rank_order="tp-cp-ep-pp-dp")),
    ("experts_not_divisible", "ep 2 and etp 1", runs(ep=2)),
    ("zero_stage", "not possible", runs(pp=2, zero_stage=2)),
    ("zero_stage", "always frees", runs(zero_stage=3, reshard_after_forward=False)),
    ("zero_stage", "span all data-parallel ranks", runs(dp_shard=4)),
    ("recompute", "unfused core attention", runs(**SELECTIVE)),
    ("recompute", "uniform, not block", runs(pp=2, **FULL)),
    ("offload", "needs Adam", runs(zero_stage=0, offload_optimizer=True, training=FP16)),
    ("offload", "full recompute", runs(offload_activations=True)),
    ("offload", "of all layers", runs(offload_activations=True, offload_num_layers=3)),
    ("framework_unsupported", "fp32 copy", runs(cross_entropy="fused")),
    ("framework_unsupported", "BF16 optimizer", runs(overlap_grad_reduce=True)),
    (
        "framework_unsupported",
        "with a pipeline",
        runs(pp=2, overlap_grad_reduce=True, training=FP16),
    ),
    (
        "framework_unsupported",
        "only ZeRO-3 prefetches",
        runs(zero_stage=2, overlap_param_gather=True),
    ),
    ("framework_unsupported", "tensor-parallel communication", runs(overlap_tp=True, **TP2)),
    ("framework_unsupported", "MoE layers are not planned", runs("mixtral", ep=2, overlap_ep=True)),
    ("framework_unsupported", "flash-attention 1", runs(attention_kernel="flash1")),
    ("framework_unsupported", "fused kernels", runs(compile=True)),
    (
        "framework_unsupported",
        "with the same switch",
        runs(zero_stage=3, overlap_grad_reduce=True, overlap_param_gather=False),
    ),
]


@pytest.mark.parametrize(("code", "text", "case"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_refusals(code: str, text: str, case: tuple[PlanRequest, ParallelPlan]) -> None:
    reasons = DEEPSPEED.reasons(*case)
    assert [r for r in reasons if r.code == code and text in r.text], reasons


def test_every_rule_is_reached_by_a_refusal() -> None:
    assert unreached(DEEPSPEED, [case for *_, case in REFUSED]) <= SHARED_RULES
