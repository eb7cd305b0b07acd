"""Layers dealt out to virtual stages: the least time of the busiest rank, within its memory.

With one chunk per rank the dealing is the best there is, by dynamic programming over where each
stage ends.  With several, the same makes the longest virtual stage as short as can be; then single
layers leave the busiest rank, as long as that helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# Times that differ by less are equal.
TOLERANCE = 1e-9
MOST_MOVES = 200
# Of a model whose layers are dealt out: tables of begin and end grow with the square.
MOST_LAYERS = 1_024
# Dealings of several chunks that are tried, and how far over the bound one is good enough.
STARTS = 8
ENOUGH = 0.002


@dataclass(frozen=True)
class Layers:
    """Each layer's own amounts, in forward order, shape (layers,).

    seconds, state_bytes, saved_bytes: as it is; again_s, input_bytes: what recomputing it adds and
    saves in place of saved_bytes.  redone: layers recomputed at the start of each virtual stage.
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

        kept = self.saved_bytes - self.input_bytes
        return (
            between(self.seconds, end) + between(self.again_s, until),
            between(self.state_bytes, end),
            between(self.saved_bytes, end) - between(kept, until),
        )


@dataclass(frozen=True)
class Stages:
    """Where virtual stages stand, and what they hold beside layers.

    owner: the rank of each virtual stage, in forward order; fixed_s: seconds of the embedding and
    the head there; shape (virtual stages,).  in_flight: micro-batches whose saved bytes a rank
    keeps; room_bytes: what it has for layers; shape (ranks,).
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
        """1 where a virtual stage stands on a rank, else 0; shape (virtual stages, ranks)."""
        return np.asarray(self.owner[:, None] == np.arange(self.ranks), dtype=np.float64)

    @cached_property
    def both_ways(self) -> FloatArray:
        """`on_rank` of the pipeline and of the reversed pipeline, stacked."""
        return np.stack([self.on_rank, self.on_rank[::-1]])


def dealt(layers: Layers, stages: Stages, empty_ends: bool = False) -> tuple[int, ...] | None:
    """Layers of each virtual stage; None where none fits, or there are more than MOST_LAYERS.

    empty_ends: the first and the last may have none, beside the embedding or the head.
    """
    if len(layers.seconds) > MOST_LAYERS:
        return None
    tables = _tables(layers, stages, empty_ends)
    ends = _partition(tables, _longest(tables))
    if ends is None:
        return None
    if len(stages.owner) > stages.ranks:
        ends = _balanced(layers, stages, tables, ends, empty_ends)
        if _pressed(layers, stages, ends[None])[0, 0] > 0.0:
            return None
    return tuple(np.diff(ends).tolist())


def _tables(layers: Layers, stages: Stages, empty_ends: bool) -> list[FloatArray]:
    """By virtual stage, seconds of it with layers i to j - 1; infinite where it may not hold them.

    By itself within the memory of its rank.  Stages that are alike share one table.
    """
    seconds, state, saved = layers.spans
    count = len(state)
    size = np.arange(count)[None, :] - np.arange(count)[:, None]
    last = len(stages.owner) - 1
    found: dict[tuple[float, ...], FloatArray] = {}
    tables = []
    for place, rank in enumerate(stages.owner.tolist()):
        at_end = empty_ends and place in (0, last)
        fixed_s, in_flight = stages.fixed_s[place], stages.in_flight[rank]
        alike = at_end, fixed_s, in_flight, stages.room_bytes[rank]
        if alike not in found:
            fits = state + in_flight * saved <= stages.room_bytes[rank]
            some = size >= (0 if at_end else 1)
            found[alike] = np.where(some & fits, seconds + fixed_s, np.inf)
        tables.append(found[alike])
    return tables


def _longest(tables: Sequence[FloatArray]) -> float:
    """Seconds of the longest virtual stage, as short as can be."""
    longest = np.full(len(tables[0]), np.inf)
    longest[0] = 0.0
    for table in tables:
        longest = np.maximum(longest[:, None], table).min(axis=0)
    return float(longest[-1])


def _partition(
    tables: Sequence[FloatArray], bound_s: float, weights: FloatArray | None = None
) -> IntArray | None:
    """Where virtual stages begin and end: the least (weighted) sum of squares, none over a bound.

    None where nothing fits.
    """
    if not np.isfinite(bound_s):
        return None
    total = np.full(len(tables[0]), np.inf)
    total[0] = 0.0
    begins, every = [], np.arange(len(total))
    squares: dict[tuple[int, float], FloatArray] = {}  # many stages share a table
    for place, table in enumerate(tables):
        weight = 1.0 if weights is None else float(weights[place])
        key = id(table), weight
        if key not in squares:
            under = table <= bound_s * (1.0 + TOLERANCE)
            allowed = np.where(under, table, 0.0)
            squares[key] = np.where(under, weight * allowed * allowed, np.inf)
        sums = total[:, None] + squares[key]
        begin = sums.argmin(axis=0)
        begins.append(begin)
        total = sums[begin, every]
    ends = [len(total) - 1]
    for begin in reversed(begins):
        ends.append(int(begin[ends[-1]]))
    return np.array(ends[::-1])


def least_s(layers: Layers, stages: Stages) -> float:
    """Seconds that the busiest rank has in any dealing: a bound.

    Of layers that are alike: as many, each on the rank that ends first with it.
    """
    count, each = len(layers.seconds), layers.seconds + layers.again_s * (layers.redone > 0)
    every = layers.redone in (0, count)
    on_rank = np.bincount(stages.owner, weights=stages.fixed_s, minlength=stages.ranks)
    if every and np.ptp(each) <= TOLERANCE * each[0]:
        filled = on_rank[:, None] + each[0] * np.arange(1, count + 1)
        return float(max(np.partition(filled.ravel(), count - 1)[count - 1], on_rank.max()))
    least = layers.seconds.sum() + layers.again_s.sum() * (every and layers.redone > 0)
    return float(max((least + on_rank.sum()) / stages.ranks, on_rank.max()))


def _balanced(
    layers: Layers, stages: Stages, tables: Sequence[FloatArray], ends: IntArray, empty_ends: bool
) -> IntArray:
    """The best of several starts, until one is no better.

    Where a rank stays busiest, its virtual stages weigh more in the next.
    """
    weights = np.ones(stages.ranks)
    best = _levelled(layers, stages, ends, empty_ends)
    least = _pressed(layers, stages, best[None])[0]
    enough = least_s(layers, stages) * (1.0 + ENOUGH)
    for _ in range(STARTS - 1):
        if not least[0] and least[1] <= enough:
            break
        rank_s = _loads(layers, stages, ends[None])[1][0]
        weights = weights * (rank_s / rank_s.mean()) ** 2
        again = _partition(tables, float(rank_s.max()), weights[stages.owner])
        if again is None:
            break
        ends = again
        found = _levelled(layers, stages, ends, empty_ends)
        judged = _pressed(layers, stages, found[None])[0]
        if not _is_better(judged, least):
            break
        best, least = found, judged
    return best


def _pressed(layers: Layers, stages: Stages, ends: IntArray) -> FloatArray:
    """What dealings (rows of ends) are judged by, the lower the better, first things first.

    Bytes over the room of the fullest rank; the busiest rank's seconds; the longest virtual
    stage's; the sum of squares of both.
    """
    stage_s, rank_s, over = _loads(layers, stages, ends)
    squares = (rank_s**2).sum(axis=1) + (stage_s**2).sum(axis=1)
    too_much = np.maximum(over, 0.0).max(axis=1)
    return np.stack([too_much, rank_s.max(axis=1), stage_s.max(axis=1), squares], axis=1)


def held_bytes(layers: Layers, stages: Stages, sizes: tuple[int, ...]) -> FloatArray:
    """What the layers of a dealing take on each rank."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return np.asarray(_loads(layers, stages, ends[None])[2][0] + stages.room_bytes)


def busiest_s(layers: Layers, stages: Stages, sizes: tuple[int, ...]) -> float:
    """Seconds of the busiest rank in a dealing."""
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return float(_loads(layers, stages, ends[None])[1].max())


def _loads(
    layers: Layers, stages: Stages, ends: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of each virtual stage; seconds, and bytes over its room, of each rank."""
    seconds, held = _amounts(layers, stages, ends[:, :-1], ends[:, 1:])
    return seconds, seconds @ stages.on_rank, held @ stages.on_rank - stages.room_bytes


def _amounts(
    layers: Layers, stages: Stages, begin: IntArray, end: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Seconds and bytes of virtual stages (the last axis) with layers `begin` to `end` - 1."""
    span = begin * (len(layers.seconds) + 1) + end
    seconds, state, saved = (np.take(table, span, mode="clip") for table in layers.spans)
    return seconds + stages.fixed_s, state + stages.in_flight[stages.owner] * saved


def _levelled(layers: Layers, stages: Stages, ends: IntArray, empty_ends: bool) -> IntArray:
    """Single layers moved to other virtual stages while that is better; those between shift on."""
    best = _pressed(layers, stages, ends[None])[0]
    for _ in range(MOST_MOVES):
        givers, judged = _moves(layers, stages, ends, empty_ends)
        if not len(givers):
            return ends
        first = int(np.lexsort(judged.T[::-1])[0])
        if not _is_better(judged[first], best):
            return ends
        best = judged[first]
        giver, taker = givers[first // len(stages.owner)], first % len(stages.owner)
        ends = ends.copy()
        ends[giver + 1 : taker + 1] -= 1
        ends[taker + 1 : giver + 1] += 1
    return ends


def _is_better(found: FloatArray, best: FloatArray) -> bool:
    differs = np.flatnonzero(np.abs(found - best) > TOLERANCE * np.abs(best))
    return bool(len(differs) and found[differs[0]] < best[differs[0]])


def _moves(
    layers: Layers, stages: Stages, ends: IntArray, empty_ends: bool
) -> tuple[IntArray, FloatArray]:
    """Every dealing that is one layer away: who gives it, and how it is judged (see _pressed).

    Givers are the longest virtual stage and those of the busiest ranks; rows of the judged, shape
    (givers * virtual stages, 4), are by giver, then by taker.
    """
    begin, end = ends[:-1], ends[1:]
    least = np.ones(len(begin), dtype=np.int64)
    if empty_ends:
        least[[0, -1]] = 0
    # As it is, one layer given, one taken, one passed on: by moves to later stages, to earlier.
    begins = np.array([[begin, begin], [begin, begin + 1], [begin - 1, begin],
                       [begin - 1, begin + 1]])  # fmt: skip
    stops = np.array([[end, end], [end - 1, end], [end, end + 1], [end - 1, end + 1]])
    seconds, held = _amounts(layers, stages, begins, stops)
    rank_s, rank_held = (amount[0, 0] @ stages.on_rank for amount in (seconds, held))
    gives = stages.owner == rank_s.argmax()
    gives |= stages.owner == (rank_held - stages.room_bytes).argmax()
    gives[seconds[0, 0].argmax()] = True
    givers = np.flatnonzero(gives & (end - begin > least))
    judged = _given_on(stages, seconds, held, givers)
    judged[np.arange(len(givers)), givers] = np.inf  # to itself
    return givers, judged.reshape(-1, judged.shape[-1])


def _given_on(
    stages: Stages, seconds: FloatArray, held: FloatArray, givers: IntArray
) -> FloatArray:
    """How moves are judged that give a layer to another stage; shape (givers, virtual stages, 4).

    seconds, held: of each virtual stage as it is, giving, taking and passing on, by moves to later
    stages and to earlier ones: shape (4, 2, virtual stages).  A stage between gives a layer on and
    takes one: sums over those between are differences of running sums.
    """
    count = len(stages.owner)
    # Moves to earlier stages are those to later ones of the pipeline backwards.
    amounts = np.stack([seconds, held])
    amounts[:, :, 1] = amounts[:, :, 1, ::-1].copy()
    giver = np.stack([givers, count - 1 - givers])
    loads = _sums_after(amounts, stages.both_ways, giver)
    squares = _sums_after(amounts[:1] ** 2, np.ones((2, count, 1)), giver)[0, ..., 0]
    rank_s = loads[0]
    too_much = np.maximum(loads[1] - stages.room_bytes, 0.0).max(axis=-1)
    squares = squares + (rank_s**2).sum(axis=-1)
    # The longest stage: before the giver, itself, between, the taker, after it.
    now, gives, takes, passes = amounts[0]
    zero = np.zeros((2, 1))
    before = np.concatenate([zero, np.maximum.accumulate(now, axis=1)[:, :-1]], axis=1)
    after = np.concatenate([np.maximum.accumulate(now[:, ::-1], axis=1)[:, -2::-1], zero], axis=1)
    passed = np.where(np.arange(count) > giver[..., None], passes[:, None], 0.0)
    between = np.zeros_like(passed)
    np.maximum.accumulate(passed[..., :-1], axis=2, out=between[..., 1:])
    until = np.maximum(before, gives)[[[0], [1]], giver][..., None]
    since = np.maximum(takes, after)[:, None]
    longest = np.maximum(np.maximum(until, between), since)
    judged = np.stack([too_much, rank_s.max(axis=-1), longest, squares], axis=-1)
    is_later = np.arange(count) > givers[:, None]
    return np.where(is_later[..., None], judged[0], judged[1, :, ::-1])


def _sums_after(amounts: FloatArray, spread: FloatArray, giver: IntArray) -> FloatArray:
    """Sums over virtual stages after each move to a later one.

    amounts: (..., 4, 2, virtual stages); spread: (2, virtual stages, sums); giver: (2, givers).
    Shape (..., 2, givers, virtual stages, sums).
    """
    now, gives, takes, passes = (each[..., None] * spread for each in np.moveaxis(amounts, -3, 0))
    passed = passes - now
    run = np.cumsum(passed, axis=-2)
    given = (gives - now - run)[..., [[0], [1]], giver, :]
    taken = now.sum(axis=-2, keepdims=True) + takes - now + run - passed
    return np.asarray(given[..., None, :] + taken[..., None, :, :])
