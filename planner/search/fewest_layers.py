"""Full recompute of the fewest layers that fit, in addition to that of all layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.estimate import CostModel
from cost_models.keyed_plans import KeyedPlans
from cost_models.plans import IntArray, Plans, code, concatenate
from planner.evidence.uncertainty.memory_risk import Room
from planner.search.space import Space

FloatArray = NDArray[np.float64]
_FULL = code("recompute", "full")


def with_fewest_layers(
    plans: Plans, model: CostModel, space: Space, room: Room
) -> tuple[Plans, FloatArray, int]:
    """Add to each plan with full recompute of all layers the one with the fewest that fit.

    Nothing is added if the plan fits without recompute, since that is faster.
    Returns the plans, the bytes that each needs, and the number of layer counts left out.
    """
    gathered = model.gathered(plans)
    needed = model.needed_bytes_of(gathered)
    if space.every_layer_count:
        return plans, needed, 0
    full = np.broadcast_to(plans.recompute == _FULL, (len(plans),))
    layers = np.broadcast_to(plans.recompute_num_layers, (len(plans),))
    several = full & (layers > 1)
    left_out = space.other_layer_counts(plans)
    rows = np.flatnonzero(several & (needed <= room.of(plans)))
    if space.recompute_is_optional and len(rows):
        without = plans.take(rows).with_columns(recompute=0, recompute_num_layers=0)
        rows = rows[model.needed_bytes(without) > room.of(without)]
    if not len(rows):
        return plans, needed, left_out
    most = layers[rows]
    fewest, fewest_bytes = _fewest(model, gathered.take(rows), most, needed[rows], room)
    extra = fewest < most
    left_out -= int(np.count_nonzero(extra))
    rows, fewest, fewest_bytes = rows[extra], fewest[extra], fewest_bytes[extra]
    if not len(rows):
        return plans, needed, left_out
    added = plans.take(rows).with_columns(recompute_num_layers=fewest)
    accepted = space.accepts(added)
    return (
        concatenate(plans, added.take(accepted)),
        np.concatenate([needed, fewest_bytes[accepted]]),
        left_out,
    )


def _fewest(
    model: CostModel, gathered: KeyedPlans, most: IntArray, needed: FloatArray, room: Room
) -> tuple[IntArray, FloatArray]:
    """The fewest layers of each plan that fit, and the bytes with them.

    needed: bytes with the most, which fit.

    Memory never grows with the number of recomputed layers, and falls almost linearly: so the
    number by linear interpolation is tried, one layer less, and the middle.
    """
    limit = np.broadcast_to(room.of(gathered.plans), most.shape)

    def bytes_with(rows: IntArray, layers: IntArray) -> FloatArray:
        some = gathered.take(rows)
        tried = some.plans.with_columns(recompute_num_layers=layers)
        return model.needed_bytes_of(some.with_layout(model.context.model, tried))

    # Invariant: `low` does not fit (unless it is high), `high` does.
    low, high = np.ones_like(most), most.copy()
    low_bytes, high_bytes = bytes_with(np.arange(len(most)), low), needed.copy()
    one = low_bytes <= limit
    high[one], high_bytes[one] = 1, low_bytes[one]
    while len(rows := np.flatnonzero(high - low > 1)):
        over, fall = low_bytes[rows] - limit[rows], low_bytes[rows] - high_bytes[rows]
        line = low[rows] + np.ceil(over / fall * (high - low)[rows]).astype(np.int64)
        middle = (low + high)[rows] // 2
        layers = np.clip([line - 1, line, middle], low[rows] + 1, high[rows] - 1)
        found = bytes_with(np.tile(rows, 3), layers.ravel()).reshape(layers.shape)
        for tried, tried_bytes in zip(layers, found, strict=True):
            less = (tried_bytes <= limit[rows]) & (tried < high[rows])
            high[rows[less]], high_bytes[rows[less]] = tried[less], tried_bytes[less]
        for tried, tried_bytes in zip(layers, found, strict=True):
            over_limit = tried_bytes > limit[rows]
            more = over_limit & (tried > low[rows]) & (tried < high[rows])
            low[rows[more]], low_bytes[rows[more]] = tried[more], tried_bytes[more]
    return high, high_bytes
