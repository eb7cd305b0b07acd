"""Collective times against published bus bandwidths, and their limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.catalog.hardware import cluster_entry, node_group
from cost_models.measured_tables import Linear
from cost_models.network import Fabric, collective_s, link_bytes, send_s
from cost_models.placement import Axis
from cost_models.profiles import CollectiveTable, EfficiencyProfile, profile, profile_for
from cost_models.spec import NetworkTier

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def fabric(name: str, nodes: int = 64, network: tuple[NetworkTier, ...] = ()) -> Fabric:
    group = node_group(name, nodes, network=network)
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
    assert seconds(f, op, payload * 2, size, stride) >= base * (1 - 1e-12)
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


# Milliseconds by nodes of 8 H100s (p5.48xlarge) and MiB: nccl-tests, 1,000 iterations, out of place
# (crazyguitar/aws-gpu-communication-benchmark @fd167f97 data/).
OVER_EFA = {
    "all_reduce": {
        4: {64: 0.85, 256: 1.90, 1024: 7.42}, 8: {64: 1.27, 256: 2.28, 1024: 7.70},
        16: {64: 1.44, 256: 3.60, 1024: 7.91}, 32: {64: 1.60, 256: 3.88, 1024: 9.72},
    },
    "all_gather": {
        4: {64: 0.47, 256: 1.03, 1024: 3.61}, 8: {64: 0.76, 256: 1.23, 1024: 4.71},
        16: {64: 1.42, 256: 1.85, 1024: 4.07}, 32: {64: 2.68, 256: 3.10, 1024: 4.81},
    },
    "all_to_all": {
        4: {64: 1.51, 256: 4.79, 1024: 19.35}, 8: {64: 1.90, 256: 5.95, 1024: 21.88},
        16: {64: 2.55, 256: 7.66, 1024: 25.15}, 32: {64: 2.92, 256: 8.85, 1024: 27.65},
    },
}  # fmt: skip


@pytest.mark.parametrize("op", OVER_EFA)
def test_collectives_over_efa_wait_at_every_step(op: str) -> None:
    """Within 15 %; as over InfiniBand all-reduces and gathers would be a third too fast."""
    efa = fabric("h100-sxm", 64, cluster_entry("p5.48xlarge").network)
    off = []
    for nodes, row in OVER_EFA[op].items():
        for mebibytes, milliseconds in row.items():
            took = seconds(efa, op, mebibytes * 2.0**20, 8 * nodes)
            off.append(math.log(took * 1e3 / milliseconds))
    assert len(off) == 12
    assert sum(map(abs, off)) / 12 < 0.15
    assert abs(sum(off)) / 12 < 0.1


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


# By hand, in round numbers: 80 of 100 GB/s inside domains of 8, and of 10 GB/s a half for rings, a
# quarter for all-to-alls and a fifth for messages outside them.
ROUND = replace(
    profile("generic"), collectives={}, domain_fraction=0.8, network_fraction=0.5,
    all_to_all_fraction=0.25, p2p_fraction=0.2,
)  # fmt: skip
INNER = NetworkTier(
    name="links", domain_accelerators=8, bandwidth_bytes_per_s=100e9, latency_s=2e-6
)
OUTER = NetworkTier(name="NICs", bandwidth_bytes_per_s=10e9, latency_s=5e-6)
POD = OUTER.model_copy(update={"domain_accelerators": 32})
SPINE = OUTER.model_copy(update={"oversubscription": 8.0, "latency_s": 7e-6})
PAYLOAD = 3.2e9
FILLED = PAYLOAD + 0.35 * 200e6  # between nodes small parts take as long as larger ones
TWO_TIERS = (INNER, OUTER)


def by_hand(
    op: str,
    payload: float,
    size: int,
    stride: int = 1,
    tiers: tuple[NetworkTier, ...] = TWO_TIERS,
    profile: EfficiencyProfile = ROUND,
) -> float:
    return seconds(Fabric(tiers, profile, 100e9), op, payload, size, stride)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("all_gather", 3 * 2e-6 + PAYLOAD * 7 / 8 / 80e9),
        ("reduce_scatter", 3 * 2e-6 + PAYLOAD * 7 / 8 / 80e9),
        ("all_reduce", 3 * 4e-6 + PAYLOAD * 14 / 8 / 80e9),
        ("all_to_all", 3 * 2e-6 + PAYLOAD * 7 / 8 / 80e9),
    ],
)
def test_eight_in_a_domain(op: str, expected: float) -> None:
    assert by_hand(op, PAYLOAD, 8) == pytest.approx(expected, rel=1e-12)
    # A single domain, however large.
    all_one = (INNER.model_copy(update={"domain_accelerators": None}),)
    assert by_hand(op, PAYLOAD, 8, 4, all_one) == pytest.approx(expected, rel=1e-12)


def test_two_in_a_mesh_of_eight_have_one_link_of_seven() -> None:
    mesh = (INNER.model_copy(update={"topology": "mesh"}), OUTER)
    expected = 2e-6 + PAYLOAD / 2 / (80e9 / 7)
    assert by_hand("all_gather", PAYLOAD, 2, 1, mesh) == pytest.approx(expected, rel=1e-12)
    pair = (mesh[0].model_copy(update={"domain_accelerators": 2}), OUTER)
    expected = 2e-6 + PAYLOAD / 2 / 80e9
    assert by_hand("all_gather", PAYLOAD, 2, 1, pair) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("ranks", "axes"), [(2, 1), (4, 1), (8, 2), (16, 2), (17, 3), (64, 3)])
def test_a_group_on_a_torus_gathers_over_the_axes_it_spans(ranks: int, axes: int) -> None:
    torus = INNER.model_copy(update={"topology": "torus-3d", "domain_accelerators": None})
    share = (ranks - 1) / ranks
    expected = math.log2(ranks) * 2e-6 + PAYLOAD * share / (80e9 * axes / 3)
    assert by_hand("all_gather", PAYLOAD, ranks, 1, (torus,)) == pytest.approx(expected)
    expected = math.log2(ranks) * 2e-6 + PAYLOAD * share / (80e9 / 3)
    assert by_hand("all_to_all", PAYLOAD, ranks, 1, (torus,)) == pytest.approx(expected)


def test_a_ring_over_four_domains_of_eight() -> None:
    """Eight NICs at half of 10 GB/s; three steps between domains, twice that to reduce too."""
    gather = 3 * 2e-6 + 3 * 5e-6 + FILLED * 31 / 32 / 40e9
    assert by_hand("all_gather", PAYLOAD, 32) == pytest.approx(gather, rel=1e-12)
    reduce = 3 * 4e-6 + 6 * 5e-6 + FILLED * 62 / 32 / 40e9
    assert by_hand("all_reduce", PAYLOAD, 32) == pytest.approx(reduce, rel=1e-12)


def test_slow_domains_hold_the_ring_up() -> None:
    """Outside there is more than the 1 GB/s that the all-gather of each domain reaches."""
    slow = INNER.model_copy(update={"bandwidth_bytes_per_s": 1.25e9})
    inside = 3 * 2e-6 + PAYLOAD * 7 / 8 / 1e9
    bus = PAYLOAD * 7 / 8 / inside
    expected = 3 * 2e-6 + 3 * 5e-6 + FILLED * 31 / 32 / bus
    assert by_hand("all_gather", PAYLOAD, 32, 1, (slow, OUTER)) == pytest.approx(expected)


@pytest.mark.parametrize(("payload", "chunk_share"), [(2.0**16, 2.0**-10), (2.0**27, 1.0)])
def test_a_small_all_reduce_of_many_nodes_is_a_tree(payload: float, chunk_share: float) -> None:
    """512 members alone in their domains: nine steps each way, not 511."""
    tree = 2 * 9 * (1.4 * 5e-6 + 16e-6 * chunk_share)
    expected = tree + 1.35 * payload * 2 * 511 / 512 / 5e9
    assert by_hand("all_reduce", payload, 512, 8) == pytest.approx(expected, rel=1e-12)
    ring = 511 * 5e-6 + 1.35 * payload * 511 / 512 / 5e9
    assert by_hand("all_gather", payload, 512, 8) == pytest.approx(ring, rel=1e-12)


def test_pods_share_an_eighth_of_their_uplinks() -> None:
    """64 ranks in two pods of 32: the spine has an eighth of 32 halves of 10 GB/s."""
    expected = 3 * 2e-6 + 3 * 5e-6 + 1 * 7e-6 + FILLED * 63 / 64 / 20e9
    took = by_hand("all_gather", PAYLOAD, 64, 1, (INNER, POD, SPINE))
    assert took == pytest.approx(expected, rel=1e-12)
    # A group inside one pod never sees the spine.
    inside = by_hand("all_gather", PAYLOAD, 32, 1, (INNER, POD, SPINE))
    assert inside == pytest.approx(by_hand("all_gather", PAYLOAD, 32), rel=1e-12)


def test_an_all_to_all_sends_inside_and_outside_at_once() -> None:
    """Of 32 ranks 24 are outside; the quarter of 10 GB/s takes longer than the links."""
    outside = 5e-6 * 3 + PAYLOAD * 24 / 32 / 2.5e9
    assert by_hand("all_to_all", PAYLOAD, 32) == pytest.approx(outside, rel=1e-12)
    fast = (INNER, OUTER.model_copy(update={"bandwidth_bytes_per_s": 1e13}))
    inside = 3 * 2e-6 + PAYLOAD / 4 * 7 / 8 / 80e9
    assert by_hand("all_to_all", PAYLOAD, 32, 1, fast) == pytest.approx(inside, rel=1e-12)
    axis = Axis(np.array([32]), np.array([1]))
    half = collective_s(Fabric(TWO_TIERS, ROUND, 100e9), "all_to_all", PAYLOAD, axis, 0.5)
    assert float(np.max(half)) == pytest.approx(5e-6 * 3 + PAYLOAD * 24 / 32 / 5e9, rel=1e-12)
    # Beyond a pod one's own share of the uplinks: 32 of 64 ranks are in the other pod.
    spine = 7e-6 * 2 + PAYLOAD / 2 / (2.5e9 / 8)
    took = by_hand("all_to_all", PAYLOAD, 64, 1, (INNER, POD, SPINE))
    assert took == pytest.approx(spine, rel=1e-12)


def test_groups_of_a_batch_take_what_each_takes_alone() -> None:
    sizes, strides = np.array([1, 4, 8, 32, 2]), np.array([1, 2, 1, 1, 8])
    payloads = np.array([1e9, 0.0, 1e6, 1e9, 1.0])
    f = Fabric(TWO_TIERS, ROUND, 100e9)
    for op in OPERATIONS:
        together = collective_s(f, op, payloads, Axis(sizes, strides))
        cases = zip(payloads.tolist(), sizes.tolist(), strides.tolist(), strict=True)
        assert together.tolist() == [seconds(f, op, *case) for case in cases]
        one = collective_s(f, op, 1e9, Axis(sizes, strides))
        cases = zip(sizes.tolist(), strides.tolist(), strict=True)
        assert one.tolist() == [seconds(f, op, 1e9, *case) for case in cases]


def test_a_message_takes_the_slowest_hop_of_its_group() -> None:
    def message(size: int, stride: int, tiers: tuple[NetworkTier, ...] = TWO_TIERS) -> float:
        f = Fabric(tiers, ROUND, 100e9)
        return float(f.transfer("send", 1e9, Axis(np.array([size]), np.array([stride])))[0])

    assert message(8, 1) == pytest.approx(2e-6 + 1e9 / 20e9, rel=1e-12)
    assert message(4, 4) == pytest.approx(5e-6 + 1e9 / 2e9, rel=1e-12)
    spread = message(2, 32, (INNER, POD, SPINE))
    assert spread == pytest.approx(7e-6 + 1e9 / (2e9 / 8), rel=1e-12)
    assert message(1, 1) == 0.0


def test_a_measured_message_is_priced_as_measured_inside_the_domain() -> None:
    f = Fabric(TWO_TIERS, ROUND, 100e9)
    f.message = Linear(1e-3, 1e-9)
    axis = Axis(np.array([8, 16, 1]), np.array([1, 1, 1]))
    assert send_s(f, 1e9, axis) == pytest.approx([1e-3 + 1.0, 5e-6 + 1e9 / 2e9, 0.0])


TABLE = CollectiveTable(
    np.array([2.0, 8.0]), np.array([2.0**10, 2.0**20]), np.array([[1e-5, 1e-3], [2e-5, 4e-3]])
)
KNOWN = replace(ROUND, collectives=dict.fromkeys(OPERATIONS, TABLE))
WIDE = (INNER.model_copy(update={"domain_accelerators": 16}), OUTER)


@pytest.mark.parametrize(
    ("ranks", "payload", "expected"),
    [
        (2, 2.0**10, 1e-5),
        (8, 2.0**20, 4e-3),
        (2, 2.0**15, 1e-4),
        (4, 2.0**10, 2**0.5 * 1e-5),
        (4, 2.0**15, (1e-5 * 1e-3 * 2e-5 * 4e-3) ** 0.25),
        (2, 2.0**4, 1e-5),
        (8, 0.5, 2e-5),
        (2, 2.0**22, 4e-3),
    ],
)
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_table_is_read_in_logarithms(
    op: str, ranks: int, payload: float, expected: float
) -> None:
    """Its last rate holds above it, its first time below it."""
    assert by_hand(op, payload, ranks, 1, WIDE, KNOWN) == pytest.approx(expected, rel=1e-12)


def test_on_half_the_links_all_but_the_latency_doubles() -> None:
    f = Fabric(WIDE, KNOWN, 200e9)
    assert seconds(f, "all_gather", 2.0**20, 2) == pytest.approx(1e-5 + 2 * (1e-3 - 1e-5))
    between = (1e-3 * 4e-3) ** 0.5
    assert seconds(f, "all_gather", 2.0**20, 4) == pytest.approx(1.5e-5 + 2 * (between - 1.5e-5))


def test_more_ranks_than_measured_move_more_and_take_more_steps() -> None:
    """16 ranks of a table up to 8: 15/16 of the payload instead of 7/8, and 8 steps of a ring."""
    moved = 2e-5 + (4e-3 - 2e-5) * (15 / 16) / (7 / 8)
    assert by_hand("all_reduce", 2.0**20, 16, 1, WIDE, KNOWN) == pytest.approx(moved)
    steps = 8 * 1.9e-6
    assert by_hand("all_gather", 2.0**20, 16, 1, WIDE, KNOWN) == pytest.approx(moved + steps)
    # The steps are latency: they come again where the group leaves the domain.
    within = 2.0**20 * 15 / 16 / (moved + steps)
    outward = 2e-5 + steps + 5e-6 + 1.35 * 2.0**20 * 31 / 32 / within
    assert by_hand("all_gather", 2.0**20, 32, 1, WIDE, KNOWN) == pytest.approx(outward)


def test_a_table_of_one_size_of_group_holds_for_smaller_ones() -> None:
    row = CollectiveTable(np.array([8.0]), TABLE.bytes, TABLE.seconds[1:])
    known = replace(ROUND, collectives={"all_gather": row})
    for ranks in (2, 4, 8):
        took = by_hand("all_gather", 2.0**20, ranks, 1, TWO_TIERS, known)
        assert took == pytest.approx(4e-3, rel=1e-12)


@pytest.mark.parametrize(
    ("op", "size", "stride", "expected"),
    [
        ("send", 8, 1, [1.0, 0.0, 0.0]),
        ("send", 64, 1, [1.0, 1.0, 1.0]),
        ("send", 4, 8, [0.0, 1.0, 0.0]),
        ("send", 1, 1, [0.0, 0.0, 0.0]),
        ("all_gather", 8, 1, [7 / 8, 0.0, 0.0]),
        ("all_reduce", 32, 1, [62 / 32, 62 / 32 / 8, 0.0]),
        ("all_reduce", 64, 1, [126 / 64, 126 / 64 / 8, 126 / 64 / 32]),
        ("all_gather", 4, 8, [0.0, 3 / 4, 0.0]),
        ("all_to_all", 32, 1, [7 / 32, 24 / 32, 0.0]),
        ("all_to_all", 64, 1, [7 / 64, 56 / 64, 32 / 64]),
    ],
)
def test_bytes_on_the_links_of_each_tier(
    op: str, size: int, stride: int, expected: list[float]
) -> None:
    """Inside domains of 8, between them, and between pods of 32; of a payload of 1."""
    f = Fabric((INNER, POD, SPINE), ROUND, 100e9)
    found = link_bytes(f, op, 1.0, Axis(np.array([size]), np.array([stride])))
    assert [float(one[0]) for one in found] == pytest.approx(expected, rel=1e-12)
