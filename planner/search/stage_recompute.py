"""Full recompute of as many layers as each stage needs: later stages keep fewer micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cost_models.estimate import CostModel
from cost_models.keyed_plans import gather
from cost_models.plans import ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from cost_models.stage_layers import forward_layers, virtual_stages
from cost_models.stage_memory import StageMemory
from planner.evidence.uncertainty.memory_risk import Room


def with_own_counts(
    model: CostModel, plans: Iterable[ParallelPlan], room: Room
) -> Iterator[ParallelPlan]:
    """Plans in which every rank recomputes the fewest layers of a chunk with which it fits.

    The layers that one rank recomputes do not change the memory of others, so each rank is decided
    by itself.
    """
    for plan in plans:
        by_block = plan.recompute == "full" and plan.recompute_method == "block"
        placement = SCHEDULES[plan.schedule].placement
        if not by_block or plan.pp == 1 or placement == "two-way":
            continue
        sizes = forward_layers(model.context.model.num_layers, plan)
        _, owner, _ = virtual_stages(placement, plan.pp, sizes)
        counts = np.arange(max(sizes) + 1)
        uniform = plan.model_copy(update={"recompute_layers": ()})
        rows = Plans.of(uniform).with_columns(recompute_num_layers=counts)
        memory = StageMemory(model.context, gather(model.context, rows), all_stages=True)
        fits = memory.total_bytes - memory.spare_bytes <= room.of_plan(plan)
        if not fits.any(axis=1).all():
            continue
        own = np.minimum(fits.argmax(axis=1)[owner], sizes).tolist()
        if len(set(own)) > 1:
            fields = {"recompute_layers": tuple(own), "recompute_num_layers": max(own)}
            yield ParallelPlan.model_validate({**uniform.model_dump(), **fields})
