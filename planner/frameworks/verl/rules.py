"""Rules of verl's Megatron actor beyond Megatron-LM's, from workers/engine/megatron of b178a3c."""

from __future__ import annotations

import numpy as np

from cost_models.plans import code
from planner.constraints import Rule
from planner.frameworks.base import unsupported
from planner.frameworks.megatron.rules import RULES as CORE
from planner.frameworks.rules import is_named, optimizers

OWN: tuple[Rule, ...] = (
    optimizers("adam", "sgd", others="it has no layer-wise optimizer of Megatron-Core"),
    unsupported(
        lambda c, p: np.less_equal(p.zero_stage, 1) & (p.dp_shard == 0),
        lambda c, p: (
            f"its engine uses Megatron's own data parallelism over all ranks: ZeRO 0 or 1, not "
            f"{p.zero_stage} with dp_shard {p.dp_shard}"
        ),
    ),
    unsupported(
        lambda c, p: p.rank_order == code("rank_order", "tp-cp-ep-dp-pp"),
        "it uses Megatron-Core's default rank order",
    ),
    unsupported(
        lambda c, p: is_named(p, "cross_entropy", "unfused"),
        "its losses need log-probabilities of fp32 logits: no fused cross entropy",
    ),
    unsupported(
        lambda c, p: (p.overlap_tp == 0) & (p.overlap_ep == 0),
        "it has neither overlap_tp nor overlap_ep",
    ),
    unsupported(
        lambda c, p: (p.cp == 1) | is_named(p, "cp_kind", "p2p"),
        "its packed samples are split only for ring attention (p2p)",
    ),
    unsupported(
        lambda c, p: p.offload_activations == 0,
        "its engine has no activation offload",
    ),
    unsupported(
        lambda c, p: (c.model.moe is None) | ~is_named(p, "moe_dispatcher", "allgather"),
        "the allgather dispatcher does not support sequences of different lengths",
    ),
    unsupported(
        lambda c, p: (
            (c.training.precision in ("bf16", "fp16"))
            & (c.training.optimizer_state_dtype == "fp32")
            & (c.training.gradient_dtype == c.training.gradient_reduce_dtype)
        ),
        "it trains in bf16 or fp16, with fp32 moments and one dtype of gradients",
        "degrees",
    ),
    unsupported(
        lambda c, p: (c.model.position != "learned") & (c.training.seq_length >= 2),
        "its packed samples have no positions for learned position embeddings",
        "degrees",
    ),
)
RULES: tuple[Rule, ...] = (*CORE, *OWN)
