"""Rules for what DeepSpeed and Megatron-DeepSpeed refuse or have no option for.

Read from DeepSpeed 0.19.8 (config, engine, pipeline engine) and Megatron-DeepSpeed 4efb479.
"""

from __future__ import annotations

import numpy as np

from cost_models.plans import RECOMPUTE_MODULES, Plans, code
from planner.constraints import BoolArray, Context, Rule
from planner.frameworks import rules
from planner.frameworks.base import rule, unsupported
from planner.frameworks.rules import fixed_part

_FULL = code("recompute", "full")
_SELECTIVE = code("recompute", "selective")
_CORE_ATTENTION = 1 << RECOMPUTE_MODULES.index("core_attn")
_UNFUSED = code("attention_kernel", "unfused")


def _bf16_optimizer(c: Context, p: Plans) -> BoolArray:
    """Whether DeepSpeed uses its BF16 optimizer, which reduces after the backward pass."""
    t = c.training
    return np.asarray(
        (p.zero_stage == 1)
        & (p.offload_optimizer == 0)
        & (t.precision == "bf16" and t.gradient_dtype == "fp32")
    )


PARTS: tuple[Rule, ...] = (
    rules.EQUAL_NODES,
    rules.optimizers("adam", "sgd", others="Megatron-DeepSpeed does not have DeepSpeed's Muon"),
    *rules.GPT_PARTS,
    rules.LEARNED_POSITIONS,
    fixed_part(lambda m: m.moe is None, "its own MoE layers are not planned: no experts"),
    fixed_part(lambda m: m.mla is None, "there is no latent attention"),
    fixed_part(lambda m: m.qk_norm == "none", "there are no norms on queries and keys"),
    fixed_part(lambda m: not m.attention_sinks, "there are no attention sinks"),
    fixed_part(lambda m: m.sliding_window is None, "there is no sliding window"),
    fixed_part(lambda m: not m.mtp_num_layers, "there is no multi-token prediction"),
    fixed_part(
        lambda m: m.qkv_bias == m.attention_output_bias == m.mlp_bias,
        "linear layers have biases in all places or in none",
    ),
)
# Rules of the engine, for any model code on top of it.
ENGINE: tuple[Rule, ...] = (
    unsupported(
        lambda c, p: c.training.precision not in ("fp8", "fp4"),
        "{c.training.precision} needs Transformer Engine layers, which have no grouped "
        "queries here",
    ),
    rules.FP32_STATES,
    unsupported(
        lambda c, p: (p.zero_stage > 0) | (c.training.gradient_dtype == c.training.precision),
        "without ZeRO gradients accumulate in {c.training.precision}, not "
        "{c.training.gradient_dtype}",
    ),
    rules.HALF_PRECISION,
    rule(
        "kv_heads",
        lambda c, p: c.model.num_query_groups % p.tp == 0,
        "{c.model.num_query_groups} key/value heads do not divide over tp {p.tp}",
    ),
    rule(
        "cp_seq",
        lambda c, p: (p.cp == 1) | ((p.tp == 1) & (p.pp == 1)),
        "Ulysses (cp {p.cp}) runs only without tp and pp, got tp {p.tp}, pp {p.pp}",
    ),
    rule(
        "recompute",
        lambda c, p: (
            (p.recompute != _SELECTIVE)
            | (
                (p.recompute_modules == _CORE_ATTENTION)
                & (p.attention_kernel == _UNFUSED)
                & (p.cp == 1)
            )
        ),
        lambda c, p: (
            "selective recompute needs unfused core attention without Ulysses, got "
            f"{', '.join(p.recompute_modules)} with {p.attention_kernel} attention, cp {p.cp}"
        ),
    ),
    rules.OFFLOADED_ADAM,
    rule(
        "offload",
        lambda c, p: (p.offload_activations == 0) | (p.recompute == _FULL),
        "only checkpoints are offloaded: activation offload needs full recompute",
    ),
    unsupported(
        lambda c, p: (
            (p.overlap_grad_reduce == 0)
            | ((p.zero_stage > 0) & (p.pp == 1) & ~_bf16_optimizer(c, p))
        ),
        "gradients are reduced after the backward pass: without ZeRO, with a pipeline, and by "
        "the BF16 optimizer (ZeRO 1, fp32 gradients); got ZeRO {p.zero_stage}, pp {p.pp}, "
        "{c.training.gradient_dtype} gradients",
    ),
    unsupported(
        lambda c, p: p.overlap_param_gather == ((p.zero_stage == 3) & (p.overlap_grad_reduce == 1)),
        "only ZeRO-3 prefetches weights, with the same switch that overlaps gradients; got "
        "{p.overlap_param_gather} with ZeRO {p.zero_stage} and {p.overlap_grad_reduce} for "
        "gradients",
    ),
)
RULES: tuple[Rule, ...] = (*PARTS, *ENGINE)
