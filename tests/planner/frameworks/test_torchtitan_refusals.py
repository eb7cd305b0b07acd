"""torchtitan: what it cannot run is refused, and every rule is reached."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.spec import ModelSpec
from planner import frameworks
from tests.fixtures.draws import Case
from tests.fixtures.frameworks.torchtitan import (
    FULL,
    PIPE,
    QWEN3,
    RUNS,
    other,
)
from tests.fixtures.launches import (
    INTERLEAVED,
    TP2,
    launch,
    unreached,
)

TITAN = frameworks.get("torchtitan")


def runs(model: str | ModelSpec = "llama", shape: tuple[int, int] = (2, 8), **plan: Any) -> Case:
    return launch(model, shape, **{**RUNS, **plan})


def moe(model: ModelSpec, **update: Any) -> ModelSpec:
    assert model.moe is not None
    return ModelSpec(**{**model.model_dump(), "moe": {**model.moe.model_dump(), **update}})


OSS = other("gpt-oss")
FP8 = {"precision": "fp8", "fp8_recipe": "rowwise"}
NARROW = {"master_weights_dtype": "none", "optimizer_state_dtype": "bf16"}
REFUSED: list[tuple[str, str, Case]] = [
    ("framework_unsupported", "DistMuon needs", runs(training={"optimizer": "muon"})),
    (
        "layers_not_divisible",
        "a model part cannot be empty, got parts of 8,0,4,4 layers",
        launch(pp=4, stage_layers=(8, 0, 4, 4), **PIPE),
    ),
    ("framework_unsupported", "rotary", runs("nope")),
    ("framework_unsupported", "RMSNorm", runs(other("llama", norm="layernorm", norm_bias=True))),
    ("framework_unsupported", "two norms", runs(other("llama", norms_per_layer=4))),
    ("framework_unsupported", "in parallel", runs(other("llama", parallel_residual=True))),
    ("framework_unsupported", "after the embedding", runs(other("llama", embedding_norm=True))),
    ("framework_unsupported", "output layer has no bias", runs(other("llama", lm_head_bias=True))),
    ("framework_unsupported", "SwiGLU", runs(other("llama", gated_mlp=False))),
    ("framework_unsupported", "MLPs have no biases", runs(other("llama", mlp_bias=True))),
    ("framework_unsupported", "dropout", runs(other("llama", hidden_dropout=0.1))),
    ("framework_unsupported", "span one head", runs(other("llama", qk_norm="full"))),
    (
        "framework_unsupported",
        "output projection",
        runs(other("llama", attention_output_bias=True)),
    ),
    (
        "framework_unsupported",
        "latent attention has no biases",
        runs(other("deepseek-v3", qkv_bias=True)),
    ),
    (
        "framework_unsupported",
        "no sinks and no window",
        runs(other("deepseek-v3", sliding_window=8)),
    ),
    ("framework_unsupported", "whose attention has sinks", runs(other("llama", sliding_window=8))),
    (
        "framework_unsupported",
        "every layer of gpt_oss",
        runs(moe(OSS, num_dense_layers=1)),
    ),
    ("framework_unsupported", "experts have biases", runs(moe(OSS, expert_bias=False))),
    (
        "framework_unsupported",
        "gpt_oss has no shared",
        runs(moe(OSS, shared_expert_ffn_hidden_size=64)),
    ),
    (
        "framework_unsupported",
        "have a gate only in qwen3_5",
        runs(moe(QWEN3, shared_expert_gate=True)),
    ),
    ("framework_unsupported", "no token is dropped", runs(moe(QWEN3, capacity_factor=1.5))),
    (
        "framework_unsupported",
        "at least two experts",
        runs(moe(QWEN3, num_groups=16, top_k_groups=8)),
    ),
    ("framework_unsupported", "multi-token", runs(other("llama", mtp_num_layers=1))),
    ("framework_unsupported", "need an even head width", runs(other("llama", head_dim=33))),
    ("framework_unsupported", "runtime is torch, not megatron", runs(runtime="megatron")),
    ("framework_unsupported", "loss scaling", runs(training={"precision": "fp16"})),
    (
        "framework_unsupported",
        "not tensorwise",
        runs(training={"precision": "fp8", "fp8_recipe": "tensorwise"}),
    ),
    ("framework_unsupported", "never in fp8", runs(training=FP8 | {"fp8_param_gather": True})),
    (
        "framework_unsupported",
        "none for experts",
        runs("mixtral", training={"precision": "fp4"}),
    ),
    (
        "framework_unsupported",
        "multiples of 128",
        runs(other("llama", ffn_hidden_size=1800), training={"precision": "fp4"}),
    ),
    ("framework_unsupported", "not SGD", runs(training={"optimizer": "sgd"})),
    ("framework_unsupported", "states fp8", runs(training={"optimizer_state_dtype": "fp8"})),
    (
        "framework_unsupported",
        "states fp32",
        runs(training={"master_weights_dtype": "none", "gradient_dtype": "bf16"}),
    ),
    (
        "framework_unsupported",
        "reduced in fp32",
        runs(training={"gradient_reduce_dtype": "bf16"}),
    ),
    ("framework_unsupported", "accumulate in bf16", runs(training=NARROW)),
    ("kv_heads", "over tp 8", runs(tp=8, sequence_parallel=True)),
    ("cp_seq", "not p2p", runs(cp=2, cp_kind="p2p")),
    ("cp_seq", "needs FlexAttention", runs(cp=2, attention_kernel="flash2")),
    ("cp_seq", "x 128", runs(cp=2, training={"seq_length": 2080})),
    ("framework_unsupported", "not unfused", runs(attention_kernel="unfused")),
    ("framework_unsupported", "tied embeddings", runs("qwen2", pp=2, **PIPE)),
    ("framework_unsupported", "multi-token prediction runs", runs("deepseek-v3", cp=2)),
    ("framework_unsupported", "not zb-h1", runs(pp=2, schedule="zb-h1", **PIPE)),
    (
        "framework_unsupported",
        "splits the backward",
        runs(pp=2, vpp=2, schedule="zb-v", compile=True, **PIPE),
    ),
    ("framework_unsupported", "outermost", runs(pp=2, rank_order="tp-cp-ep-pp-dp", **PIPE)),
    ("experts_not_divisible", "got ep 2, etp 2", runs("mixtral", ep=2, etp=2, **TP2)),
    (
        "experts_not_divisible",
        "does not divide data_parallel_shard_degree",
        runs("mixtral", ep=8, dp_shard=4),
    ),
    ("framework_unsupported", "not allgather", runs("mixtral", ep=2, moe_dispatcher="allgather")),
    ("framework_unsupported", "got ep 1", runs("mixtral", moe_dispatcher="deepep")),
    (
        "framework_unsupported",
        "padded groups",
        runs("mixtral", ep=2, moe_dispatcher="deepep", training=FP8),
    ),
    ("zero_stage", "zero_stage is 3 or 0, not 1", runs(zero_stage=1)),
    ("zero_stage", "zero_stage is 3 or 0, not 2", runs(zero_stage=2)),
    ("zero_stage", "needs cp 1", runs(zero_stage=0, cp=2)),
    ("zero_stage", "nothing to shard", runs(shape=(1, 1))),
    ("zero_stage", "nothing to shard", runs(dp_shard=1)),
    ("zero_stage", "whole groups of cp 4", runs(cp=4, dp_shard=2)),
    (
        "recompute",
        "recompute_modules is op",
        runs(recompute="selective", recompute_modules=("core_attn",)),
    ),
    (
        "recompute",
        "recompute_method is uniform, not block",
        runs(**{**FULL, "recompute_method": "block"}),
    ),
    (
        "recompute",
        "recompute_num_layers is 1, not 2",
        runs(recompute="full", recompute_num_layers=2),
    ),
    ("offload", "needs ZeRO-3", runs(zero_stage=0, offload_optimizer=True)),
    (
        "offload",
        "not bf16 with fp32 weights",
        runs(offload_optimizer=True, training={"optimizer_state_dtype": "bf16"}),
    ),
    ("framework_unsupported", "at least 16, got 8", runs(other("llama", head_dim=8))),
    ("offload", "does not offload activations", runs(offload_activations=True)),
    ("framework_unsupported", "not in_place", runs(cross_entropy="in_place")),
    ("framework_unsupported", "always, without a pipeline", runs(overlap_grad_reduce=False)),
    (
        "framework_unsupported",
        "with a pipeline reduces after",
        runs(pp=2, **{**PIPE, "overlap_grad_reduce": True}),
    ),
    ("framework_unsupported", "prefetches weights", runs(overlap_param_gather=False)),
    ("framework_unsupported", "a compiler pass", runs(overlap_tp=True, **TP2)),
    (
        "framework_unsupported",
        "always overlap messages",
        runs(overlap_p2p=False, **INTERLEAVED, **PIPE),
    ),
    ("framework_unsupported", "overlap_ep is false", runs("mixtral", ep=2, overlap_ep=True)),
]
# Tested with Megatron-LM, whose rules they are too.
SHARED_RULES = unreached(frameworks.get("megatron"), [])


@pytest.mark.parametrize(("code", "text", "case"), REFUSED, ids=[text for _, text, _ in REFUSED])
def test_refusals(code: str, text: str, case: Case) -> None:
    reasons = TITAN.reasons(*case)
    assert [r for r in reasons if r.code == code and text in r.text], reasons


def test_every_rule_is_reached_by_a_refusal() -> None:
    assert unreached(TITAN, [case for *_, case in REFUSED]) <= SHARED_RULES
