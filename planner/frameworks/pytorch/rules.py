"""Rules for what torch 2.13 refuses or the training script has no entry for.

Read from torch 2.13.0 (distributed.pipelining, distributed.fsdp, distributed.tensor).
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, IntArray, Plans
from planner.frameworks import rules, torch_schedules, torch_sharding
from planner.frameworks.base import rule, unsupported
from planner.frameworks.pytorch import encoders, pattern_rules
from planner.frameworks.rules import fixed_part, is_named
from planner.frameworks.torch_sharding import shard_degree, shard_degrees
from planner.search.constraints import BoolArray, Context, Rule

ATTENTION = ("flash", "flash2", "unfused")
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
    fixed_part(
        lambda m: m.moe is None or m.moe.num_groups is None,
        "the router chooses among all experts, not within groups",
    ),
    fixed_part(
        lambda m: m.moe is None or not m.moe.score_correction_bias,
        "the router's scores are a softmax, without a bias that balances experts",
    ),
    fixed_part(
        lambda m: m.moe is None or not m.moe.expert_bias, "experts have no biases of their own"
    ),
    fixed_part(
        lambda m: m.moe is None or m.moe.capacity_factor is None,
        "no token is dropped: there is no capacity factor",
    ),
    fixed_part(
        lambda m: (
            m.moe is None or not m.moe.shared_expert_gate or m.moe.shared_expert_ffn_hidden_size > 0
        ),
        "a gate on shared experts needs shared experts",
    ),
)
MODEL_RULES: tuple[Rule, ...] = (
    fixed_part(lambda m: m.position != "alibi", "ALiBi positions are not in the script"),
    fixed_part(
        lambda m: m.position != "rope" or m.head_dim % 2 == 0,
        "an odd head width cannot rotate in pairs",
    ),
    fixed_part(lambda m: not m.parallel_residual, "attention and MLP never run in parallel"),
    fixed_part(lambda m: m.norms_per_layer == 2, "a layer has two norms, one before each part"),
    fixed_part(lambda m: m.qk_norm != "full", "query/key norms run over one head, not over all"),
    *MOE_RULES,
    fixed_part(lambda m: not m.mtp_num_layers, "there is no multi-token prediction"),
)
RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.LEARNED_POSITIONS,
    *MODEL_RULES,
    *pattern_rules.RULES,
    *encoders.RULES,
    rules.own_runtime("torch"),
    rules.optimizers("adam", "sgd", "adafactor", "muon"),
    unsupported(
        lambda c, p: (
            (c.training.optimizer != "adafactor")
            | ((p.zero_stage == 0) & (p.tp == 1) & (p.ep == 1))
        ),
        lambda c, p: (
            "torch 2.13's Adafactor fails on DTensors that are split (its norms are squared in "
            f"place): tp 1, ep 1, ZeRO 0, got tp {p.tp}, ep {p.ep}, ZeRO {p.zero_stage}"
        ),
    ),
    unsupported(
        lambda c, p: c.training.precision in ("bf16", "fp32"),
        lambda c, p: (
            "the script computes in bf16 or fp32: no loss scaling for fp16, no fp8 or fp4 layers; "
            f"asked: {c.training.precision}"
        ),
    ),
    unsupported(
        lambda c, p: c.training.master_weights_dtype == c.training.optimizer_state_dtype == "fp32",
        lambda c, p: (
            "stored weights are the fp32 master copy and states have their type, asked: "
            f"{c.training.master_weights_dtype} and {c.training.optimizer_state_dtype}"
        ),
    ),
    unsupported(
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
    unsupported(
        lambda c, p: (not _dropout(c)) | (p.tp == 1) | (p.sequence_parallel == 1),
        lambda c, p: (
            f"dropout over tp {p.tp} needs sequence_parallel: whole activations would be dropped "
            "differently by each rank"
        ),
    ),
    rules.KV_HEADS,
    rule(
        "kv_heads",
        lambda c, p: (
            ~is_named(p, "cp_kind", "a2a") | (c.model.num_query_groups % (p.tp * p.cp) == 0)
        ),
        lambda c, p: (
            f"the all-to-all distributes whole key/value heads: {c.model.num_query_groups} do not "
            f"divide over tp {p.tp} x cp {p.cp}"
        ),
        "degrees",
    ),
    unsupported(
        lambda c, p: c.model.vocab_size % p.tp == 0,
        lambda c, p: (
            f"the vocabulary of {c.model.vocab_size} words does not divide over tp {p.tp}, and the "
            "script pads none"
        ),
        "degrees",
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | is_named(p, "cp_kind", "a2a", "all_gather"),
        lambda c, p: (
            "context parallelism is by all-to-all (a2a) or by gathered keys and values "
            "(all_gather): torch's own ring is experimental and runs on GPUs only; asked: "
            f"{p.cp_kind}"
        ),
    ),
    rule(
        "experts_not_divisible",
        lambda c, p: (c.model.moe is None) | (p.etp == 1),
        lambda c, p: f"an expert is never split by tensors: etp 1, not {p.etp}",
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
            f"torch multiplies experts in bf16 by rows of {GROUPED_BYTES} bytes: widths "
            f"{', '.join(map(str, _expert_widths(c)))} are no multiples of {GROUPED_BYTES // 2}"
        ),
        "degrees",
    ),
    unsupported(
        lambda c, p: (c.model.moe is None) | is_named(p, "moe_dispatcher", "alltoall"),
        lambda c, p: f"tokens go to their experts by all-to-all, not {p.moe_dispatcher}",
    ),
    unsupported(
        lambda c, p: (c.model.moe is None) | (p.compile == 0),
        "how many tokens each expert gets is known to the host at every step anew: layers of "
        "experts are not compiled",
    ),
    unsupported(
        lambda c, p: is_named(p, "attention_kernel", *ATTENTION),
        "scaled_dot_product_attention has no flash-attention 1",
    ),
    unsupported(
        lambda c, p: is_named(p, "cross_entropy", "unfused"),
        lambda c, p: f"the loss is torch's own, unfused; asked: {p.cross_entropy}",
    ),
    unsupported(
        lambda c, p: (p.pp == 1) | (not c.model.tied_embeddings),
        lambda c, p: (
            f"with pp {p.pp} embedding and output layer stand on different stages and cannot be one"
        ),
    ),
    *torch_schedules.RULES,
    unsupported(
        lambda c, p: (p.tp == 1) | (p.compile == 0),
        lambda c, p: (
            f"compiled layers over tp {p.tp} train differently from the same layers uncompiled "
            "(seen with torch 2.13 on CPUs), so the script does not offer them"
        ),
    ),
    unsupported(
        lambda c, p: is_named(p, "rank_order", "tp-cp-ep-dp-pp"),
        "stages are the outermost axis of the script's mesh",
    ),
    rule(
        "zero_stage",
        lambda c, p: (p.zero_stage == 0) | (p.zero_stage == 3),
        lambda c, p: (
            "fully_shard splits weights, gradients and states (ZeRO-3), replicate none (ZeRO-0); "
            f"asked: ZeRO-{p.zero_stage}. Keeping gathered weights is reshard_after_forward false"
        ),
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
            "modules that can be checkpointed are core_attn, mlp and moe, or operators (op); a "
            "norm's output would be kept by the product after it; asked: "
            f"{', '.join(p.recompute_modules)}"
        ),
    ),
    rule(
        "recompute",
        lambda c, p: (c.model.moe is None) | (p.recompute_modules != _BITS["op"]),
        "operators of experts cannot be chosen in turn: how many there are follows the tokens",
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
            ~is_named(p, "recompute", "full")
            | is_named(p, "recompute_method", "block")
            | (p.recompute_num_layers == 1)
        ),
        lambda c, p: f"each checkpoint is one layer: uniform with 1, not {p.recompute_num_layers}",
    ),
    rule(
        "offload",
        lambda c, p: (p.offload_optimizer == 0) & (p.offload_activations == 0),
        "nothing is kept in host memory: fully_shard would move the weights as well",
    ),
    unsupported(
        lambda c, p: (p.dp * p.cp == 1) | (p.overlap_grad_reduce == (p.pp == 1)),
        lambda c, p: (
            "gradients are always reduced during the backward pass, but under a pipeline after "
            f"it; asked: overlap_grad_reduce {str(p.overlap_grad_reduce).lower()} with pp {p.pp}"
        ),
    ),
    unsupported(
        lambda c, p: (p.dp * p.cp == 1) | (p.zero_stage == 0) | (p.overlap_param_gather == 1),
        "fully_shard always gathers weights ahead (overlap_param_gather)",
    ),
    unsupported(
        lambda c, p: (p.overlap_tp == 0) & (p.overlap_ep == 0),
        "tensor-parallel traffic blocks, and so does the all-to-all of experts",
    ),
    torch_schedules.OVERLAP,
    rules.NO_EMPTY_MIDDLE,
)
