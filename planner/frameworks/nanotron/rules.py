"""Rules for what nanotron refuses, fails at or has no key for.

Read from commit 2411b02 of April 2026: config, parallel/context.py, trainer.py, models/qwen.py,
optim/gradient_accumulator.py.
"""

from __future__ import annotations

import numpy as np

from cost_models.balanced_layers import stages
from cost_models.plans import ParallelPlan, Plans, code
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks import rules
from planner.frameworks.base import rule, unsupported
from planner.frameworks.rules import fixed_experts, fixed_part

# Types of gradients, of their reduction, of master weights and of optimizer states.
FP32 = ("fp32", "fp32", "fp32", "fp32")
BF16 = ("bf16", "bf16", "none", "bf16")
_FULL = code("recompute", "full")


def kept(c: Context) -> tuple[str, str, str, str]:
    t = c.training
    return (
        t.gradient_dtype,
        t.gradient_reduce_dtype,
        t.master_weights_dtype,
        t.optimizer_state_dtype,
    )


def _by_grid(c: Context, p: Plans) -> list[tuple[BoolArray, tuple[int, ...]]]:
    """For each pair of pp and tp: the mask of its plans, and the layers of its stages."""
    pp, tp = np.broadcast_arrays(p.pp, p.tp)
    pairs = set(zip(pp.ravel().tolist(), tp.ravel().tolist(), strict=True))
    return [
        (np.asarray((p.pp == one) & (p.tp == other)), stages(c.model, one, other))
        for one, other in sorted(pairs)
    ]


def _split(c: Context, p: Plans) -> BoolArray:
    """Whether the plan's stages are those of nanotron's own split."""
    even = (p.stage_layers == 0) & (p.first_stage_layers == 0) & (p.last_stage_layers == 0)
    legal = np.asarray((p.pp == 1) & even)
    for where, counts in _by_grid(c, p):
        if len(counts) > 1 and min(counts) > 0:
            row = p.stage_layers_table.index(counts) + 1 if counts in p.stage_layers_table else -1
            same = even if len(set(counts)) == 1 else p.stage_layers == row
            legal = legal | (where & same)
    return legal


def _split_text(c: Context, p: ParallelPlan) -> str:
    if p.pp == 1:
        return "stage_layers needs pp > 1"
    counts = stages(c.model, p.pp, p.tp)
    found = ", ".join(map(str, counts))
    if min(counts) == 0:
        return f"layers are distributed by cost: some of the pp {p.pp} stages get none ({found})"
    return f"layers are distributed by cost: pp {p.pp} needs stage_layers {found}"


def _recompute(c: Context, p: Plans) -> BoolArray:
    count = np.zeros(np.shape(p.recompute), dtype=np.int64)
    for where, counts in _by_grid(c, p):
        count = np.where(where, max(counts), count)
    return np.asarray((p.recompute != _FULL) | (p.recompute_num_layers == count))


def _recompute_text(c: Context, p: ParallelPlan) -> str:
    most = max(stages(c.model, p.pp, p.tp))
    return f"recompute_layer applies to every layer: {most} layers, got {p.recompute_num_layers}"


RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    fixed_part(lambda m: m.norm == "rmsnorm", "every norm is an RMSNorm"),
    fixed_part(lambda m: m.norms_per_layer == 2, "a layer has two norms, one before each part"),
    fixed_part(lambda m: not m.embedding_norm, "there is no norm after the embedding"),
    fixed_part(lambda m: m.qk_norm == "none", "there are no norms on queries and keys"),
    fixed_part(lambda m: m.gated_mlp, "the MLP is gated"),
    fixed_part(
        lambda m: m.position in ("rope", "none"), "positions are rotary, or none in all layers"
    ),
    fixed_part(lambda m: not m.parallel_residual, "attention and MLP never run in parallel"),
    fixed_part(
        lambda m: not (m.attention_output_bias or m.mlp_bias or m.lm_head_bias),
        "only the query/key/value projection can have a bias",
    ),
    fixed_part(
        lambda m: not (m.hidden_dropout or m.attention_dropout), "there is no dropout anywhere"
    ),
    fixed_part(lambda m: m.mla is None, "there is no latent attention"),
    fixed_part(lambda m: not m.attention_sinks, "there are no attention sinks"),
    fixed_part(lambda m: not m.mtp_num_layers, "there is no multi-token prediction"),
    fixed_part(
        lambda m: m.full_attention_period is None, "a sliding window applies to every layer"
    ),
    fixed_part(
        lambda m: m.sliding_window is None or m.position == "rope",
        "layers without RoPE have no sliding window",
    ),
    fixed_part(
        lambda m: m.head_dim * m.num_attention_heads == m.hidden_size,
        "head width must be hidden_size / heads",
    ),
    fixed_experts(
        lambda e: not (e.router_bias or e.expert_bias or e.score_correction_bias),
        "routers and experts have no biases",
    ),
    fixed_experts(
        lambda e: e.num_groups is None and e.capacity_factor is None,
        "experts are chosen without groups, and no token is dropped",
    ),
    fixed_experts(
        lambda e: e.shared_expert_gate == (e.shared_expert_ffn_hidden_size > 0),
        "a shared expert always has a gate",
    ),
    rules.optimizers("adam", "sgd"),
    unsupported(
        lambda c, p: c.training.seq_length > 10,
        "its mock data need sequences of more than 10 tokens, got {c.training.seq_length}",
    ),
    rule(
        "kv_heads",
        lambda c, p: c.model.num_query_groups % p.tp == 0,
        "{c.model.num_query_groups} key/value heads do not divide over tp {p.tp}",
        "degrees",
    ),
    rule("layers_not_divisible", _split, _split_text, "layout"),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage == 0) | (p.dp == 1) | (c.training.gradient_dtype == "bf16"),
        "ZeRO 1 with fp32 gradients over dp ends in NotImplementedError at the first backward "
        "pass: use bf16 gradients or ZeRO 0",
    ),
    rule("recompute", _recompute, _recompute_text),
    unsupported(
        lambda c, p: (p.tp == 1) | (p.overlap_tp == 0) | (p.sequence_parallel == 1),
        "tp_linear_async_communication needs tp_mode REDUCE_SCATTER (sequence_parallel)",
    ),
    unsupported(
        lambda c, p: c.training.precision == "bf16",
        "{c.training.precision}: there is no loss scaling for float16, and no key for its "
        "fp8 layers",
    ),
    unsupported(
        lambda c, p: kept(c) in (FP32, BF16),
        lambda c, p: (
            "accumulate_grad_in_fp32 keeps gradients, master weights and states in fp32; without "
            f"it all are bf16 and there is no master copy; got {', '.join(kept(c))}"
        ),
    ),
)
