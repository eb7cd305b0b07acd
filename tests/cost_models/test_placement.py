"""Members per domain against groups written out rank by rank."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cost_models.placement import Axis, Placement, members
from cost_models.plans import ParallelPlan, Plans


@given(
    stride=st.integers(1, 12),
    size=st.integers(1, 12),
    domain=st.integers(1, 40),
    blocks=st.integers(1, 6),
)
def test_members_is_the_fewest_of_any_group(
    stride: int, size: int, domain: int, blocks: int
) -> None:
    """Written out over a world whose domains and blocks both end evenly."""
    block = stride * size
    world = int(np.lcm(block, domain)) * blocks
    fewest = size
    for start in range(0, world, block):
        for offset in range(stride):
            ranks = [start + offset + k * stride for k in range(size)]
            counts = np.bincount(np.array(ranks) // domain)
            fewest = min(fewest, int(counts[counts > 0].min()))
    axis = Axis(np.int64(size), np.int64(stride))  # type: ignore[arg-type]
    got = int(members(axis, domain))
    # A block that straddles two domains may leave fewer ranks of one residue than of another:
    # the closed form is exact where blocks and domains are aligned and never too high.
    assert got <= fewest
    aligned = domain % block == 0 or block % domain == 0
    if aligned and (domain % stride == 0 or block <= domain):
        assert got == fewest


def test_a_part_of_a_stride_is_no_member() -> None:
    """Strides of 2 in domains of 9: blocks of 6 overlap them by 3, which is one member."""
    axis = Axis(np.array([3]), np.array([2]))
    assert members(axis, 9).tolist() == [1]
    assert members(axis, None).tolist() == [3]


def groups(plan: ParallelPlan) -> dict[str, tuple[int, int]]:
    places = Placement(Plans.from_rows([plan]))
    names = ("tp", "cp", "data", "pp", "etp", "ep", "shard", "replicate", "expert_shard")
    return {n: (int(getattr(places, n).size[0]), int(getattr(places, n).stride[0])) for n in names}


def test_sixteen_ranks_of_the_frameworks() -> None:
    """Megatron, DeepSpeed and torchtitan: 16 ranks, tp 2, pp 4, dp 2 -> pp [0, 4, 8, 12]."""
    default = groups(ParallelPlan(tp=2, pp=4, dp=2))
    assert default["pp"] == (4, 4)
    assert default["data"] == (2, 2)
    swapped = groups(ParallelPlan(tp=2, pp=4, dp=2, rank_order="tp-cp-ep-pp-dp"))
    assert swapped["pp"] == (4, 2)
    assert swapped["data"] == (2, 8)


def test_expert_grid() -> None:
    """MoE, 16 ranks, pp 4, ep 2: etp 2 -> ep [0, 2]; etp 1 -> ep [0, 1], edp [0, 2]."""
    as_dense = groups(ParallelPlan(tp=2, sequence_parallel=True, pp=4, dp=2, ep=2, etp=2))
    assert as_dense["ep"] == (2, 2)
    assert as_dense["expert_shard"][0] == 1
    alone = groups(ParallelPlan(tp=2, sequence_parallel=True, pp=4, dp=2, ep=2, etp=1))
    assert alone["ep"] == (2, 1)
    assert alone["expert_shard"] == (2, 2)


def test_hybrid_sharding_replicates_experts_as_often_as_the_rest() -> None:
    """Dp 32, ep 8, shards of 8: four replicas of everything, so the experts are not sharded."""
    places = Placement(Plans.from_rows([ParallelPlan(dp=32, ep=8, dp_shard=8)]))
    assert int(places.replicate.size[0]) == 4
    assert int(places.expert_shard.size[0]) == 1
    assert int(places.expert_replicate.size[0]) == 4


def test_members_of_the_usual_node() -> None:
    eight = np.int64(8)
    assert int(members(Axis(eight, np.int64(1)), 8)) == 8  # type: ignore[arg-type]
    assert int(members(Axis(np.int64(64), np.int64(2)), 8)) == 4  # type: ignore[arg-type]
    assert int(members(Axis(np.int64(64), np.int64(8)), 8)) == 1  # type: ignore[arg-type]
    assert int(members(Axis(np.int64(72), np.int64(1)), 72)) == 72  # type: ignore[arg-type]
