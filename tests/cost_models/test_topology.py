"""The matrix of nvidia-smi: real ones, and what they make of a node's links."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models.catalog.hardware import node_group
from cost_models.catalog.topology import Topology, linked, read_topology

FOLDER = Path("tests/fixtures/machines")


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("topo_hgx.txt", Topology(8, 18, 8, 0)),
        ("topo_rtx_5090_pair.txt", Topology(2, 0, 1, 0)),
        ("topo_five_cards.txt", Topology(5, 0, 1, 0)),
        ("topo_a100_nics.txt", Topology(1, 0, 1, 3)),
        ("held_out/topo_3090_pair.txt", Topology(2, 0, 1, 0)),
        ("sinfo_m3.txt", None),
    ],
)
def test_a_matrix_is_read(name: str, topology: Topology | None) -> None:
    assert read_topology((FOLDER / name).read_text(encoding="utf-8")) == topology


def test_a_coloured_matrix_and_uneven_links() -> None:
    """Newer drivers underline the header; on a DGX-1 two GPUs share one link or two, or none."""
    text = "\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\x1b[0m\nGPU0\t X \tNV1\tNV2\t0-3\n"
    text += "GPU1\tNV1\t X \tSYS\t0-3\nGPU2\tNV2\tSYS\t X \t0-3\n"
    topology = read_topology(text)
    assert topology == Topology(3, None, 3, 0)
    group = node_group("v100", 1, 3)
    assert linked(group, topology) == group
    # Two of three cards have a bridge.
    pair = "GPU0 X NV4 SYS\nGPU1 NV4 X SYS\nGPU2 SYS SYS X\n"
    assert read_topology(pair) == Topology(3, None, 2, 0)


@pytest.mark.parametrize(
    ("accelerator", "per_node", "topology", "tiers"),
    [
        # (name, accelerators of a domain, GB/s)
        ("h100", 8, Topology(8, 18, 8, 0), [("nvlink", 8, 450)]),
        ("h800", 8, Topology(8, 8, 8, 0), [("nvlink", 8, 200)]),
        ("b200", 8, Topology(8, 18, 8, 0), [("nvlink", 8, 900)]),
        ("gb200", 4, Topology(4, 18, 4, 0), [("nvlink", 72, 900)]),
        ("h100", 2, Topology(8, 12, 8, 0), [("nvlink", 2, 300)]),  # two of the eight
        ("rtx-3090", 2, Topology(2, 4, 2, 0), [("nvlink", 2, 56.25)]),
        ("a6000", 4, Topology(4, 4, 2, 0), [("nvlink", 2, 56.25), ("pcie", 4, 31)]),
        ("rtx-3090", 2, Topology(2, 0, 1, 0), [("pcie", 2, 19.5)]),  # through the host
        ("h100", 8, Topology(8, 0, 1, 0), [("pcie", 8, 63)]),  # hidden by a hypervisor
        ("a6000", 3, Topology(3, 4, 2, 0), [("pcie", 3, 31)]),  # a pair and one alone
        ("a6000", 1, Topology(1, 0, 1, 0), [("pcie", 1, 31)]),
    ],
)
def test_links_are_those_of_the_matrix(
    accelerator: str, per_node: int, topology: Topology, tiers: list[tuple[str, int, float]]
) -> None:
    nodes = 18 if accelerator == "gb200" else 2
    usual = node_group(accelerator, nodes, per_node)
    *inside, outer = linked(usual, topology).network
    assert outer == usual.network[-1]
    found = [(t.name, t.domain_accelerators, t.bandwidth_bytes_per_s / 1e9) for t in inside]
    assert [(name, size, pytest.approx(rate, rel=0.03)) for name, size, rate in tiers] == found
