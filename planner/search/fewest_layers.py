"""Full recompute of the fewest layers that fit, in addition to that of all layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.estimate import CostModel
from cost_models.keyed_plans import KeyedPlans
from cost_models.plans import IntArray, code
from planner.evidence.uncertainty.memory_risk import Room
from planner.search.drawn import Drawn

FloatArray = NDArray[np.float64]
_FULL = code("recompute", "full")


def with_fewest_layers(drawn: Drawn, model: CostModel, room: Room) -> tuple[Drawn, FloatArray, int]:
    """Add to each plan with full recompute of all layers the one with the fewest that fit.

    Nothing is added if the plan fits without recompute, since that is faster.
    Returns the plans, the bytes that each needs, and the number of layer counts left out.
    """
    plans = drawn.plans
    gathered = model.gathered(plans)
    needed = model.needed_bytes_of(gathered)
    layers = np.broadcast_to(plans.recompute_num_layers, (len(plans),))
    reducible = (plans.recompute == _FULL) & (layers > 1) & ~drawn.each("every_layer_count")
    left_out = drawn.fewer_layers()
    rows = np.flatnonzero(reducible & (needed <= room.of(plans)))
    if len(rows):
        without = plans.take(rows).with_columns(recompute=0, recompute_num_layers=0)
        too_large = model.needed_bytes(without) > room.of(without)
        rows = rows[too_large | ~drawn.each("recompute_is_optional")[rows]]
    if not len(rows):
        return drawn, needed, left_out
    highest = layers[rows]
    fewest, fewest_bytes = _fewest(model, gathered.take(rows), highest, needed[rows], room)
    extra = fewest < highest
    left_out -= int(np.count_nonzero(extra))
    rows, fewest, fewest_bytes = rows[extra], fewest[extra], fewest_bytes[extra]
    if not len(rows):
        return drawn, needed, left_out
    added = drawn.take(rows).with_columns(recompute_num_layers=fewest)
    accepted = added.accepted()
    return (
        drawn.followed_by(added.take(accepted)),
        np.concatenate([needed, fewest_bytes[accepted]]),
        left_out,
    )


def _fewest(
    model: CostModel, gathered: KeyedPlans, highest: IntArray, needed: FloatArray, room: Room
) -> tuple[IntArray, FloatArray]:
    """The fewest layers of each plan that fit, and the bytes with them.

    needed: bytes with the most, which fit.

    Memory never grows with the number of recomputed layers, and falls almost linearly: so the
    number by linear interpolation is tried, one layer less, and the middle.
    """
    room_bytes = np.broadcast_to(room.of(gathered.plans), highest.shape)

    def bytes_with(rows: IntArray, layers: IntArray) -> FloatArray:
        chosen = gathered.take(rows)
        tried = chosen.plans.with_columns(recompute_num_layers=layers)
        return model.needed_bytes_of(chosen.with_layout(model.context.model, tried))

    # Invariant: `low` does not fit (unless it is high), `high` does.
    low, high = np.ones_like(highest), highest.copy()
    low_bytes, high_bytes = bytes_with(np.arange(len(highest)), low), needed.copy()
    fits_one = low_bytes <= room_bytes
    high[fits_one], high_bytes[fits_one] = 1, low_bytes[fits_one]
    while len(rows := np.flatnonzero(high - low > 1)):
        over, fall = low_bytes[rows] - room_bytes[rows], low_bytes[rows] - high_bytes[rows]
        line = low[rows] + np.ceil(over / fall * (high - low)[rows]).astype(np.int64)
        middle = (low + high)[rows] // 2
        layers = np.clip([line - 1, line, middle], low[rows] + 1, high[rows] - 1)
        needs = bytes_with(np.tile(rows, 3), layers.ravel()).reshape(layers.shape)
        for tried, tried_bytes in zip(layers, needs, strict=True):
            less = (tried_bytes <= room_bytes[rows]) & (tried < high[rows])
            high[rows[less]], high_bytes[rows[less]] = tried[less], tried_bytes[less]
        for tried, tried_bytes in zip(layers, needs, strict=True):
            over_limit = tried_bytes > room_bytes[rows]
            more = over_limit & (tried > low[rows]) & (tried < high[rows])
            low[rows[more]], low_bytes[rows[more]] = tried[more], tried_bytes[more]
    return high, high_bytes
