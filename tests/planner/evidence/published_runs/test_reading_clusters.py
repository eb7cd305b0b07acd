"""GPU names and interconnect texts as sources print them."""

from __future__ import annotations

import pytest

from planner.evidence.published_runs.clusters import accelerator_id, cluster_for
from planner.evidence.published_runs.interconnect import nic_bytes_per_s
from planner.evidence.published_runs.runs import Run, run_of

GIGABIT = 1e9 / 8


@pytest.mark.parametrize(
    ("printed", "part"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("H100SXM5", "h100-sxm-80gb"),
        ("128 x H100", "h100-sxm-80gb"),
        ("H100 PCIe", "h100-pcie-80gb"),
        ("H100 NVL 94GB", "h100-nvl-94gb"),
        ("H100 SXM 94/96GB HBM2e 500W", "h100-sxm-96gb-hbm2e-500w"),
        ("HGX H200", "h200-sxm-141gb"),
        ("H800", "h800-sxm-80gb"),
        ("H20", "h20-96gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100 40G", "a100-sxm-40gb"),
        ("DGX-A100 (80 GB)", "a100-sxm-80gb"),
        ("A100x8", "a100-sxm-80gb"),
        ("A100 PCIe (80GB inferred)", "a100-pcie-80gb"),
        ("A800 80GB", "a800-sxm-80gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("B200 SXM (memory variant not stated)", "b200-sxm-180gb"),
        ("DGX B300", "b300-sxm-288gb"),
        ("GB200 NVL72", "gb200-nvl72"),
        ("NVIDIA DGX GB300", "gb300-nvl72"),
        ("8xMI300X OAM", "mi300x"),
        ("AMD Instinct MI-300X 192GB HBM3", "mi300x"),
        ("MI325X", "mi325x"),
        ("MI355X 288GB", "mi355x"),
        ("MI250X (GCD)", "mi250x-gcd"),
        ("Gaudi2 96GB", "gaudi2"),
        ("Gaudi 3", "gaudi3"),
        ("TPU v5p", "tpu-v5p"),
        ("Trn2", "trainium2"),
        ("AWS Trainium", "trainium1"),
        ("Trainium 3", "trainium3"),
        ("Ascend 910B2", "ascend-910b2"),
        ("RTX 4090 24GB", "rtx-4090"),
        ("L40S 48GB", "l40s"),
    ],
)
def test_a_printed_name_means_a_part_of_the_catalog(printed: str, part: str) -> None:
    assert accelerator_id(printed).value == part


@pytest.mark.parametrize(
    ("printed", "part"), [("GH200 480GB", "gh200-96gb"), ("Ascend 910B", "ascend-910b3")]
)
def test_a_part_beside_the_catalog_is_taken_as_its_nearest(printed: str, part: str) -> None:
    found = accelerator_id(printed)
    assert found.value == part
    assert "not in the catalog" in found.assumptions[0] or "taken as" in found.assumptions[0]


@pytest.mark.parametrize("printed", ["Gaudi HL-205", "K80", "abacus", ""])
def test_what_is_too_far_from_the_catalog_is_refused(printed: str) -> None:
    with pytest.raises(ValueError, match=r"not in the catalog|not stated"):
        accelerator_id(printed)


@pytest.mark.parametrize(
    ("text", "gigabits"),
    [
        ("400G InfiniBand NDR", 400),
        ("8x400 Gbps RoCE v2", 400),
        ("EFA 3.2 Tbps", 400),
        ("4x200Gb/s per node", 100),
        ("1.6 Tb/s per node", 200),
        ("NVLink5 + 8x ConnectX-7 400", 400),
        ("Slingshot-11 4x200", 100),
        ("PCIe 4.0 x16, 100 GbE", 12.5),
        ("800 Gbps per node", 100),
        ("NVLink 900 GB/s; 400 Gb/s IB per GPU", 400),
        ("NVLink intra 600GB/s, 8 x 200 Gbps HDR IB", 200),
        ("intra-node NVLink 900GB/s inter-node IB 400Gb/s", 400),
        ("25 GB/s per GPU", 200),
        ("InfiniBand 4x EDR", 50),
        ("dual-rail EDR", 25),
        ("NVLink3, 4 NICs of 200 Gb/s", 100),
        ("8x NDR200", 200),
        ("2 x 200 Gbps per GPU", 400),
        ("NVLink intra; 4x Omni-Path 100Gb/s links per node (Jean Zay)", 50),
        ("8 x 400 Gb/s NDR InfiniBand (per node)", 400),
    ],
)
def test_an_interconnect_states_bits_per_accelerator(text: str, gigabits: float) -> None:
    assert nic_bytes_per_s(text, 8) == pytest.approx(gigabits * GIGABIT)


@pytest.mark.parametrize(
    "text",
    ["", "NVLink5 single node", "NVL72 single rack", "EFA", "IB", "8x HDR/NDR InfiniBand per node"],
)
def test_a_text_without_a_rate_says_nothing(text: str) -> None:
    assert nic_bytes_per_s(text, 8) is None


def row(**cells: str) -> Run:
    return run_of({"id": "r", "gpu": "H100", "n_gpus": "64", **cells})


def test_a_job_on_racks_has_equal_parts_of_each() -> None:
    domain = {
        ranks: cluster_for(row(gpu="GB200 NVL72", n_gpus=str(ranks)))
        .value.groups[0]
        .network[0]
        .domain_accelerators
        for ranks in (64, 72, 256, 2304)
    }
    assert domain == {64: 64, 72: 72, 256: 64, 2304: 72}


def test_a_row_that_counts_a_rack_as_a_node_is_the_same_cluster() -> None:
    by_rack = cluster_for(row(gpu="GB300 NVL72", gpus_per_node="72", n_gpus="144")).value
    by_node = cluster_for(row(gpu="GB300 NVL72", gpus_per_node="4", n_gpus="144")).value
    assert by_rack == by_node


def test_packages_of_two_are_two_ranks_where_the_degrees_say_so() -> None:
    cells = {"gpu": "MI250X", "n_gpus": "64", "gpus_per_node": "4", "tp": "8", "pp": "1"}
    packages = cluster_for(row(**cells, dp="16"))
    assert packages.value.accelerators == 128
    assert packages.value.groups[0].accelerators_per_node == 8
    assert cluster_for(row(**cells, dp="8")).value.accelerators == 64


def test_a_printed_capacity_is_the_parts_own() -> None:
    found = cluster_for(row(gpu="H100 64GB custom"))
    assert found.value.groups[0].accelerator.memory_bytes == 64 * 2**30
    assert any("64 GB as printed" in note for note in found.assumptions)


@pytest.mark.parametrize("cells", [{"n_gpus": "0"}, {"n_gpus": "2000000"}])
def test_a_cluster_needs_accelerators(cells: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="n_gpus"):
        cluster_for(row(**cells))


@pytest.mark.parametrize("text", ["900000000 Gb/s InfiniBand", "8x 0.0001 Gb/s Ethernet"])
def test_a_rate_of_no_network_is_listed_and_the_typical_one_taken(text: str) -> None:
    stated, typical = cluster_for(row(interconnect=text)), cluster_for(row())
    assert stated.value.groups[0].network == typical.value.groups[0].network
    assert any("no network's rate" in note for note in stated.assumptions)
