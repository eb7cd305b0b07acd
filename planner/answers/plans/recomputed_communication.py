"""The communication between ranks that recompute repeats, as a part of its time."""

from __future__ import annotations

import numpy as np

from cost_models.estimate import Estimates
from cost_models.sources import Array

PARTS = ("tp_comm", "cp_comm", "ep_comm")


def recomputed_communication_s(estimates: Estimates, row: int = 0) -> dict[str, float]:
    """Seconds by the part of the time that has this communication, on a plan's busiest stage.

    They are counted in its `recompute`: a layer whose forward is run again communicates again.
    """
    g, times = estimates.gathered, estimates.times
    layout = g.stages.key(row)
    stages = np.arange(len(g.table.stage))
    layers, redone = g.table.layers[:, stages, layout], g.table.recomputed[:, stages, layout]
    first, last = g.table.first[stages, layout], g.table.last[stages, layout]
    whole = first * _at(times.whole_ends_s[0], row) + last * _at(times.whole_ends_s[1], row)
    whole = whole + np.array([_at(one, row) for one in times.whole_s]) @ layers
    whole = whole + np.array([_at(one, row) for one in times.again_s]) @ redone
    busiest = int(np.argmax(whole))
    count = _at(estimates.num_micro_batches, row)
    corrected = 1.0 if estimates.corrected is None else float(estimates.corrected[row])
    key = g.layers.key(row)
    found = dict.fromkeys(PARTS, 0.0)
    for k, communication in enumerate(times.communication):
        for part, exposed in zip(PARTS, communication, strict=True):
            once = layers[k, busiest] * _at(exposed.recompute_s, key)
            whole_layer = redone[k, busiest] * _at(exposed.forward_s, key)
            found[part] += corrected * count * float(once + whole_layer)
    return found


def _at(value: Array, place: int) -> float:
    """The value at an index of an array, or the value itself if it is a scalar."""
    return float(value[place] if isinstance(value, np.ndarray) and value.ndim else value)
