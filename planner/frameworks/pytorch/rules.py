"""What torch 2.13 refuses, and what the training script has no way to say, as rules.

Read from torch 2.13.0 (distributed.pipelining, distributed.fsdp, distributed.tensor).
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, IntArray, ParallelPlan, Plans, is_one_of
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks import rules, torch_schedules
from planner.frameworks.base import rule
from planner.frameworks.rules import fixed_part

ATTENTION = ("flash", "flash2", "unfused")
_BITS = {module: 1 << place for place, module in enumerate(RECOMPUTE_MODULES)}
_MODULES = _BITS["core_attn"] | _BITS["mlp"]


def _is(p: Plans, field: str, *names: str) -> BoolArray:
    return np.asarray(is_one_of(getattr(p, field), field, *names) > 0)


def _shard(p: Plans) -> IntArray:
    """Data-parallel ranks of one shard group; 0 where it holds no whole groups of cp."""
    spanned = np.where(p.dp_shard > 0, p.dp_shard, p.dp * p.cp)
    return np.where(spanned % p.cp == 0, spanned // p.cp, 0)


def shard_degree(plan: ParallelPlan) -> int:
    """The same of one plan; without ZeRO nothing is sharded."""
    return 1 if plan.zero_stage == 0 else (plan.dp_shard or plan.dp * plan.cp) // plan.cp


def _dropout(c: Context) -> bool:
    return c.model.hidden_dropout > 0 or c.model.attention_dropout > 0


MODEL_RULES: tuple[Rule, ...] = (
    fixed_part(lambda m: m.position != "alibi", "ALiBi positions are not in the script"),
    fixed_part(
        lambda m: m.position != "rope" or m.head_dim % 2 == 0,
        "an odd head width cannot rotate in pairs",
    ),
    fixed_part(lambda m: not m.parallel_residual, "attention and MLP never run in parallel"),
    fixed_part(lambda m: m.norms_per_layer == 2, "a layer has two norms, one before each part"),
    fixed_part(lambda m: m.qk_norm != "full", "query/key norms run over one head, not over all"),
    fixed_part(lambda m: m.moe is None, "the script's MLPs are dense: no experts"),
    fixed_part(lambda m: m.mla is None, "there is no latent attention"),
    fixed_part(lambda m: not m.attention_sinks, "scaled_dot_product_attention has no sinks"),
    fixed_part(lambda m: m.sliding_window is None, "there is no sliding window"),
    fixed_part(lambda m: not m.mtp_num_layers, "there is no multi-token prediction"),
)
RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.LEARNED_POSITIONS,
    *MODEL_RULES,
    rules.runtime("torch"),
    rule(
        "framework_unsupported",
        lambda c, p: c.training.precision == "bf16",
        lambda c, p: (
            f"the script computes in bf16: no loss scaling for fp16, no fp8 or fp4 layers; asked: "
            f"{c.training.precision}"
        ),
    ),
    rule(
        "framework_unsupported",
        lambda c, p: c.training.master_weights_dtype == c.training.optimizer_state_dtype == "fp32",
        lambda c, p: (
            "stored weights are the fp32 master copy and states have their type, asked: "
            f"{c.training.master_weights_dtype} and {c.training.optimizer_state_dtype}"
        ),
    ),
    rule(
        "framework_unsupported",
        lambda c, p: (
            (c.training.gradient_dtype == "fp32")
            & (
                (c.training.gradient_reduce_dtype == "fp32")
                | ((c.training.gradient_reduce_dtype == "bf16") & (p.zero_stage > 0) & (p.pp == 1))
            )
        ),
        lambda c, p: (
            "gradients accumulate in fp32; they can be reduced in bf16 only where every "
            f"micro-batch is reduced (ZeRO-3 without pipeline); asked: {c.training.gradient_dtype}"
            f", reduced in {c.training.gradient_reduce_dtype} with ZeRO {p.zero_stage}, pp {p.pp}"
        ),
    ),
    rule(
        "framework_unsupported",
        lambda c, p: (not _dropout(c)) | (p.tp == 1) | (p.sequence_parallel == 1),
        lambda c, p: (
            f"dropout over tp {p.tp} needs sequence_parallel: whole activations would be dropped "
            "differently by each rank"
        ),
    ),
    rule(
        "kv_heads",
        lambda c, p: c.model.num_query_groups % p.tp == 0,
        lambda c, p: f"{c.model.num_query_groups} key/value heads do not divide over tp {p.tp}",
        "degrees",
    ),
    rule(
        "framework_unsupported",
        lambda c, p: c.model.vocab_size % p.tp == 0,
        lambda c, p: (
            f"the vocabulary of {c.model.vocab_size} words does not divide over tp {p.tp}, and the "
            "script pads none"
        ),
        "degrees",
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | _is(p, "cp_kind", "a2a"),
        lambda c, p: (
            "context parallelism is by all-to-all (a2a): torch's own ring is experimental and "
            f"runs on GPUs only; asked: {p.cp_kind}"
        ),
    ),
    rule(
        "framework_unsupported",
        lambda c, p: _is(p, "attention_kernel", *ATTENTION),
        lambda c, p: "scaled_dot_product_attention has no flash-attention 1",
    ),
    rule(
        "framework_unsupported",
        lambda c, p: _is(p, "cross_entropy", "unfused"),
        lambda c, p: f"the loss is torch's own, unfused; asked: {p.cross_entropy}",
    ),
    rule(
        "framework_unsupported",
        lambda c, p: (p.pp == 1) | (not c.model.tied_embeddings),
        lambda c, p: (
            f"with pp {p.pp} embedding and output layer stand on different stages and cannot be one"
        ),
    ),
    *torch_schedules.RULES,
    rule(
        "framework_unsupported",
        lambda c, p: (p.tp == 1) | (p.compile == 0),
        lambda c, p: (
            f"compiled layers over tp {p.tp} train differently from the same layers uncompiled "
            "(seen with torch 2.13 on CPUs), so the script does not offer them"
        ),
    ),
    rule(
        "framework_unsupported",
        lambda c, p: _is(p, "rank_order", "tp-cp-ep-dp-pp"),
        lambda c, p: "stages are the outermost axis of the script's mesh",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage == 0) | (p.zero_stage == 3),
        lambda c, p: (
            "fully_shard splits weights, gradients and states (ZeRO-3), replicate none (ZeRO-0); "
            f"asked: ZeRO-{p.zero_stage}. Keeping gathered weights is reshard_after_forward false"
        ),
    ),
    rule(
        "zero_stage",
        lambda c, p: (
            (p.zero_stage == 0) | ((_shard(p) > 0) & (p.dp % np.maximum(_shard(p), 1) == 0))
        ),
        lambda c, p: (
            f"a shard group of {p.dp_shard} ranks must hold whole groups of cp {p.cp} and divide "
            f"dp {p.dp} x cp {p.cp}"
        ),
    ),
    rule(
        "recompute",
        lambda c, p: (
            ~_is(p, "recompute", "selective")
            | (p.recompute_modules == _BITS["op"])
            | ((p.recompute_modules & ~_MODULES) == 0)
        ),
        lambda c, p: (
            "modules that can be checkpointed are core_attn and mlp, or operators (op); a norm's "
            f"output would be kept by the product after it; asked: {', '.join(p.recompute_modules)}"
        ),
    ),
    rule(
        "recompute",
        lambda c, p: (
            (p.pp == 1) | (p.recompute_modules != _BITS["op"]) | ~torch_schedules.splits_backward(p)
        ),
        lambda c, p: (
            f"{p.schedule} runs backward twice, and operators' outputs are kept for one pass only"
        ),
    ),
    rule(
        "recompute",
        lambda c, p: (
            ~_is(p, "recompute", "full")
            | _is(p, "recompute_method", "block")
            | (p.recompute_num_layers == 1)
        ),
        lambda c, p: f"each checkpoint is one layer: uniform with 1, not {p.recompute_num_layers}",
    ),
    rule(
        "offload",
        lambda c, p: (p.offload_optimizer == 0) & (p.offload_activations == 0),
        lambda c, p: "nothing is kept in host memory: fully_shard would move the weights as well",
    ),
    rule(
        "framework_unsupported",
        lambda c, p: (p.dp * p.cp == 1) | (p.overlap_grad_reduce == (p.pp == 1)),
        lambda c, p: (
            "gradients are always reduced during the backward pass, but under a pipeline after "
            f"it; asked: overlap_grad_reduce {str(p.overlap_grad_reduce).lower()} with pp {p.pp}"
        ),
    ),
    rule(
        "framework_unsupported",
        lambda c, p: (p.dp * p.cp == 1) | (p.zero_stage == 0) | (p.overlap_param_gather == 1),
        lambda c, p: "fully_shard always gathers weights ahead (overlap_param_gather)",
    ),
    rule(
        "framework_unsupported",
        lambda c, p: (p.overlap_tp == 0) & (p.overlap_ep == 0),
        lambda c, p: "tensor-parallel traffic blocks, and there are no experts to exchange",
    ),
    rule(
        "framework_unsupported",
        lambda c, p: (p.pp == 1) | (p.vpp == 1) | (p.overlap_p2p == 1),
        lambda c, p: f"torch's {p.schedule} always overlaps its messages",
    ),
)
