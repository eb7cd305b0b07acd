"""New weights from the ranks that train to the engines that generate.

What the frameworks do by default: parameters are gathered whole, bucket by bucket, over the groups
that split them.  On the same ranks each gets all of them, over the pipeline's stages too, and its
engine takes its part over CUDA IPC (NeMo RL, verl, slime).  To other ranks one rank of each stage
broadcasts them, a stage at a time (slime's update_weight_from_distributed; NeMo RL's collective
synchronizer broadcasts whole tensors too), so that all pass through one accelerator's links.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from cost_models.blocks.records import Split
from cost_models.estimate import CostModel
from cost_models.layers import layers_of
from cost_models.parameters import total_parameters
from cost_models.placement import Axis, Placement
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import DTYPE_BYTES, ModelSpec, NetworkTier
from planner.answers.reinforcement.documents import TransferStep


def generation_weight_bytes(model: ModelSpec) -> float:
    """Bytes of the weights that generate, in bf16 whatever they are trained in."""
    return float(DTYPE_BYTES["bf16"] * total_parameters(model))


def transfer(model: CostModel, plan: ParallelPlan, generating: int) -> tuple[TransferStep, ...]:
    """The steps of a transfer, one after the other; generating: other accelerators, 0: the same.

    A stage is taken to hold its even share of the weights.
    """
    steps = []
    for title, op, payload_bytes, axis in _exchanges(model, plan, generating):
        ranks = int(np.max(axis.size))
        if ranks > 1 and payload_bytes > 0:
            seconds = float(np.max(model.context.fabric.transfer(op, payload_bytes, axis)))
            steps.append(
                TransferStep(
                    title=title, op=op, ranks=ranks, payload_bytes=payload_bytes, seconds=seconds
                )
            )
    return tuple(steps)


def _exchanges(
    model: CostModel, plan: ParallelPlan, generating: int
) -> Iterator[tuple[str, Literal["all_gather", "send"], float, Axis]]:
    """(title, operation, payload by nccl-tests' convention, group) of every step."""
    places = Placement(Plans.from_rows([plan]))
    whole = generation_weight_bytes(model.context.model)
    experts = expert_bytes(model.context.model)
    dense = whole - experts
    if plan.zero_stage == 3:
        yield "ZeRO shards", "all_gather", dense / (plan.pp * plan.tp), places.shard
        shard = experts / (plan.pp * plan.ep * plan.etp)
        yield "ZeRO shards of experts", "all_gather", shard, places.expert_shard
    yield "tensor parallel", "all_gather", dense / plan.pp, places.tp
    yield "tensor parallel experts", "all_gather", experts / (plan.pp * plan.ep), places.etp
    yield "expert parallel", "all_gather", experts / plan.pp, places.ep
    if not generating:
        yield "pipeline stages", "all_gather", whole, places.pp
        return
    stride = _apart(model.context.nodes.network, model.context.cluster.accelerators + generating)
    yield "to the engines", "send", whole, Axis(np.array([2]), np.array([stride]))


def expert_bytes(model: ModelSpec) -> float:
    """Bytes of all routed experts, as generation_weight_bytes counts them."""
    layers = layers_of(model)
    elements = sum(
        number * float(np.max(weight.elements))
        for kind, number in zip(layers.kinds, layers.counts, strict=True)
        for weight in kind.weights(model, Split())
        if weight.expert
    )
    return DTYPE_BYTES["bf16"] * elements


def _apart(tiers: tuple[NetworkTier, ...], accelerators: int) -> int:
    """Ranks between two that meet over the outermost tier that so many accelerators need."""
    domains = (tier.domain_accelerators for tier in tiers)
    return max((d for d in domains if d is not None and d < accelerators), default=1)
