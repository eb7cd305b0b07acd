"""Native PyTorch: what the script cannot do is refused, and every rule is reached."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.plans import ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.documents.request import PlanRequest
from tests.fixtures.frameworks import pytorch_patterns
from tests.fixtures.frameworks.pytorch import GPT, PIPE, RUNS, other
from tests.fixtures.launches import MODELS, TP2, launch, unreached

PYTORCH = frameworks.get("pytorch")


def refused(model: str | ModelSpec = "llama", **asked: Any) -> tuple[PlanRequest, ParallelPlan]:
    return launch(model, **{**RUNS, **asked})


def experts(**changed: Any) -> ModelSpec:
    """Mixtral with something changed in its experts."""
    return other("mixtral", moe={**MODELS["mixtral"].model_dump()["moe"], **changed})


UNEVEN = launch(**RUNS)[0]
GROUP = UNEVEN.cluster.groups[0]
REFUSED: dict[str, tuple[PlanRequest, ParallelPlan]] = {
    "the same number of processes": (
        UNEVEN.model_copy(
            update={
                "cluster": UNEVEN.cluster.model_copy(
                    update={
                        "groups": (
                            GROUP.model_copy(update={"nodes": 1}),
                            GROUP.model_copy(update={"nodes": 2, "accelerators_per_node": 4}),
                        )
                    }
                )
            }
        ),
        launch(**RUNS)[1],
    ),
    "position table has 4096 rows": refused(GPT, training={"seq_length": 8192}),
    "between the first and last need a layer, got 8,0,8": refused(
        stage_layers=(8, 0, 8, 0), pp=4, **PIPE
    ),
    "ALiBi": refused(other("llama", position="alibi")),
    "need an even head width": refused(other("llama", head_dim=33)),
    "never run in parallel": refused(other("llama", parallel_residual=True)),
    "two norms": refused(other("llama", norms_per_layer=4)),
    "norms are per head, not over": refused(other("llama", qk_norm="full")),
    "not within groups": refused("deepseek-v3"),
    "a bias that balances": refused(experts(score_correction_bias=True)),
    "experts have no biases": refused(experts(expert_bias=True)),
    "no capacity factor": refused("switch"),
    "needs shared experts": refused(experts(shared_expert_gate=True)),
    "not split by tensor parallelism": refused("mixtral", etp=2, **TP2),
    "ep 8 does not divide": refused("mixtral", ep=8, dp_shard=4),
    "do not divide over the 16 ranks": refused(experts(expert_ffn_hidden_size=1800)),
    "not multiples of 8": refused(experts(expert_ffn_hidden_size=1796)),
    "not deepep": refused("mixtral", ep=2, moe_dispatcher="deepep"),
    "are not compiled": refused("mixtral", compile=True),
    "operator does not work with experts": refused(
        "mixtral", recompute="selective", recompute_modules=("op",)
    ),
    "multi-token": refused(other("llama", mtp_num_layers=1)),
    "runtime is torch, not megatron": refused(runtime="megatron"),
    "got fp16": refused(training={"precision": "fp16"}),
    "none and fp32": refused(training={"master_weights_dtype": "none"}),
    "fp32 and bf16": refused(training={"optimizer_state_dtype": "bf16"}),
    "got bf16, reduced": refused(training={"gradient_dtype": "bf16"}),
    "reduced in bf16 with ZeRO 3, pp 2": launch(
        training={"gradient_reduce_dtype": "bf16"}, pp=2, **PIPE
    ),
    "Muon, not 8-bit Adam": refused(training={"optimizer": "adam_8bit"}),
    "fails on sharded DTensors": refused(training={"optimizer": "adafactor"}),
    "needs sequence_parallel": refused(GPT, tp=2),
    "key/value heads do not divide": refused(tp=8),
    "does not pad it": refused(other("llama", vocab_size=32001), **TP2),
    "cp_kind is a2a or all_gather, not p2p": refused(cp=2, cp_kind="p2p"),
    "no flash-attention 1": refused(attention_kernel="flash1"),
    "steps after the backward pass": refused(training={"optimizer_in_backward": True}),
    "not fused": refused(cross_entropy="fused"),
    "cannot be tied": launch("qwen2", pp=2, **PIPE),
    "not zb-h1": launch(pp=2, schedule="zb-h1", **PIPE),
    "compiled blocks": launch(pp=2, vpp=2, schedule="zb-v", compile=True, **PIPE),
    "train differently": refused(compile=True, **TP2),
    "outermost": launch(pp=2, **PIPE, rank_order="tp-cp-ep-pp-dp"),
    "zero_stage is 3 or 0, not 1": refused(zero_stage=1),
    "whole groups of cp": refused(cp=4, dp_shard=2),
    "all-to-all splits by key/value heads": refused(cp=4, **TP2),
    "core_attn, mlp and moe, or operators": refused(
        recompute="selective", recompute_modules=("layernorm",)
    ),
    "runs backward twice": launch(
        pp=2, vpp=2, schedule="zb-v", recompute="selective", recompute_modules=("op",), **PIPE
    ),
    "one layer: uniform": refused(
        recompute="full", recompute_method="uniform", recompute_num_layers=2
    ),
    "would also offload the weights": refused(offload_optimizer=True),
    "overlap_grad_reduce true with pp 2": launch(pp=2, **{**PIPE, "overlap_grad_reduce": True}),
    "prefetches weights": refused(overlap_param_gather=False),
    "overlap_tp is false": refused(overlap_tp=True, **TP2),
    "always overlap messages": launch(
        pp=2, vpp=2, schedule="looped-bfs", overlap_p2p=False, **PIPE
    ),
    **pytorch_patterns.REFUSED,
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_says_why(text: str) -> None:
    assert any(text in reason.text for reason in PYTORCH.reasons(*REFUSED[text]))


def test_every_rule_is_reached() -> None:
    assert unreached(PYTORCH, list(REFUSED.values())) == set()


def test_models_of_the_field_are_what_the_cases_are_about() -> None:
    """Everything that the shared models have and the script does not is refused above."""
    for name, model in MODELS.items():
        reasons = PYTORCH.reasons(*refused(model))
        assert bool(reasons) == (name not in ("gpt", "llama", "mixtral", "nope", "qwen2")), name
