"""Rules of verl's Megatron actor beyond Megatron-LM's, from workers/engine/megatron of b178a3c."""

from __future__ import annotations

import numpy as np

from planner.constraints import Rule
from planner.frameworks.base import unsupported
from planner.frameworks.megatron.rules import RULES as CORE
from planner.frameworks.rules import is_named, optimizers

OWN: tuple[Rule, ...] = (
    optimizers("adam", "sgd", others="it has no layer-wise optimizer of Megatron-Core"),
    unsupported(
        lambda c, p: np.less_equal(p.zero_stage, 1) & (p.dp_shard == 0),
        "its engine uses Megatron's own data parallelism over all ranks: ZeRO 0 or 1, not "
        "{p.zero_stage} with dp_shard {p.dp_shard}",
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
