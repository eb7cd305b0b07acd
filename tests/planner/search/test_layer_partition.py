"""Partitions of layers into virtual stages, against every partition there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cost_models.stage_layers import spread
from planner.search import layer_partition
from planner.search.layer_partition import (
    ENOUGH,
    LayerLoads,
    Stages,
    held_bytes,
    least_s,
    pace_s,
    partition_layers,
)
from tests.fixtures.tiers import examples


def every_partition(count: int, stages: int, empty_ends: bool) -> Iterator[tuple[int, ...]]:
    """Layers of each stage: all ways to cut, the ends perhaps empty."""
    least = [int(not (empty_ends and place in (0, stages - 1))) for place in range(stages)]
    spare = count - sum(least)
    for cuts in combinations(range(spare + stages - 1), stages - 1):
        bounds = (-1, *cuts, spare + stages - 1)
        yield tuple(
            low + end - begin - 1
            for low, begin, end in zip(least, bounds[:-1], bounds[1:], strict=True)
        )


def pace(layers: LayerLoads, stages: Stages, sizes: tuple[int, ...]) -> float:
    """Seconds between micro-batches, layer by layer.

    In a loop the longest virtual stage of each chunk, else the busiest rank.
    """
    stage_s, layer = list[float](), 0
    for place, size in enumerate(sizes):
        seconds = float(stages.fixed_s[place])
        for index in range(layer, layer + size):
            again = layers.again_s[index] if index - layer < layers.redone else 0.0
            seconds += float(layers.seconds[index] + again)
        layer += size
        stage_s.append(seconds)
    ranks, owner = stages.ranks, stages.owner.tolist()
    if owner == [place % ranks for place in range(len(owner))]:
        return sum(max(stage_s[first : first + ranks]) for first in range(0, len(owner), ranks))
    return max(
        sum(s for s, of in zip(stage_s, owner, strict=True) if of == rank) for rank in range(ranks)
    )


def rank_bytes(layers: LayerLoads, stages: Stages, sizes: tuple[int, ...]) -> list[float]:
    held, layer = [0.0] * stages.ranks, 0
    for place, size in enumerate(sizes):
        rank = int(stages.owner[place])
        for index in range(layer, layer + size):
            saved = layers.input_bytes if index - layer < layers.redone else layers.saved_bytes
            held[rank] += float(layers.state_bytes[index])
            held[rank] += float(stages.in_flight[rank] * saved[index])
        layer += size
    return held


@st.composite
def problems(draw: st.DrawFn, chunks: int) -> tuple[LayerLoads, Stages, bool]:
    """A few layers of a few kinds, few stages, a wave or a loop, tight memory or none."""
    ranks = draw(st.integers(2, 4 if chunks == 1 else 3))
    count = draw(st.integers(ranks * chunks, 9))
    kinds = draw(st.integers(1, 3))
    order = np.array(draw(st.lists(st.integers(0, kinds - 1), min_size=count, max_size=count)))

    def per_kind(most: int) -> np.ndarray:
        values = draw(st.lists(st.integers(1, most), min_size=kinds, max_size=kinds))
        return np.array(values, dtype=np.float64)[order]

    saved = per_kind(6)
    layers = LayerLoads(
        per_kind(20), per_kind(5), per_kind(6), saved, np.minimum(saved, 1.0),
        draw(st.sampled_from([0, 1, 2, count])),
    )  # fmt: skip
    ends = np.zeros(ranks * chunks)
    ends[0], ends[-1] = draw(st.integers(0, 10)), draw(st.integers(0, 40))
    rows = [np.arange(ranks)] * chunks
    if draw(st.booleans()):
        rows = [row[::-1] if place % 2 else row for place, row in enumerate(rows)]
    in_flight = np.arange(ranks, 0, -1.0)
    room = draw(st.sampled_from([1e9, 40.0, 25.0]))
    stages = Stages(np.concatenate(rows), ends, in_flight, np.full(ranks, room))
    return layers, stages, draw(st.booleans())


def least(layers: LayerLoads, stages: Stages, empty_ends: bool) -> float | None:
    """Seconds between micro-batches in the best partition that fits."""
    fitting = [
        pace(layers, stages, sizes)
        for sizes in every_partition(len(layers.seconds), len(stages.owner), empty_ends)
        if all(np.array(rank_bytes(layers, stages, sizes)) <= stages.room_bytes + 1e-6)
    ]
    return min(fitting, default=None)


@settings(max_examples=examples(150), deadline=None)
@given(problem=problems(chunks=1))
def test_one_chunk_per_rank_is_split_as_well_as_can_be(
    problem: tuple[LayerLoads, Stages, bool],
) -> None:
    found, best = partition_layers(*problem), least(*problem)
    event("fits" if best is not None else "nothing fits")
    assert (found is None) == (best is None)
    if found is None or best is None:
        return
    layers, stages, _ = problem
    assert sum(found) == len(layers.seconds)
    assert pace(layers, stages, found) == pytest.approx(best)
    assert held_bytes(layers, stages, found) == pytest.approx(rank_bytes(layers, stages, found))


@settings(max_examples=examples(150), deadline=None)
@given(problem=problems(chunks=2))
def test_several_chunks_fit_and_are_no_worse_than_even_ones(
    problem: tuple[LayerLoads, Stages, bool],
) -> None:
    layers, stages, _ = problem
    found = partition_layers(*problem)
    if found is None:
        return
    assert sum(found) == len(layers.seconds)
    assert np.all(np.array(rank_bytes(layers, stages, found)) <= stages.room_bytes + 1e-6)
    seconds = pace(layers, stages, found)
    assert seconds >= least_s(layers, stages) * (1 - 1e-9)
    assert pace_s(layers, stages, found) == pytest.approx(seconds)
    even = spread(len(layers.seconds), len(stages.owner))
    if all(np.array(rank_bytes(layers, stages, even)) <= stages.room_bytes):
        assert seconds <= pace(layers, stages, even) * (1 + ENOUGH)


@settings(max_examples=examples(60), deadline=None)
@given(problem=problems(chunks=2))
def test_moves_are_judged_as_the_partitions_they_lead_to(
    problem: tuple[LayerLoads, Stages, bool],
) -> None:
    layers, stages, empty_ends = problem
    sizes = spread(len(layers.seconds), len(stages.owner))
    ends = np.concatenate([[0], np.cumsum(sizes)])
    givers, scores = layer_partition._neighbours(layers, stages, ends, empty_ends)
    rows = iter(scores)
    for giver in givers.tolist():
        for taker in range(len(sizes)):
            row = next(rows)
            if giver == taker:
                assert np.all(np.isinf(row))
                continue
            moved = np.array(sizes)
            moved[giver] -= 1
            moved[taker] += 1
            after = np.concatenate([[0], np.cumsum(moved)])
            assert row == pytest.approx(layer_partition._scores(layers, stages, after[None])[0])


@settings(max_examples=examples(100), deadline=None)
@given(
    ranks=st.integers(2, 3), count=st.integers(6, 10), first=st.integers(0, 30),
    last=st.integers(0, 60),
)  # fmt: skip
def test_several_chunks_of_equal_layers_are_split_as_well_as_can_be(
    ranks: int, count: int, first: int, last: int
) -> None:
    each, nothing = np.full(count, 10.0), np.zeros(count)
    layers = LayerLoads(each, nothing, nothing, nothing, nothing, 0)
    fixed = np.zeros(2 * ranks)
    fixed[0], fixed[-1] = first, last
    owner = np.tile(np.arange(ranks), 2)
    stages = Stages(owner, fixed, np.ones(ranks), np.full(ranks, np.inf))
    for empty_ends in (False, True):
        found = partition_layers(layers, stages, empty_ends)
        assert found is not None
        best = least(layers, stages, empty_ends)
        assert best is not None
        assert pace(layers, stages, found) <= best * (1 + ENOUGH)


def test_partitions_of_loops_are_the_best_there_is() -> None:
    """Layers of several kinds on chunks that loop over the ranks."""
    random = np.random.default_rng(5)
    exact, tried = 0, 60
    for _ in range(tried):
        seconds = random.choice([2.0, 3.0, 7.0], size=9)
        nothing = np.zeros(9)
        layers = LayerLoads(seconds, nothing, nothing, nothing, nothing, 0)
        fixed = np.array([1.0, 0.0, 0.0, 0.0, 0.0, random.integers(0, 20)])
        owner = np.array([0, 1, 2, 0, 1, 2])
        stages = Stages(owner, fixed, np.ones(3), np.full(3, np.inf))
        found, best = partition_layers(layers, stages), least(layers, stages, empty_ends=False)
        assert found is not None
        assert best is not None
        exact += pace(layers, stages, found) <= best * (1 + ENOUGH)
    assert exact == tried


def test_what_is_asked_again_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal numbers are the same question; room that differs by a byte is another."""
    seconds, nothing, bytes_of = np.arange(1.0, 9.0), np.zeros(8), np.full(8, 10.0)

    def asked(room: float) -> tuple[int, ...] | None:
        layers = LayerLoads(seconds.copy(), nothing, bytes_of.copy(), nothing, nothing, 0)
        return partition_layers(
            layers, Stages(np.arange(2), np.zeros(2), np.ones(2), np.array([room, 1e9]))
        )

    wide, narrow = asked(1e6), asked(41.0)
    assert wide != narrow
    monkeypatch.setattr(layer_partition, "_partitioned", None)
    assert (asked(1e6), asked(41.0)) == (wide, narrow)
    with pytest.raises(TypeError):
        asked(42.0)
