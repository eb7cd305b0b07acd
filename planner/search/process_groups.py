"""The legal sizes of process groups, from which all candidates of a search are built."""

from __future__ import annotations

from math import prod

import numpy as np

from cost_models.plans import Plans
from planner.search.axes import MAX_COMBINATIONS, Axes, SpaceTooLarge, within
from planner.search.layout_axes import LayoutAxes
from planner.search.legality import Legality


def process_groups(axes: Axes, layouts: LayoutAxes, legality: Legality) -> Plans:
    """Legal process-group sizes, one row each; everything else still at its default."""
    plans = _with_whole_batches(_degrees(axes, layouts, legality), axes, legality)
    return legality.passed(_with_expert_grids(plans, axes), "groups")


def _degrees(axes: Axes, layouts: LayoutAxes, legality: Legality) -> Plans:
    """Every tp, cp and pp, and the dp that remains of each size."""
    names = ("tp", "cp", "pp")
    size = prod(len(axes.values[name]) for name in names) * len(axes.sizes)
    if size > MAX_COMBINATIONS:
        raise SpaceTooLarge("combinations of tp, cp and pp", size, MAX_COMBINATIONS)
    columns = (np.array(axes.values[name], dtype=np.int64) for name in names)
    grid = np.meshgrid(*columns, np.array(axes.sizes, dtype=np.int64), indexing="ij")
    tp, cp, pp, accelerators = (axis.ravel() for axis in grid)
    dp = np.maximum(accelerators // (tp * cp * pp), 1)
    plans = Plans.build(
        tp=tp, cp=cp, pp=pp, dp=dp, stage_layers_table=layouts.split_table, **axes.constant
    )
    if len(axes.sizes) > 1:  # degrees that leave some of one size idle may be those of another
        plans = plans.take(tp * cp * pp * dp == accelerators)
    return legality.passed(plans, "degrees")


def _with_whole_batches(plans: Plans, axes: Axes, legality: Legality) -> Plans:
    """Degrees whose dp divides the batch and is within its limits."""
    divides = axes.request.training.global_batch_size % plans.dp == 0
    allowed = divides
    bounds = axes.request.search.limits.get("dp")
    if bounds is not None:
        allowed = divides & np.array([within(bounds, int(d)) for d in plans.dp], dtype=np.bool_)
    legality.rejected["batch_identity"] += int(np.count_nonzero(~divides))
    legality.rejected["user_limit"] += int(np.count_nonzero(divides & ~allowed))
    return plans.take(allowed)


def _with_expert_grids(plans: Plans, axes: Axes) -> Plans:
    """Each row of degrees with every expert grid, and with sequence parallelism off and on."""
    v = axes.values
    # 0 stands for experts that are split as the dense layers are.
    etps = v["etp"] if axes.limited("etp") or axes.request.model.moe is None else (1, 0)
    size = len(plans) * len(etps) * len(v["ep"]) * len(v["sequence_parallel"])
    if size > MAX_COMBINATIONS:
        raise SpaceTooLarge("process-group sizes", size, MAX_COMBINATIONS)
    row, etp, ep, sharded = (
        axis.ravel()
        for axis in np.meshgrid(
            np.arange(len(plans.dp)),
            np.array(etps, dtype=np.int64),
            np.array(v["ep"], dtype=np.int64),
            np.array([int(x) for x in v["sequence_parallel"]], dtype=np.int64),
            indexing="ij",
        )
    )
    plans = plans.take(row)
    as_dense = etp == 0
    # A switch without tensor parallelism, and etp = tp = 1, are no plans of their own.
    keep = ((sharded == 0) | (plans.tp > 1)) & (~as_dense | (plans.tp > 1))
    if v["sequence_parallel"] == (True,):
        sharded = np.where(plans.tp > 1, sharded, 0)
        keep = ~as_dense | (plans.tp > 1)
    etp = np.where(as_dense, plans.tp, etp)
    return plans.with_columns(etp=etp, ep=ep, sequence_parallel=sharded).take(keep)
