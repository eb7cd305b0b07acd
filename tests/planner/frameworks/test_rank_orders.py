"""Process groups against the frameworks' own code: megatron-core, DeepSpeed, torch's mesh."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from cost_models.plans import ParallelPlan
from planner.frameworks import FRAMEWORKS
from planner.frameworks.rank_orders import ORDERS, Grid, NoOrder, grids, order_of
from tests.fixtures.tiers import examples

FEW = st.sampled_from([1, 2, 3, 4, 8])
MANY = settings(
    max_examples=examples(200),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def imported(module: str) -> Any:
    """A framework's module, imported by the test: every worker collects this file, for seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(module)


def ranks(grid: Grid, *names: str) -> list[list[int]]:
    found: list[list[int]] = grid.groups(*names).tolist()
    return found


@MANY
@given(FEW, FEW, FEW, FEW, st.booleans())
def test_dense_groups_are_megatrons(tp: int, cp: int, dp: int, pp: int, inside: bool) -> None:
    order = "tp-cp-ep-pp-dp" if inside else "tp-cp-ep-dp-pp"
    plan = ParallelPlan(tp=tp, cp=cp, dp=dp, pp=pp, rank_order=order)
    dense, experts = grids(order_of("megatron", plan), plan)
    assert experts is None
    state = imported("megatron.core.parallel_state")
    theirs = state.RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
    for names in (("tp",), ("cp",), ("dp",), ("pp",), ("cp", "dp"), ("tp", "pp"), ("tp", "cp")):
        expected = sorted(map(sorted, theirs.get_ranks("-".join(names))))
        assert sorted(ranks(dense, *names)) == expected


@MANY
@given(FEW, FEW, FEW, FEW, st.sampled_from([1, 2]), st.booleans())
def test_expert_groups_are_megatrons(
    tp: int, cp: int, dp: int, ep: int, etp: int, inside: bool
) -> None:
    pp = 2
    assume(ep * etp > 1 and tp * cp * dp % (etp * ep) == 0)
    order = "tp-cp-ep-pp-dp" if inside else "tp-cp-ep-dp-pp"
    plan = ParallelPlan(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, rank_order=order)
    _, experts = grids(order_of("megatron", plan), plan)
    assert experts is not None
    edp = tp * cp * dp // (etp * ep)
    state = imported("megatron.core.parallel_state")
    theirs = state.RankGenerator(tp=etp, ep=ep, dp=edp, pp=pp, cp=1, order=order)
    for ours, name in (("etp", "tp"), ("ep", "ep"), ("edp", "dp"), ("pp", "pp")):
        assert sorted(ranks(experts, ours)) == sorted(map(sorted, theirs.get_ranks(name)))


@MANY
@given(FEW, FEW, FEW)
def test_groups_are_deepspeeds(tp: int, dp: int, pp: int) -> None:
    plan = ParallelPlan(tp=tp, dp=dp, pp=pp)
    dense, _ = grids(order_of("deepspeed", plan), plan)
    topology = imported("deepspeed.runtime.pipe.topology")
    theirs = topology.PipeModelDataParallelTopology(num_pp=pp, num_mp=tp, num_dp=dp)
    for ours, name in (("tp", "model"), ("dp", "data"), ("pp", "pipe")):
        if dense.size(ours) > 1:
            assert sorted(ranks(dense, ours)) == sorted(theirs.get_axis_comm_lists(name))
    for name, axis in (("tp", "model"), ("dp", "data"), ("pp", "pipe")):
        coordinates = [getattr(theirs.get_coord(r), axis) for r in range(plan.accelerators)]
        assert dense.coordinates(name).tolist() == coordinates


@pytest.fixture
def one_rank() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("draws", [40, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_groups_are_those_of_a_device_mesh(draws: int) -> None:
    """Torchtitan's mesh (pp, dp_replicate, dp_shard, cp, tp) on torch's own DeviceMesh."""
    generator = np.random.default_rng(0)
    for _ in range(draws):
        tp, cp, shard, replicate, pp = generator.choice([1, 2, 3, 4], 5).tolist()
        plan = ParallelPlan(
            tp=tp, cp=cp, dp=shard * replicate, pp=pp, zero_stage=2, dp_shard=shard * cp
        )
        dense, _ = grids(order_of("torchtitan", plan), plan)
        rank = int(generator.integers(plan.accelerators))
        dist.init_process_group("fake", rank=rank, world_size=plan.accelerators, store=FakeStore())
        names = dense.names[::-1]
        mesh = init_device_mesh("cpu", dense.sizes[::-1], mesh_dim_names=names)
        for name in names:
            (own,) = [group for group in ranks(dense, name) if rank in group]
            assert mesh[name].mesh.tolist() == own
            assert mesh.get_local_rank(name) == dense.coordinates(name)[rank]
        dist.destroy_process_group()


def test_the_textbook_example() -> None:
    """16 ranks, PP 4: [0, 4, 8, 12]; with PP 2 [0, 8], where the stride is not the size."""
    for pp, first in ((4, [0, 4, 8, 12]), (2, [0, 8])):
        plan = ParallelPlan(tp=2, dp=16 // pp // 2, pp=pp)
        for framework in ("megatron", "deepspeed", "torchtitan", "nanotron", "colossalai"):
            dense, _ = grids(order_of(framework, plan), plan)
            assert ranks(dense, "pp")[0] == first
    plan = ParallelPlan(tp=2, dp=2, pp=4)
    swapped = plan.model_copy(update={"rank_order": "tp-cp-ep-pp-dp"})
    for framework in ("megatron", "colossalai"):
        assert ranks(grids(order_of(framework, swapped), swapped)[0], "pp")[0] == [0, 2, 4, 6]


def test_every_framework_has_an_order() -> None:
    assert set(ORDERS) == set(FRAMEWORKS)


@pytest.mark.parametrize("framework", sorted(ORDERS))
def test_every_rank_stands_somewhere_of_its_own(framework: str) -> None:
    copies = framework == "unsloth"  # which has no other axis
    plan = ParallelPlan(dp=8) if copies else ParallelPlan(tp=2, dp=4)
    dense, _ = grids(order_of(framework, plan), plan)
    assert dense.world_size == math.prod(dense.sizes) == plan.accelerators
    places = np.stack([dense.coordinates(name) for name in dense.names], axis=1)
    assert len(np.unique(places, axis=0)) == plan.accelerators


@pytest.mark.parametrize(
    ("framework", "plan", "text"),
    [
        ("accelerate", {"pp": 2}, "no pp axis"),
        ("deepspeed", {"cp": 2}, "no cp axis"),
        ("deepspeed", {"ep": 2, "dp": 2}, "no ep axis"),
        ("torchtitan", {"ep": 2, "etp": 2, "dp": 4, "tp": 2, "zero_stage": 2}, "split experts"),
        ("torchtitan", {"rank_order": "tp-cp-ep-pp-dp"}, "no rank order"),
    ],
)
def test_what_a_framework_cannot_place_is_refused(
    framework: str, plan: dict[str, object], text: str
) -> None:
    row = ParallelPlan.model_validate(plan)
    with pytest.raises(NoOrder, match=text):
        grids(order_of(framework, row), row)
