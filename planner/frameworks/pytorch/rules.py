"""Rules for what torch 2.13 refuses or the training script has no entry for.

Read from torch 2.13.0 (distributed.pipelining, distributed.fsdp, distributed.tensor).
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, IntArray, Plans
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks import rules, torch_schedules, torch_sharding
from planner.frameworks.base import rule, unsupported
from planner.frameworks.pytorch import encoders, pattern_rules
from planner.frameworks.rules import fixed_experts, fixed_part, is_named
from planner.frameworks.torch_sharding import shard_degree, shard_degrees

_BITS = {module: 1 << place for place, module in enumerate(RECOMPUTE_MODULES)}
_MODULES = _BITS["core_attn"] | _BITS["mlp"] | _BITS["moe"]
# torch's grouped matrix products need rows of a multiple of so many bytes.
GROUPED_BYTES = 16


def _expert_copies(p: Plans) -> IntArray:
    """Ranks that hold the same experts in one shard group; 0 if ep does not divide the group."""
    ranks = np.where(p.zero_stage > 0, shard_degrees(p) * p.cp, p.dp * p.cp) * p.tp
    return np.where(ranks % p.ep == 0, ranks // p.ep, 0)


def _expert_widths(c: Context) -> tuple[int, ...]:
    moe = c.model.moe
    if moe is None:
        return ()
    return moe.latent_size or c.model.hidden_size, moe.expert_ffn_hidden_size


def _split_experts(c: Context, p: Plans) -> BoolArray:
    parts = np.where(p.zero_stage > 0, np.maximum(_expert_copies(p), 1), 1)
    legal = np.asarray(True)
    for width in _expert_widths(c):
        legal = legal & (width % parts == 0)
    return np.asarray(legal)


def _dropout(c: Context) -> bool:
    return c.model.hidden_dropout > 0 or c.model.attention_dropout > 0


MOE_RULES: tuple[Rule, ...] = (
    fixed_experts(
        lambda e: e.num_groups is None, "the router chooses among all experts, not within groups"
    ),
    fixed_experts(
        lambda e: not e.score_correction_bias,
        "the router's scores are a softmax, without a bias that balances experts",
    ),
    fixed_experts(lambda e: not e.expert_bias, "experts have no biases"),
    fixed_experts(
        lambda e: e.capacity_factor is None, "no token is dropped: there is no capacity factor"
    ),
    fixed_experts(
        lambda e: not e.shared_expert_gate or e.shared_expert_ffn_hidden_size > 0,
        "a gate on shared experts needs shared experts",
    ),
)
MODEL_RULES: tuple[Rule, ...] = (
    fixed_part(lambda m: m.position != "alibi", "ALiBi positions are not in the script"),
    fixed_part(
        lambda m: m.position != "rope" or m.head_dim % 2 == 0,
        "rotary positions need an even head width",
    ),
    fixed_part(lambda m: not m.parallel_residual, "attention and MLP never run in parallel"),
    fixed_part(lambda m: m.norms_per_layer == 2, "a layer has two norms, one before each part"),
    fixed_part(lambda m: m.qk_norm != "full", "query/key norms are per head, not over all heads"),
    *MOE_RULES,
    fixed_part(lambda m: not m.mtp_num_layers, "there is no multi-token prediction"),
)
RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.LEARNED_POSITIONS,
    *MODEL_RULES,
    *pattern_rules.RULES,
    *encoders.RULES,
    rules.optimizers("adam", "sgd", "adafactor", "muon"),
    unsupported(
        lambda c, p: (
            (c.training.optimizer != "adafactor")
            | ((p.zero_stage == 0) & (p.tp == 1) & (p.ep == 1))
        ),
        "torch 2.13's Adafactor fails on sharded DTensors (its norms are squared in place): "
        "tp 1, ep 1, ZeRO 0, got tp {p.tp}, ep {p.ep}, ZeRO {p.zero_stage}",
    ),
    unsupported(
        lambda c, p: c.training.precision in ("bf16", "fp32"),
        "the script computes in bf16 or fp32: no loss scaling for fp16, no fp8 or fp4 "
        "layers; got {c.training.precision}",
    ),
    unsupported(
        lambda c, p: c.training.master_weights_dtype == c.training.optimizer_state_dtype == "fp32",
        "stored weights are the fp32 master copy, and states are fp32; got "
        "{c.training.master_weights_dtype} and {c.training.optimizer_state_dtype}",
    ),
    unsupported(
        lambda c, p: (
            (c.training.gradient_dtype == "fp32")
            & (
                (c.training.gradient_reduce_dtype == "fp32")
                | ((c.training.gradient_reduce_dtype == "bf16") & (p.zero_stage > 0) & (p.pp == 1))
            )
        ),
        "gradients accumulate in fp32; they can be reduced in bf16 only where every "
        "micro-batch is reduced (ZeRO-3 without pipeline); got {c.training.gradient_dtype}, "
        "reduced in {c.training.gradient_reduce_dtype} with ZeRO {p.zero_stage}, pp {p.pp}",
    ),
    unsupported(
        lambda c, p: (not _dropout(c)) | (p.tp == 1) | (p.sequence_parallel == 1),
        "dropout over tp {p.tp} needs sequence_parallel: otherwise each rank would drop "
        "other values of the same activations",
    ),
    rules.KV_HEADS,
    rule(
        "kv_heads",
        lambda c, p: (
            ~is_named(p, "cp_kind", "a2a") | (c.model.num_query_groups % (p.tp * p.cp) == 0)
        ),
        "all-to-all splits by key/value heads: {c.model.num_query_groups} do not divide over "
        "tp {p.tp} x cp {p.cp}",
        "degrees",
    ),
    unsupported(
        lambda c, p: c.model.vocab_size % p.tp == 0,
        "the vocabulary of {c.model.vocab_size} tokens does not divide over tp {p.tp}, and "
        "the script does not pad it",
        "degrees",
    ),
    rule(
        "experts_not_divisible",
        lambda c, p: (c.model.moe is None) | (_expert_copies(p) > 0),
        lambda c, p: (
            f"ep {p.ep} does not divide the ranks of a shard group: dp_shard {shard_degree(p)} x "
            f"cp {p.cp} x tp {p.tp}"
        ),
    ),
    rule(
        "zero_stage",
        _split_experts,
        lambda c, p: (
            f"fully_shard splits the matrices of experts evenly, and widths "
            f"{', '.join(map(str, _expert_widths(c)))} do not divide over the "
            f"{shard_degree(p) * p.cp * p.tp // p.ep} ranks with the same experts"
        ),
    ),
    unsupported(
        lambda c, p: (
            c.training.precision == "fp32"
            or all(2 * width % GROUPED_BYTES == 0 for width in _expert_widths(c))
        ),
        lambda c, p: (
            f"torch's grouped bf16 GEMMs need rows of {GROUPED_BYTES} bytes: widths "
            f"{', '.join(map(str, _expert_widths(c)))} are not multiples of {GROUPED_BYTES // 2}"
        ),
        "degrees",
    ),
    unsupported(
        lambda c, p: (c.model.moe is None) | (p.compile == 0),
        "token counts per expert change at every step: MoE layers are not compiled",
    ),
    unsupported(
        lambda c, p: (p.pp == 1) | (not c.model.tied_embeddings),
        "with pp {p.pp} embedding and output layer are on different stages and cannot be tied",
    ),
    *torch_schedules.RULES,
    unsupported(
        lambda c, p: (p.tp == 1) | (p.compile == 0),
        "compiled layers with tp {p.tp} train differently from uncompiled ones (seen with "
        "torch 2.13 on CPUs): no compile",
    ),
    torch_sharding.GROUPS,
    rule(
        "recompute",
        lambda c, p: (
            ~is_named(p, "recompute", "selective")
            | (p.recompute_modules == _BITS["op"])
            | ((p.recompute_modules & ~_MODULES) == 0)
        ),
        lambda c, p: (
            "only core_attn, mlp and moe, or operators (op), can be checkpointed; a norm's "
            f"output is kept by the GEMM after it; got {', '.join(p.recompute_modules)}"
        ),
    ),
    rule(
        "recompute",
        lambda c, p: (c.model.moe is None) | (p.recompute_modules != _BITS["op"]),
        "recompute by operator does not work with experts: their operator count depends on tokens",
    ),
    rule(
        "recompute",
        lambda c, p: (
            (p.pp == 1) | (p.recompute_modules != _BITS["op"]) | ~torch_schedules.splits_backward(p)
        ),
        "{p.schedule} runs backward twice, but operator outputs are kept for one pass only",
    ),
    rule(
        "recompute",
        lambda c, p: (
            ~is_named(p, "recompute", "full")
            | is_named(p, "recompute_method", "block")
            | (p.recompute_num_layers == 1)
        ),
        "each checkpoint is one layer: uniform with 1, not {p.recompute_num_layers}",
    ),
    unsupported(
        lambda c, p: (p.dp * p.cp == 1) | (p.overlap_grad_reduce == (p.pp == 1)),
        lambda c, p: (
            "gradients are always reduced during the backward pass, but with a pipeline after "
            f"it; got overlap_grad_reduce {str(p.overlap_grad_reduce).lower()} with pp {p.pp}"
        ),
    ),
    rules.NO_EMPTY_MIDDLE,
)
