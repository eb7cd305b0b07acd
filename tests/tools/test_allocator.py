"""The simulated allocator: torch's rules on few tensors, and the constant that it gives."""

from __future__ import annotations

import pytest

from cost_models.overheads import RECOMPUTED_STUCK_FRAGMENTATION, STUCK_FRAGMENTATION
from tools.allocator import MIB, OutOfMemory, Stage, least_bytes, replay, shares


def test_blocks_are_rounded_split_and_merged() -> None:
    first = replay([("a", 1), ("b", 3 * MIB), ("c", 30 * MIB + 1)])
    assert (first.allocated, first.reserved) == (512 + 33 * MIB + 512, (2 + 20 + 32) * MIB)
    # What two neighbours leave is one block again, which a tensor of both sizes takes.
    again = replay([("a", 8 * MIB), ("b", 8 * MIB), ("a", 0), ("b", 0), ("c", 16 * MIB)])
    assert again.reserved == 20 * MIB


def test_only_empty_segments_are_returned() -> None:
    empty = [("a", 40 * MIB), ("a", 0), ("b", 50 * MIB)]
    assert replay(empty).reserved == 90 * MIB
    assert replay(empty, 50 * MIB).reserved == 50 * MIB
    stuck = [("a", 40 * MIB), ("a", 0), ("small", 8 * MIB), ("b", 50 * MIB)]
    with pytest.raises(OutOfMemory):
        replay(stuck, 60 * MIB)
    assert least_bytes(stuck, replay(stuck)) == pytest.approx(90 * MIB, rel=0.02)


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_step_frees_all_but_its_states(recomputes: bool) -> None:
    stage = Stage(2048, 8192, 2048, 512, 32000, 4, 2048, 2, 2, 1, recomputes)
    alive: set[str] = set()
    for name, size in stage.steps(4):
        assert (name in alive) == (size == 0)
        alive ^= {name}
    assert alive == {name for name, _ in (*stage.states(), *stage.moments())}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recomputes", "share"),
    [(False, STUCK_FRAGMENTATION), (True, RECOMPUTED_STUCK_FRAGMENTATION)],
)
def test_the_constants_are_what_steps_of_pipelines_need(recomputes: bool, share: float) -> None:
    found = [
        shares(Stage(4096, 14336, 4096, 1024, 128256, 4, 8192, 4, 4, k, recomputes), 8)
        for k in range(4)
    ]
    needed = [each[1] for each in found if each is not None]
    assert min(needed) / 2 < share < 2 * max(needed)
