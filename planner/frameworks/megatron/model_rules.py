"""Rules on models and training options that Megatron-LM lacks, whatever the plan's degrees.

Sources: core 0.16.1, 0.19 and main (0.20), as for its other rules.
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, Plans, RecomputeModule, code
from cost_models.spec import ModelSpec
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks import rules
from planner.frameworks.base import unsupported

# (precision, gradient buffer, gradient reduction) -> option; None: its default.
GRADIENTS: dict[tuple[str, str, str], str | None] = {
    ("bf16", "fp32", "fp32"): "--accumulate-allreduce-grads-in-fp32",
    ("fp8", "fp32", "fp32"): "--accumulate-allreduce-grads-in-fp32",
    ("fp4", "fp32", "fp32"): "--accumulate-allreduce-grads-in-fp32",
    ("fp16", "fp32", "fp32"): "--accumulate-allreduce-grads-in-fp32",
    ("bf16", "bf16", "bf16"): "--grad-reduce-in-bf16",
    ("fp8", "bf16", "bf16"): "--grad-reduce-in-bf16",
    ("fp4", "bf16", "bf16"): "--grad-reduce-in-bf16",
    ("fp16", "fp16", "fp16"): None,
}
# Megatron-LM's fp8 recipes and their scaling.
FP8_RECIPES = {
    "tensorwise": "current scaling, one scale per tensor",
    "delayed": "scales from earlier steps, one per tensor",
    "blockwise": "a scale per block of 128 values",
    "mxfp8": "a scale per 32 values, applied by the matrix units",
}
_FULL = code("recompute", "full")
_ALLGATHER = code("moe_dispatcher", "allgather")
_FLASH1 = code("attention_kernel", "flash1")


def bias_kind(model: ModelSpec) -> str | None:
    """Which linear layers have a bias: "all", "qkv", "none"; None: a mix it has no option for.

    One option gives every linear layer a bias (router and experts too), another only the
    attention's input projection.
    """
    moe = model.moe
    dense_bias = {model.mlp_bias} if "dense" in model.feed_forwards else set()
    expert_bias = {moe.expert_bias, moe.router_bias} if moe is not None else set()
    rest = {model.attention_output_bias} | dense_bias | expert_bias
    if rest == {True}:
        return "all" if model.qkv_bias else None
    if rest == {False}:
        return "qkv" if model.qkv_bias else "none"
    return None


def recomputes(p: Plans, *modules: RecomputeModule) -> BoolArray:
    """Where any of these modules is recomputed."""
    bits = sum(1 << RECOMPUTE_MODULES.index(module) for module in modules)
    return np.asarray(p.recompute_modules & bits != 0)


def _gradients(c: Context) -> tuple[str, str, str]:
    t = c.training
    return t.precision, t.gradient_dtype, t.gradient_reduce_dtype


def stores_fp8(c: Context) -> bool:
    """Whether weights are kept in eight bits."""
    return c.training.precision == "fp8" and c.training.fp8_param_gather


MUON_IN_FP16 = unsupported(
    lambda c, p: c.training.optimizer != "muon" or c.training.precision != "fp16",
    "Muon does not train in fp16",
    "degrees",
)
MUON_IN_FP8 = unsupported(
    lambda c, p: c.training.optimizer != "muon" or not stores_fp8(c),
    "weights stored in fp8 need the distributed optimizer with Adam, not Muon",
    "degrees",
)
# Of frameworks on core 0.19 or newer; Megatron-LM itself is planned by older releases there.
LATENT_QUERIES = unsupported(
    lambda c, p: c.model.mla is None or c.model.mla.q_lora_rank is not None,
    "since core 0.19 latent attention without q_lora_rank adds a norm before the query "
    "projection or omits the norm of the key/value latent",
)
MODEL_RULES: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.optimizers("adam", "sgd", "muon"),
    MUON_IN_FP16,
    MUON_IN_FP8,
    *rules.GPT_PARTS,
    rules.LEARNED_POSITIONS,
    unsupported(
        lambda c, p: c.model.qk_norm == "none" or (c.model.qk_norm == "head" and not c.model.mla),
        lambda c, p: (
            f"query/key norms are per head; this model's are "
            f"{c.model.qk_norm!r}{' on top of the latent norms' if c.model.mla else ''}"
        ),
    ),
    unsupported(
        lambda c, p: bias_kind(c.model) is not None,
        lambda c, p: (
            "all linear layers have biases, none, or only the query/key/value projection; this "
            f"model has qkv {c.model.qkv_bias}, attention output {c.model.attention_output_bias}, "
            f"MLP {c.model.mlp_bias}"
            + (
                f", experts {c.model.moe.expert_bias}, router {c.model.moe.router_bias}"
                if c.model.moe is not None
                else ""
            )
        ),
    ),
    unsupported(
        lambda c, p: c.model.mla is None or c.model.position == "rope",
        "latent attention has rotary positions only, not {c.model.position}",
    ),
    unsupported(
        lambda c, p: c.model.mla is None or not c.model.qkv_bias,
        "latent attention has no bias in the query and key/value projections",
    ),
    unsupported(
        lambda c, p: c.model.mla is None or c.model.sliding_window is None,
        "latent attention with a sliding window is not supported",
    ),
    unsupported(
        lambda c, p: not c.model.mtp_num_layers or c.model.position in ("rope", "none"),
        "multi-token prediction does not support {c.model.position} positions",
    ),
    unsupported(
        lambda c, p: (
            c.model.moe is None
            or bias_kind(c.model) != "all"
            or not c.model.moe.shared_expert_ffn_hidden_size
        ),
        "shared experts have no biases",
    ),
    unsupported(
        lambda c, p: (
            c.model.moe is None
            or c.model.moe.top_k_groups is None
            or c.model.moe.top_k >= c.model.moe.top_k_groups
        ),
        "group-limited routing needs at least as many experts per token as groups per token",
    ),
    unsupported(
        lambda c, p: c.training.precision != "fp8" or c.training.fp8_recipe in FP8_RECIPES,
        lambda c, p: f"no fp8 recipe {c.training.fp8_recipe}, only {', '.join(FP8_RECIPES)}",
    ),
    unsupported(
        lambda c, p: (
            (p.overlap_ep == 0)
            | (
                (p.ep > 1)
                & ((p.vpp > 1) | (p.pp == 1))
                & (p.recompute != _FULL)
                & ~recomputes(p, "moe")
                & (p.moe_dispatcher != _ALLGATHER)
                & (c.model.mtp_num_layers <= 1)
            )
        ),
        lambda c, p: (
            "overlap_ep needs ep > 1, no pipeline or an interleaved one, no recompute of whole "
            "layers or of moe, no allgather dispatcher and at most one layer of multi-token "
            f"prediction; got ep {p.ep}, pp {p.pp}, vpp {p.vpp}, recompute "
            f"{', '.join(p.recompute_modules) or p.recompute}, {p.moe_dispatcher}, "
            f"{c.model.mtp_num_layers} such layers"
        ),
    ),
    unsupported(lambda c, p: p.attention_kernel != _FLASH1, "it has no flash-attention 1"),
    unsupported(
        lambda c, p: _gradients(c) in GRADIENTS,
        "gradients are accumulated and reduced in one dtype, fp32 or that of the weights; "
        "got {c.training.gradient_dtype} buffers and {c.training.gradient_reduce_dtype} "
        "reduction with {c.training.precision}",
    ),
    unsupported(
        lambda c, p: c.training.master_weights_dtype == "fp32", "master weights are always fp32"
    ),
    unsupported(
        lambda c, p: c.training.optimizer == "adam" or c.training.optimizer_state_dtype == "fp32",
        "only Adam supports optimizer states below fp32",
    ),
)
