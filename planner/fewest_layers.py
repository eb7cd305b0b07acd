"""Full recompute of the fewest layers that fit, beside that of all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cost_models.estimate import CostModel
from cost_models.gathered import Gathered
from cost_models.plans import IntArray, Plans, code, concatenate
from planner.memory_risk import Room
from planner.space import Space

FloatArray = NDArray[np.float64]
_FULL = code("recompute", "full")


def with_fewest_layers(
    plans: Plans, model: CostModel, space: Space, room: Room
) -> tuple[Plans, int]:
    """Add, beside full recompute of all layers, that of the fewest layers that fit.

    Where the plan fits without recompute, that one is faster and none is added.
    Returns the plans and how many layer counts were left out.
    """
    if space.every_layer_count:
        return plans, 0
    full = np.broadcast_to(plans.recompute == _FULL, (len(plans),))
    layers = np.broadcast_to(plans.recompute_num_layers, (len(plans),))
    several = np.flatnonzero(full & (layers > 1))
    if not len(several):
        return plans, 0
    every = int(layers[several].sum())
    band = plans.take(several)
    most = layers[several]
    gathered = model.gathered(band)
    needed = model.needed_bytes_of(gathered)
    fits_all = needed <= room.of(band)
    if space.recompute_is_optional:
        without = band.with_columns(recompute=0, recompute_num_layers=0)
        fits_all &= model.needed_bytes(without) > room.of(band)
    left_out = every - len(fits_all)
    rows = np.flatnonzero(fits_all)
    if not len(rows):
        return plans, left_out
    band, most = band.take(rows), most[rows]
    fewest = _fewest(model, gathered.take(rows), most, needed[rows], room)
    extra = fewest < most
    if not extra.any():
        return plans, left_out
    added = band.take(extra).with_columns(recompute_num_layers=fewest[extra])
    left_out -= int(np.count_nonzero(extra))
    return concatenate(plans, space.accepted(added)), left_out


def _fewest(
    model: CostModel, gathered: Gathered, most: IntArray, needed: FloatArray, room: Room
) -> IntArray:
    """The fewest layers of each plan that fit; needed: bytes with the most, which do.

    Memory never grows with the number of recomputed layers, and falls nearly in a line: so what a
    line says is tried, then one layer less, and the middle where neither was it.
    """
    limit = np.broadcast_to(room.of(gathered.plans), most.shape)

    def bytes_with(rows: IntArray, layers: IntArray) -> FloatArray:
        some = gathered.take(rows)
        tried = some.plans.with_columns(recompute_num_layers=layers)
        return model.needed_bytes_of(some.relaid(model.setting.model, tried))

    # Invariant: `low` does not fit (unless it is high), `high` does.
    low, high = np.ones_like(most), most.copy()
    low_bytes, high_bytes = bytes_with(np.arange(len(most)), low), needed.copy()
    high[low_bytes <= limit] = 1
    turn = 0
    while len(rows := np.flatnonzero(high - low > 1)):
        least, largest = low[rows] + 1, high[rows] - 1
        if turn % 3 == 0:
            over, fall = low_bytes[rows] - limit[rows], low_bytes[rows] - high_bytes[rows]
            line = low[rows] + over / fall * (high - low)[rows]
            layers = np.clip(np.ceil(line).astype(np.int64), least, largest)
        else:
            layers = largest if turn % 3 == 1 else (least + largest) // 2
        found = bytes_with(rows, layers)
        fits = found <= limit[rows]
        high[rows[fits]], high_bytes[rows[fits]] = layers[fits], found[fits]
        low[rows[~fits]], low_bytes[rows[~fits]] = layers[~fits], found[~fits]
        turn += 1
    return high
