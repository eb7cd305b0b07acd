"""Partitions of layers by dynamic programming over tables, one for each virtual stage.

A table has the seconds of a virtual stage with layers i to j - 1, shape (layers + 1,) * 2; infinite
where it can't have them.  Virtual stages that are alike share a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# Times that differ by less are equal.
TOLERANCE = 1e-9
# Most bounds on a virtual stage's seconds that a loop over the ranks is tried with.
MOST_BOUNDS = 256
# What decides between loops of the same sum: those that differ less are better.
EVENNESS = 1e-6


def shortest_longest(tables: Sequence[FloatArray]) -> float:
    """Seconds of the longest virtual stage in the partition where those are least."""
    longest = np.full(len(tables[0]), np.inf)
    longest[0] = 0.0
    for table in tables:
        longest = np.maximum(longest[:, None], table).min(axis=0)
    return float(longest[-1])


def least_squares_partition(
    tables: Sequence[FloatArray], bound_s: float, weights: FloatArray | None = None
) -> IntArray | None:
    """The ends of virtual stages by the least (weighted) sum of squared seconds.

    No virtual stage takes longer than bound_s.  None where nothing fits.
    """
    if not np.isfinite(bound_s):
        return None
    total = np.full(len(tables[0]), np.inf)
    total[0] = 0.0
    begins, every = [], np.arange(len(total))
    squares: dict[tuple[int, float], FloatArray] = {}  # many stages share a table
    for stage, table in enumerate(tables):
        weight = 1.0 if weights is None else float(weights[stage])
        key = id(table), weight
        if key not in squares:
            under = table <= bound_s * (1.0 + TOLERANCE)
            allowed = np.where(under, table, 0.0)
            squares[key] = np.where(under, weight * allowed * allowed, np.inf)
        sums = total[:, None] + squares[key]
        begin = sums.argmin(axis=0)
        begins.append(begin)
        total = sums[begin, every]
    if not np.isfinite(total[-1]):
        return None
    ends = [len(total) - 1]
    for begin in reversed(begins):
        ends.append(int(begin[ends[-1]]))
    return np.array(ends[::-1])


def loop_partition(tables: Sequence[FloatArray], ranks: int) -> IntArray | None:
    """The ends of virtual stages by the least sum of the longest one of each loop over the ranks.

    By dynamic programming over where each loop ends and how long its longest virtual stage may be.
    None where none fits, or virtual stages have to be of very different lengths.
    """
    loops = [tables[first : first + ranks] for first in range(0, len(tables), ranks)]
    every = np.arange(len(tables[0]))
    bands, bounds = _bands(tables)
    if not len(bounds):
        return None
    prices = bounds * (1.0 + EVENNESS * bounds / bounds[-1])
    earliest: dict[tuple[int, ...], IntArray] = {}  # most loops are alike
    total = np.where(every == 0, 0.0, np.inf)
    choices = []
    for loop in loops:
        key = tuple(map(id, loop))
        if key not in earliest:
            earliest[key] = _earliest_begins([bands[each] for each in key], bounds)
        starts = np.maximum(earliest[key], np.isfinite(total).argmax())
        at_least_one = sum(not np.isfinite(table[0, 0]) for table in loop)
        at = np.minimum(starts, every[-1])
        sums = np.where(starts + at_least_one <= every, prices[:, None] + total[at], np.inf)
        best = sums.argmin(axis=0)
        choices.append((bounds[best], at[best, every]))
        total = sums.min(axis=0)
    ends = [int(every[-1])]
    for loop, (bound, begins) in zip(reversed(loops), reversed(choices), strict=True):
        end = ends[0]
        begin = int(begins[end])
        own = [table[begin : end + 1, begin : end + 1] for table in loop]
        inner = least_squares_partition(own, float(bound[end]))
        if inner is None or inner[0]:
            return None
        ends = [*(begin + inner[:-1]).tolist(), *ends]
    return np.array(ends)


def _bands(tables: Sequence[FloatArray]) -> tuple[dict[int, FloatArray], FloatArray]:
    """(by table, seconds of a virtual stage that begins at a layer, by its layers; their values).

    Of a few times the mean number of layers at most, shape (layers + 1, most layers + 1).
    """
    count = len(tables[0])
    start = np.arange(count)[:, None]
    stop = start + np.arange(min(count, 3 * -(-count // len(tables)) + 3))
    inside, stop = stop < count, np.minimum(stop, count - 1)
    bands = {id(table): np.where(inside, table[start, stop], np.inf) for table in tables}
    bounds = np.unique(np.stack(list(bands.values())))
    bounds = bounds[np.isfinite(bounds)]
    bounds = bounds[np.diff(bounds, append=np.inf) > TOLERANCE * bounds]
    if len(bounds) > MOST_BOUNDS:
        bounds = bounds[np.linspace(0, len(bounds) - 1, MOST_BOUNDS).round().astype(np.int64)]
    return bands, bounds


def _earliest_begins(bands: Sequence[FloatArray], bounds: FloatArray) -> IntArray:
    """The earliest layer from which virtual stages within each bound reach each end.

    One virtual stage for each band; beyond the last layer where none does.  Shape (bounds,
    layers + 1).
    """
    count, width = bands[0].shape
    every, bound = np.arange(count), np.arange(len(bounds))[:, None]
    most_s: FloatArray = bounds[:, None] * (1.0 + TOLERANCE)
    reach = np.broadcast_to(every, (len(bounds), count))
    farthest: dict[tuple[int, bool], IntArray] = {}
    for place, band in enumerate(bands):
        key = id(band), place > 0
        if key not in farthest:
            under = np.asarray(band <= most_s[..., None], dtype=np.bool_)
            last = np.minimum(every + width - 1 - under[..., ::-1].argmax(axis=-1), count - 1)
            # One that can't take the next layer gets its layer from those before it, if any.
            last = np.where(under.any(axis=-1), last, every if place else -1)
            farthest[key] = np.where(under.max(axis=(1, 2))[:, None], last, -1)
        following = np.take_along_axis(farthest[key], np.maximum(reach, 0), axis=1)
        reach = np.where(reach < 0, -1, following)
    # Rows are searched at once, each in numbers above those of the row before it.
    reached = np.maximum.accumulate(reach, axis=1) + bound * (count + 1)
    begin = np.searchsorted(reached.ravel(), every + bound * (count + 1)) - bound * count
    # The last one holds at least the last layer, unless it may be empty.
    ends = bands[-1]
    least_s = np.minimum(ends[:, 0], np.append(np.inf, ends[:-1, 1]))
    return np.asarray(np.where(least_s <= most_s, begin, count))
