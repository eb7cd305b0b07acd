"""Partition of layers into virtual stages: the least time of a micro-batch, within memory.

With one chunk per rank the partition is optimal, by dynamic programming over where each stage ends.
With several chunks that loop over the ranks, it is the least sum of the longest virtual stage of
each loop: ranks pass micro-batches on in turn, so that a short chunk waits for a long one beside
it.  Where that is more than a rank's memory, and in waves, single layers are moved as long as that
helps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from cost_models.stage_layers import spread
from planner.search.partition_tables import (
    TOLERANCE,
    FloatArray,
    IntArray,
    least_squares_partition,
    loop_partition,
    shortest_longest,
)

_kept: dict[tuple[bytes | int, ...], tuple[int, ...] | None] = {}
MAX_MOVES = 200
# Most layers that are partitioned: tables over begin and end grow with the square.
MOST_LAYERS = 1_024
# Starts of the local search with several chunks, and the gap to the bound that ends it.
STARTS = 8
# Answers that are kept, a few kilobytes each.
MOST_KEPT = 1_024
ENOUGH = 0.002


@dataclass(frozen=True)
class LayerLoads:
    """Time and memory of each layer, in forward order, shape (layers,).

    seconds, state_bytes, saved_bytes: without recompute.  With it, again_s is added and
    input_bytes replaces saved_bytes.  redone: layers recomputed at the start of each virtual stage.
    """

    seconds: FloatArray
    again_s: FloatArray
    state_bytes: FloatArray
    saved_bytes: FloatArray
    input_bytes: FloatArray
    redone: int

    @cached_property
    def spans(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(seconds, state bytes, saved bytes) of layers i to j - 1, shape (layers + 1,) * 2."""
        count = len(self.seconds)
        start, end = np.arange(count + 1)[:, None], np.arange(count + 1)[None, :]
        until = np.minimum(start + self.redone, end)

        def between(amounts: FloatArray, stop: IntArray) -> FloatArray:
            total = np.concatenate([[0.0], np.cumsum(amounts)])
            return np.asarray(total[stop] - total[start])

        recomputed_bytes = self.saved_bytes - self.input_bytes
        return (
            between(self.seconds, end) + between(self.again_s, until),
            between(self.state_bytes, end),
            between(self.saved_bytes, end) - between(recomputed_bytes, until),
        )


@dataclass(frozen=True)
class Stages:
    """The virtual stages: their ranks, the time of embedding and head, and the memory for layers.

    owner: the rank of each virtual stage, in forward order; fixed_s: seconds of the embedding and
    the head there; shape (virtual stages,).  in_flight: micro-batches whose saved bytes a rank
    keeps; room_bytes: memory that a rank has for layers; shape (ranks,).
    """

    owner: IntArray
    fixed_s: FloatArray
    in_flight: FloatArray
    room_bytes: FloatArray

    @property
    def ranks(self) -> int:
        return len(self.room_bytes)

    @cached_property
    def on_rank(self) -> FloatArray:
        """1 where a virtual stage is on a rank, else 0; shape (virtual stages, ranks)."""
        return np.asarray(self.owner[:, None] == np.arange(self.ranks), dtype=np.float64)

    @cached_property
    def loops(self) -> bool:
        """Whether chunk after chunk goes over all ranks, in the same direction."""
        return bool(np.all(self.owner == np.arange(len(self.owner)) % self.ranks))

    def pace_s(self, stage_s: FloatArray) -> FloatArray:
        """Seconds between micro-batches, from those of each virtual stage (the last axis).

        Of a loop an upper bound: every chunk waits for the longest beside it.  Else of the busiest
        rank.
        """
        if self.loops:
            shape = *stage_s.shape[:-1], len(self.owner) // self.ranks, self.ranks
            return np.asarray(stage_s.reshape(shape).max(axis=-1).sum(axis=-1))
        return np.asarray((stage_s @ self.on_rank).max(axis=-1))


def partition_layers(
    layers: LayerLoads, stages: Stages, empty_ends: bool = False
) -> tuple[int, ...] | None:
    """The number of layers of each virtual stage, as even as possible.

    None if no partition fits, or there are more than MOST_LAYERS.  empty_ends: the first and the
    last virtual stage may have no layer, only the embedding or the head.  Frameworks with the same
    kernels, and clusters of several sizes, ask the same again: the last answers are kept.
    """
    if len(layers.seconds) > MOST_LAYERS:
        return None
    key = *_numbers(layers), *_numbers(stages), empty_ends
    if (found := _kept.get(key, ())) != ():
        return found
    found = _partitioned(layers, stages, empty_ends)
    if len(_kept) >= MOST_KEPT:
        _kept.clear()
    _kept[key] = found
    return found


def _numbers(of: LayerLoads | Stages) -> Iterator[bytes | int]:
    """All that an object says, to be compared exactly."""
    for field in fields(of):
        value = getattr(of, field.name)
        yield value.tobytes() if isinstance(value, np.ndarray) else value


def _partitioned(layers: LayerLoads, stages: Stages, empty_ends: bool) -> tuple[int, ...] | None:
    """What partition_layers says, computed."""
    tables = _tables(layers, stages, empty_ends)
    several = len(stages.owner) > stages.ranks
    ends = loop_partition(tables, stages.ranks) if several and stages.loops else None
    if ends is None:
        ends = least_squares_partition(tables, shortest_longest(tables))
    if ends is None:
        return None
    if several:
        ends = _best_partition(layers, stages, tables, ends, empty_ends)
        if _scores(layers, stages, ends[None])[0, 0] > 0.0:
            return None
    return tuple(np.diff(ends).tolist())


def _tables(layers: LayerLoads, stages: Stages, empty_ends: bool) -> list[FloatArray]:
    """Seconds of each virtual stage with layers i to j - 1; infinite where they do not fit.

    Each virtual stage is held against the whole memory of its rank.  Equal stages share a table.
    """
    seconds, state, saved = layers.spans
    count = len(state)
    size = np.arange(count)[None, :] - np.arange(count)[:, None]
    last = len(stages.owner) - 1
    by_key: dict[tuple[float, ...], FloatArray] = {}
    tables = []
    for stage, rank in enumerate(stages.owner.tolist()):
        at_end = empty_ends and stage in (0, last)
        fixed_s, in_flight = stages.fixed_s[stage], stages.in_flight[rank]
        key = at_end, fixed_s, in_flight, stages.room_bytes[rank]
        if key not in by_key:
            fits = state + in_flight * saved <= stages.room_bytes[rank]
            allowed = size >= (0 if at_end else 1)
            by_key[key] = np.where(allowed & fits, seconds + fixed_s, np.inf)
        tables.append(by_key[key])
    return tables


def least_s(layers: LayerLoads, stages: Stages) -> float:
    """A lower bound on the seconds of the busiest rank in any partition.

    If all layers are equal: each goes to the rank that ends first with it.
    """
    count, each = len(layers.seconds), layers.seconds + layers.again_s * (layers.redone > 0)
    every = layers.redone in (0, count)
    on_rank = np.bincount(stages.owner, weights=stages.fixed_s, minlength=stages.ranks)
    if every and np.ptp(each) <= TOLERANCE * each[0]:
        filled = on_rank[:, None] + each[0] * np.arange(1, count + 1)
        return float(max(np.partition(filled.ravel(), count - 1)[count - 1], on_rank.max()))
    least = layers.seconds.sum() + layers.again_s.sum() * (every and layers.redone > 0)
    return float(max((least + on_rank.sum()) / stages.ranks, on_rank.max()))


def _best_partition(
    layers: LayerLoads,
    stages: Stages,
    tables: Sequence[FloatArray],
    ends: IntArray,
    empty_ends: bool,
) -> IntArray:
    """The best of several starts of the local search; it ends when a start is no better.

    The virtual stages of busy ranks weigh more in the next start.
    """
    weights = np.ones(stages.ranks)
    best = _local_search(layers, stages, ends, empty_ends)
    least = _scores(layers, stages, best[None])[0]
    enough = least_s(layers, stages) * (1.0 + ENOUGH)
    for _ in range(STARTS - 1):
        if not least[0] and (stages.loops or least[1] <= enough):
            break
        rank_s = _loads(layers, stages, ends[None])[1][0]
        weights = weights * (rank_s / rank_s.mean()) ** 2
        better = least_squares_partition(tables, float(rank_s.max()), weights[stages.owner])
        if better is None:
            break
        ends = better
        candidate = _local_search(layers, stages, ends, empty_ends)
        scores = _scores(layers, stages, candidate[None])[0]
        if not _is_better(scores, least):
            break
        best, least = candidate, scores
    even = _even_ends(layers, stages)
    if even is not None and _is_better(_scores(layers, stages, even[None])[0], least):
        return even
    return best


def _even_ends(layers: LayerLoads, stages: Stages) -> IntArray | None:
    """The ends of equal virtual stages; None where some would be empty."""
    count, every = len(layers.seconds), len(stages.owner)
    return np.concatenate([[0], np.cumsum(spread(count, every))]) if count >= every else None


def _scores(layers: LayerLoads, stages: Stages, ends: IntArray) -> FloatArray:
    """Scores of partitions (rows of ends), compared column by column; lower is better.

    Bytes over the room of the fullest rank; the pace; the longest virtual stage's seconds; the sum
    of squares of seconds by virtual stage and by rank.  Shape (partitions, 4).
    """
    stage_s, rank_s, over = _loads(layers, stages, ends)
    squares = (rank_s**2).sum(axis=1) + (stage_s**2).sum(axis=1)
    too_much = np.maximum(over, 0.0).max(axis=1)
    return np.stack([too_much, stages.pace_s(stage_s), stage_s.max(axis=1), squares], axis=1)


def held_bytes(layers: LayerLoads, stages: Stages, sizes: tuple[int, ...]) -> FloatArray:
    """Bytes of the layers of a partition on each rank."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return np.asarray(_loads(layers, stages, ends[None])[2][0] + stages.room_bytes)


def pace_s(layers: LayerLoads, stages: Stages, sizes: tuple[int, ...]) -> float:
    """Seconds between micro-batches in a partition: see Stages.pace_s."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return float(stages.pace_s(_loads(layers, stages, ends[None])[0])[0])


def _loads(
    layers: LayerLoads, stages: Stages, ends: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of each virtual stage, seconds of each rank, and bytes of each rank over its room."""
    seconds, bytes_held = _amounts(layers, stages, ends[:, :-1], ends[:, 1:])
    return seconds, seconds @ stages.on_rank, bytes_held @ stages.on_rank - stages.room_bytes


def _amounts(
    layers: LayerLoads, stages: Stages, begin: IntArray, end: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds and bytes of virtual stages (the last axis) with layers `begin` to `end` - 1."""
    span = begin * (len(layers.seconds) + 1) + end
    seconds, state, saved = (np.take(table, span, mode="clip") for table in layers.spans)
    return seconds + stages.fixed_s, state + stages.in_flight[stages.owner] * saved


def _local_search(layers: LayerLoads, stages: Stages, ends: IntArray, empty_ends: bool) -> IntArray:
    """Move single layers to other virtual stages while that is better; those between shift."""
    best = _scores(layers, stages, ends[None])[0]
    for _ in range(MAX_MOVES):
        givers, scores = _neighbours(layers, stages, ends, empty_ends)
        if not len(givers):
            return ends
        first = int(np.lexsort(scores.T[::-1])[0])
        if not _is_better(scores[first], best):
            return ends
        best = scores[first]
        giver, taker = givers[first // len(stages.owner)], first % len(stages.owner)
        ends = ends.copy()
        ends[giver + 1 : taker + 1] -= 1
        ends[taker + 1 : giver + 1] += 1
    return ends


def _is_better(scores: FloatArray, best: FloatArray) -> bool:
    differs = np.flatnonzero(np.abs(scores - best) > TOLERANCE * np.abs(best))
    return bool(len(differs) and scores[differs[0]] < best[differs[0]])


def _neighbours(
    layers: LayerLoads, stages: Stages, ends: IntArray, empty_ends: bool
) -> tuple[IntArray, FloatArray]:
    """All partitions that differ by one moved layer: the givers, and the scores (see _scores).

    Givers are the longest virtual stage and those of the busiest and the fullest rank; scores have
    a row for each giver and taker, shape (givers * virtual stages, 4).  Those between pass one on.
    """
    every = np.arange(len(stages.owner))
    least = np.ones(len(every), dtype=np.int64)
    if empty_ends:
        least[[0, -1]] = 0
    stage_s, rank_s, over = (each[0] for each in _loads(layers, stages, ends[None]))
    gives = (stages.owner == rank_s.argmax()) | (stages.owner == over.argmax())
    gives[stage_s.argmax()] = True
    givers = np.flatnonzero(gives & (np.diff(ends) > least))
    giver, taker, place = givers[:, None, None], every[:, None], np.arange(len(ends))
    later = (giver < place) & (place <= taker)
    earlier = (taker < place) & (place <= giver)
    moved = ends - later.astype(np.int64) + earlier
    scores = _scores(layers, stages, moved.reshape(-1, len(ends)))
    scores[np.arange(len(givers)) * len(every) + givers] = np.inf  # to itself
    return givers, scores
