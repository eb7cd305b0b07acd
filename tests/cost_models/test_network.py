"""Collective times against published bus bandwidths, and their limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog.hardware import node_group
from cost_models.network import Fabric, collective_s, send_s
from cost_models.placement import Axis
from cost_models.profiles import profile_for
from cost_models.spec import NetworkTier

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def fabric(name: str, nodes: int = 64) -> Fabric:
    group = node_group(name, nodes)
    profile = profile_for(group.accelerator)
    link = profile.collective_link_bytes_per_s or group.network[0].bandwidth_bytes_per_s
    return Fabric(group.network, profile, link)


def seconds(f: Fabric, op: str, payload: float, size: int, stride: int = 1) -> float:
    axis = Axis(np.array([size]), np.array([stride]))
    return float(np.max(collective_s(f, op, np.array([payload]), axis)))


@pytest.mark.parametrize(
    ("name", "size", "stride", "gigabytes_per_s"),
    [
        ("h100-sxm", 32, 1, (345, 380)),  # 8 x 400G: NVIDIA 370-380, arXiv 2411.13055 345-360
        ("a100-sxm", 32, 1, (180, 200)),  # 8 x 200G: 192
        ("b200", 32, 1, (360, 385)),  # 8 x 400G EFA: 381.8
        ("h100-sxm", 32, 8, (44, 50)),  # one rail of 400G: 48
        ("a100-sxm", 32, 8, (22, 25)),  # one rail of 200G: 24
    ],
)
def test_all_reduce_bus_bandwidth_across_nodes(
    name: str, size: int, stride: int, gigabytes_per_s: tuple[float, float]
) -> None:
    payload = 16 * 2.0**30
    took = seconds(fabric(name), "all_reduce", payload, size, stride)
    bus = payload * 2 * (size - 1) / size / took / 1e9
    assert gigabytes_per_s[0] <= bus <= gigabytes_per_s[1]


@pytest.mark.parametrize(
    ("name", "gigabytes_per_s"), [("h100-sxm", (44, 52)), ("a100-sxm", (22, 26))]
)
def test_all_to_all_bus_bandwidth_of_32(name: str, gigabytes_per_s: tuple[float, float]) -> None:
    """32 accelerators on 8 x 400G / 8 x 200G: 48 / 24 GB/s (NVIDIA slides)."""
    payload = 4 * 2.0**30
    bus = payload * 31 / 32 / seconds(fabric(name), "all_to_all", payload, 32) / 1e9
    assert gigabytes_per_s[0] <= bus <= gigabytes_per_s[1]


def test_inside_a_node_the_table_is_reproduced() -> None:
    """H100, 8 ranks, 512 MiB all-gather: 335.2 GB/s (nccl-tests)."""
    payload = 2.0**29
    bus = payload * 7 / 8 / seconds(fabric("h100-sxm"), "all_gather", payload, 8) / 1e9
    assert bus == pytest.approx(335.2, rel=0.01)


def test_a_group_of_one_moves_nothing() -> None:
    f = fabric("h100-sxm")
    for op in OPERATIONS:
        assert seconds(f, op, 1e9, 1) == 0.0
    one = Axis(np.array([1]), np.array([1]))
    assert float(np.max(send_s(f, np.array([1e9]), one))) == 0.0


def test_mesh_links_are_shared_by_pairs() -> None:
    """MI300X: 2 of 8 GPUs see one of seven links (48 GB/s measured), 8 see all (313)."""
    f = fabric("mi300x", 1)
    payload = 8 * 2.0**30
    two = payload / seconds(f, "all_reduce", payload, 2) / 1e9
    eight = payload * 2 * 7 / 8 / seconds(f, "all_reduce", payload, 8) / 1e9
    assert 40 <= two <= 52
    assert 290 <= eight <= 330


@given(
    name=st.sampled_from(["h100-sxm", "a100-sxm", "mi300x", "gb200-nvl72", "l40s"]),
    op=st.sampled_from(OPERATIONS),
    exponent=st.integers(0, 9),
    stride=st.sampled_from([1, 2, 4, 8, 64]),
    payload=st.floats(1.0, 1e11),
)
def test_more_bytes_or_less_bandwidth_never_take_less_time(
    name: str, op: str, exponent: int, stride: int, payload: float
) -> None:
    f, size = fabric(name), 2**exponent
    base = seconds(f, op, payload, size, stride)
    assert base >= 0
    assert seconds(f, op, payload * 2, size, stride) >= base
    tiers = tuple(
        tier.model_copy(update={"bandwidth_bytes_per_s": tier.bandwidth_bytes_per_s * 2})
        for tier in f.tiers
    )
    link = f.link_scale * f.tiers[0].bandwidth_bytes_per_s
    assert seconds(Fabric(tiers, f.profile, link), op, payload, size, stride) <= base * (1 + 1e-12)


def test_oversubscription_slows_what_leaves_the_pod() -> None:
    f = fabric("h100-sxm")
    inner, outer = f.tiers
    pod = outer.model_copy(update={"name": "pod", "domain_accelerators": 256})
    spine = outer.model_copy(update={"name": "spine", "oversubscription": 7.0})
    podded = Fabric((inner, pod, spine), f.profile, f.link_scale * inner.bandwidth_bytes_per_s)
    payload = 2.0**30
    # 32 members of a rail share the pod's uplinks with seven other rails: more than they send.
    rail = seconds(podded, "all_reduce", payload, 64, 8)
    assert rail == pytest.approx(seconds(f, "all_reduce", payload, 64, 8), rel=0.01)
    # One member per pod is left with a seventh of its NIC.
    spread = seconds(podded, "all_reduce", payload, 2, 256)
    assert spread == pytest.approx(7 * seconds(f, "all_reduce", payload, 2, 256), rel=0.01)


# Bus bandwidth of all-reduce in GB/s by nodes of 8 H100s and MiB: arXiv 2411.13055, read off +-8.
BETWEEN_NODES = {
    4: {64: 217, 256: 270, 1024: 337, 16384: 355},
    32: {64: 152, 256: 252, 1024: 315, 16384: 352},
    128: {64: 125, 256: 235, 1024: 303, 16384: 348},
    512: {64: 112, 256: 220, 1024: 286, 16384: 345},
}


@pytest.mark.parametrize(
    ("nodes", "mebibytes", "gigabytes_per_s"),
    [(n, size, rate) for n, row in BETWEEN_NODES.items() for size, rate in row.items()],
)
def test_all_reduce_between_nodes_runs_as_measured(
    nodes: int, mebibytes: int, gigabytes_per_s: float
) -> None:
    ranks, payload = 8 * nodes, mebibytes * 2.0**20
    took = seconds(fabric("h100-sxm", nodes), "all_reduce", payload, ranks)
    bus = payload * 2 * (ranks - 1) / ranks / took / 1e9
    assert bus == pytest.approx(gigabytes_per_s, rel=0.12)


@pytest.mark.parametrize("op", OPERATIONS)
def test_rails_spare_groups_with_one_place_in_their_nodes(op: str) -> None:
    """Whole strides of a node meet below the uplinks; any others share them as on a fat tree."""
    f = fabric("h100-sxm")
    *inner, outer = f.tiers
    spine = outer.model_copy(update={"oversubscription": 4.0})
    rails = outer.model_copy(update={"oversubscription": 4.0, "topology": "rail"})

    def on(tier: NetworkTier, stride: int) -> float:
        tiers = (*inner, tier)
        return seconds(Fabric(tiers, f.profile, 450e9), op, 1e9, 16, stride)

    assert on(rails, 8) == on(outer, 8) < on(spine, 8)
    assert on(rails, 4) == on(spine, 4)
