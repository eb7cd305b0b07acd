"""Which frameworks can train a model that another one has no words for."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from cost_models.plans import VOCABULARIES, Plans, code
from planner import frameworks
from planner.constraints import Context
from planner.frameworks.base import Framework

# What a framework may insist on in any plan, and its choices.
CHOICES = {
    "zero_stage": range(4),
    "attention_kernel": range(len(VOCABULARIES["attention_kernel"])),
    "cross_entropy": range(len(VOCABULARIES["cross_entropy"])),
    "overlap_grad_reduce": range(2),
    "overlap_param_gather": range(2),
    "reshard_after_forward": range(2),
}


@lru_cache(maxsize=64)
def able(context: Context) -> tuple[str, ...]:
    """Titles of those that run the model in some plan whose only axis is dp."""
    every = map(frameworks.get, frameworks.FRAMEWORKS)
    return tuple(one.title for one in every if _runs(one, context))


def _runs(framework: Framework, context: Context) -> bool:
    if framework.unsaid(context.model):
        return False
    rows = np.array(list(product(*CHOICES.values())))
    plans = Plans.build(
        runtime=code("runtime", framework.runtime),
        dp=context.cluster.accelerators,
        **dict(zip(CHOICES, rows.T, strict=True)),
    )
    legal = np.ones(len(plans), dtype=np.bool_)
    for rule in framework.rules:
        legal = legal & rule.legal(context, plans)
    return bool(legal.any())
