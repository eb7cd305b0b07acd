"""The hardware catalog: complete, sourced, unambiguous; the shorthand refuses what is not one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from cost_models.catalog import hardware
from cost_models.catalog.hardware_entries import checked_entry
from cost_models.catalog.names import UnknownName, normal, resolve
from cost_models.spec import ClusterSpec

ACCELERATORS = [entry.id for entry in hardware.accelerators()]
PRESETS = [entry.id for entry in hardware.clusters()]

# Every part of the hardware survey, by the name it had there.
SURVEY = [
    "v100-sxm2-32gb",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a100-pcie-40gb",
    "a100-pcie-80gb",
    "a800-sxm-80gb",
    "h100-sxm-80gb",
    "h100-sxm-96gb-hbm2e-500w",
    "h100-pcie-80gb",
    "h100-nvl-94gb",
    "h800-sxm-80gb",
    "h20-96gb",
    "h200-sxm-141gb",
    "b200-sxm-180gb",
    "gb200-nvl72",
    "b300-sxm-288gb",
    "gb300-nvl72",
    "l40s",
    "a10g",
    "rtx-4090",
    "rtx-5090",
    "rtx-pro-6000-server",
    "mi250x",
    "mi300x",
    "mi325x",
    "mi355x",
    "ascend-910b1",
    "ascend-910b2",
    "ascend-910b3",
    "ascend-910b4",
    "ascend-910c",
    "gaudi2",
    "gaudi3",
    "tpu-v4",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "tpu-v7x",
    "trainium1",
    "trainium2",
    "trainium3",
]

# Cards of workstations, servers and desktops that people tune models on.
CARDS = [
    "v100-pcie-16gb", "v100-pcie-32gb", "titan-v", "quadro-gv100", "t4", "titan-rtx",
    "quadro-rtx-5000", "quadro-rtx-6000", "quadro-rtx-8000", "a10", "a16", "a30", "a40",
    "rtx-a4000", "rtx-a4500", "rtx-a5000", "rtx-a5500", "rtx-a6000", "rtx-3060", "rtx-3080-12gb",
    "rtx-3080-ti", "rtx-3090", "rtx-3090-ti", "rtx-4060-ti-16gb", "rtx-4070", "rtx-4070-ti-super",
    "rtx-4080", "rtx-4080-super", "rtx-5060-ti-16gb", "rtx-5070", "rtx-5070-ti", "rtx-5080", "l4",
    "l20", "l40", "rtx-2000-ada", "rtx-4000-ada", "rtx-4500-ada", "rtx-5000-ada", "rtx-6000-ada",
    "rtx-pro-4000", "rtx-pro-4500", "rtx-pro-5000", "rtx-pro-6000-workstation", "v100-sxm2-16gb",
    "gh200-96gb", "gh200-144gb", "gb10", "h200-nvl-141gb", "h800-pcie-80gb", "mi100", "mi210",
    "radeon-pro-w7800", "radeon-pro-w7900", "rx-7900-xtx", "radeon-ai-pro-r9700", "arc-pro-b60",
    "max-1550-stack",
]  # fmt: skip

HOSTILE = [
    "",
    " ",
    "x",
    "8x",
    "8x8x",
    "xh100",
    "0x8xh100",
    "8x0xh100",
    "-1x8xh100",
    "8x-8xh100",
    "1e9x8xh100",
    "8.5x8xh100",
    "99999999999999999999x8xh100",
    "1000000x1000000xh100",
    "9" * 100_000 + "x8xh100",
    "8x8x" + "h" * 1_000_000,
    "８x８xh100",
    "8×8×h100",
    "8x8xh100\n8x8xh100",
    "8x8xh100\x00",
    "8 x 8 x h100",
    "8x8xh1000",
    "8x12xh100",
    "12xh100",
    "0xdgx-h100",
    "1000000xtpu-v5p-pod",
    "8x8xdgx-h100",
    "9x16xgb200",
    "8x3xh100-nvl",
    "../../etc/passwd",
    "[" * 10_000,
]


def test_all_accelerators_of_the_survey_and_all_cards_resolve() -> None:
    assert len(SURVEY) == 41
    assert len({hardware.accelerator(name).id for name in SURVEY}) == 41
    assert ACCELERATORS[41:] == CARDS == [hardware.accelerator(name).id for name in CARDS]
    assert len(ACCELERATORS) == 99


@pytest.mark.parametrize(
    ("name", "bf16", "fp16"),
    [
        ("t4", None, 65.1e12),
        ("titan-rtx", None, 130.5e12),
        ("a10", 125e12, 125e12),
        ("a40", 149.7e12, 149.7e12),
        ("a6000", 154.8e12, 154.8e12),
        ("3090", 71.2e12, 71.2e12),  # 142 with fp16 accumulation, which training does not use
        ("4080", 97.5e12, 97.5e12),
        ("rtx-6000-ada", 364.2e12, 364.2e12),
        ("l40", 181e12, 181e12),
        ("gh200", 989.4e12, 989.4e12),
    ],
)
def test_peaks_are_those_that_nvidia_prints(name: str, bf16: float | None, fp16: float) -> None:
    """Dense, with fp32 accumulation."""
    spec = hardware.accelerator(name)
    assert spec.peak_fp16_flop_per_s == pytest.approx(fp16, rel=0.002)
    assert (spec.peak_bf16_flop_per_s is None) == (bf16 is None)


def test_cards_without_peer_access_say_so() -> None:
    """GeForce since Ampere: transfers between cards go through the host."""
    for name in CARDS:
        entry = hardware.accelerator_entry(name)
        geforce = entry.spec.name.startswith("GeForce")
        assert geforce == ("P2P disabled" in entry.node.interconnect), name
        assert geforce == any("P2P" in flag for flag in entry.flags), name


@pytest.mark.parametrize("name", ACCELERATORS)
def test_every_accelerator_states_its_sources_and_doubts(name: str) -> None:
    entry = hardware.accelerator_entry(name)
    assert entry.sources
    assert all(entry.sources)
    assert all(entry.flags)
    assert entry.memory_basis
    assert entry.spec.confidence in ("high", "medium", "low")
    assert entry.spec.peak_bf16_flop_per_s or entry.spec.peak_fp16_flop_per_s
    assert any("latency" in source for source in entry.sources)
    assert entry.node.domains


@pytest.mark.one_in(1, quick=3)
@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_states_its_sources_and_resolves(name: str) -> None:
    entry = hardware.cluster_entry(name)
    assert entry.sources
    assert all(entry.sources)
    spec = hardware.cluster(name)
    assert spec.groups[0].accelerator.id == hardware.accelerator(entry.accelerator).id
    assert spec.groups[0].nodes == entry.nodes
    assert entry.nodes % entry.nodes_per_unit == 0
    for alias in entry.aliases:
        assert hardware.cluster(alias) == spec


def test_names_are_unique_and_normal() -> None:
    accelerators = [n for entry in hardware.accelerators() for n in (entry.id, *entry.aliases)]
    presets = [n for entry in hardware.clusters() for n in (entry.id, *entry.aliases)]
    for names in (accelerators, presets):
        assert [name for name, count in Counter(names).items() if count > 1] == []
        assert names == [normal(name) for name in names]
    drivers = Counter(name for entry in hardware.accelerators() for name in entry.driver_names)
    assert max(drivers.values()) == 1


def test_a_name_of_both_kinds_means_the_same_part() -> None:
    accelerators = {n: e.id for e in hardware.accelerators() for n in (e.id, *e.aliases)}
    presets = {n: e for e in hardware.clusters() for n in (e.id, *e.aliases)}
    for name in accelerators.keys() & presets.keys():
        assert accelerators[name] == presets[name].accelerator


@pytest.mark.parametrize(
    "file", ["accelerators.json", "clusters.json", "instances.json", "prices.json"]
)
def test_data_files_speak_of_public_sources_only(file: str) -> None:
    text = (Path(hardware.__file__).parent / file).read_text(encoding="utf-8")
    json.loads(text)
    assert "/work/" not in text
    assert "hardware facts" not in text


def test_every_price_and_power_figure_has_a_source() -> None:
    document = json.loads((Path(hardware.__file__).parent / "prices.json").read_text())
    for name, price in document["prices"].items():
        assert hardware.accelerator(name).id == name
        assert price["sources"]
        assert price["lowest"] <= price["reserved_1y"] <= price["on_demand"]
        assert price["highest"] is None or price["on_demand"] <= price["highest"]
    for name, system in document["power"]["systems"].items():
        assert hardware.accelerator(name).id == name
        assert system["source"]
    assert document["pue"]["source"]
    assert document["failures_per_1000_node_days"]["source"]


@pytest.mark.one_in(1, quick=6)
@pytest.mark.parametrize("name", ACCELERATORS)
@pytest.mark.parametrize("per_node", [1, 2, 4, 8])
def test_tiers_nest_and_start_at_the_fastest_domain(name: str, per_node: int) -> None:
    group = hardware.node_group(name, 4, per_node)
    rates = [tier.bandwidth_bytes_per_s / tier.oversubscription for tier in group.network]
    assert rates == sorted(rates, reverse=True)
    domain = group.network[0].domain_accelerators
    typical = hardware.accelerator_entry(name).node.domains[0].domain_accelerators
    assert domain is not None
    assert typical is not None
    assert domain <= typical
    assert domain % per_node == 0 or per_node % domain == 0
    assert group.network[-1].domain_accelerators is None


def test_spot_values() -> None:
    h100 = hardware.accelerator("h100-sxm")
    assert h100.id == "h100-sxm-80gb"
    assert h100.peak_bf16_flop_per_s == 989.4e12  # dense; the datasheet prints the sparse rate
    assert h100.memory_bytes == 85_520_809_984  # 81559 MiB as the driver reports
    assert h100.memory_bytes_per_s == 3.35e12
    a100 = hardware.cluster("dgx-a100").groups[0]
    assert a100.network[0].bandwidth_bytes_per_s == 300e9
    assert a100.network[1].bandwidth_bytes_per_s == 25e9
    gcd = hardware.accelerator("mi250x")
    assert (gcd.id, gcd.peak_bf16_flop_per_s, gcd.memory_bytes) == ("mi250x-gcd", 191.5e12, 2**36)


def test_node_power_is_a_share_of_the_nameplate_or_follows_from_the_tdp() -> None:
    assert hardware.cluster("dgx-h100").groups[0].node_power_watts == 7752  # 0.76 of 10.2 kW
    assert hardware.cluster("mi300x").groups[0].node_power_watts == 8 * 750 * 1.4
    assert hardware.cluster("trn2").groups[0].node_power_watts is None  # no published power


def test_catalog_defaults() -> None:
    spec = hardware.cluster("8x8xh100-sxm")
    assert (spec.pue, spec.failures_per_1000_node_days) == (1.25, 4.0)
    assert spec.groups[0].price_usd_per_accelerator_hour == 2.95
    assert hardware.cluster("gaudi3").groups[0].price_usd_per_accelerator_hour is None


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "domain"),
    [
        ("8x8xh100-sxm", 8, 8, 8),
        (" 8X8XH100-SXM ", 8, 8, 8),
        ("24x4xh100-sxm", 24, 4, 4),
        ("1x1xh100", 1, 1, 1),
        ("2x16xv100", 2, 16, 8),
        ("64xh100", 8, 8, 8),
        ("3xh100", 1, 3, 3),
        ("72xgb200", 18, 4, 72),
        ("4xgb200-nvl72", 72, 4, 72),
        ("4x64xgb200", 4, 64, 64),  # of racks of 72
        ("8x36xgb200", 8, 36, 72),  # half a rack is no rack
        ("4xdgx-h100", 4, 8, 8),
        ("8x4090", 1, 8, 8),
        ("240x8xh100", 240, 8, 8),
        ("1x10xa40", 1, 10, 10),  # a board with more slots
    ],
)
def test_shorthand(text: str, nodes: int, per_node: int, domain: int) -> None:
    group = hardware.parse_shorthand(text).groups[0]
    assert (group.nodes, group.accelerators_per_node) == (nodes, per_node)
    assert group.network[0].domain_accelerators == domain
    assert hardware.cluster(text).groups == (group,)


@pytest.mark.parametrize(
    ("name", "chip", "nodes", "per_node"),
    [
        ("v5p-128", "tpu-v5p", 16, 4),  # TensorCores, two in a chip
        ("V4-16", "tpu-v4", 2, 4),
        ("v6e-256", "tpu-v6e", 32, 8),  # chips
        ("v5litepod-16", "tpu-v5e", 4, 4),
        ("tpu-v5p-8", "tpu-v5p", 1, 4),
    ],
)
def test_a_slice_of_tpus_by_its_type(name: str, chip: str, nodes: int, per_node: int) -> None:
    (group,) = hardware.cluster(name).groups
    assert group.accelerator.id == chip
    assert (group.nodes, group.accelerators_per_node) == (nodes, per_node)
    for wrong in ("v5p-7", "v6e-0", "v9-8"):
        with pytest.raises(UnknownName):
            hardware.cluster(wrong)


def test_a_part_of_a_mesh_has_a_part_of_the_links() -> None:
    whole = hardware.node_group("mi300x", 1).network[0]
    half = hardware.node_group("mi300x", 1, 4).network[0]
    assert half.bandwidth_bytes_per_s == whole.bandwidth_bytes_per_s * 3 / 7


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text)[:30])
def test_hostile_text_is_refused_in_one_short_message(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        hardware.parse_shorthand(text)
    assert len(str(refused.value)) < 1000
    with pytest.raises((ValueError, UnknownName)) as unknown:
        hardware.cluster(text)
    assert len(str(unknown.value)) < 1000


def test_a_cluster_has_at_most_a_million_accelerators() -> None:
    assert hardware.parse_shorthand("1000000x1xh100").accelerators == 1_000_000
    assert hardware.parse_shorthand("1000000xh100").accelerators == 1_000_000
    assert hardware.parse_shorthand("125000xdgx-h100").accelerators == 1_000_000
    for text in ("1000001x1xh100", "1000008xh100", "125001xdgx-h100"):
        with pytest.raises(ValueError, match="more than 1000000 accelerators"):
            hardware.parse_shorthand(text)


def test_an_accelerator_alone_is_one_typical_node() -> None:
    assert hardware.cluster("h100-sxm").accelerators == 8
    assert hardware.cluster("h100-sxm").name == "1x8xh100-sxm"
    assert hardware.cluster("h100-sxm", 3).accelerators == 24
    assert hardware.cluster("h100-sxm", 3).name == "3x8xh100-sxm"


def test_a_consumer_card_alone_is_one_card() -> None:
    for name in ("rtx-4090", "titan-rtx", "rx-7900-xtx"):
        assert hardware.cluster(name).accelerators == 1
        assert hardware.cluster(name).name == f"1x1x{name}"
        assert hardware.cluster(name, 1).accelerators == 8
        assert hardware.cluster(f"8x{name}").accelerators == 8


def test_an_unknown_name_comes_with_up_to_three_near_ones() -> None:
    ids = {f"abc{i}": f"id {i % 5}" for i in range(9)}
    with pytest.raises(UnknownName, match="unknown letter 'ABCX'") as unknown:
        resolve("ABCX", ids, "letter")
    assert (unknown.value.kind, unknown.value.name) == ("letter", "ABCX")
    assert len(unknown.value.nearest) == 3
    assert set(unknown.value.nearest) <= set(ids.values())
    # Half of the letters alike is near, less is not.
    with pytest.raises(UnknownName) as unknown:
        resolve("abcd", {"abxy": "half", "axyz": "quarter"}, "letter")
    assert unknown.value.nearest == ("half",)
    with pytest.raises(UnknownName) as unknown:
        resolve("zzz", ids, "letter")
    assert unknown.value.nearest == ()


def test_a_refusal_says_what_is_allowed_and_near() -> None:
    with pytest.raises(ValueError, match=r"did you mean .*h100-sxm-80gb.*allowed: 8x8xh100-sxm"):
        hardware.parse_shorthand("8x8xh100-sxn")
    with pytest.raises(UnknownName) as unknown:
        hardware.cluster("dgx-h10")
    assert "dgx-h100" in unknown.value.nearest
    with pytest.raises(UnknownName) as unknown:
        hardware.accelerator("h100-smx")
    assert "h100-sxm-80gb" in unknown.value.nearest


SIZES = st.one_of(st.integers(0, 9), st.sampled_from(["-1", "1e3", " 2 ", "8.0", "100000", "x"]))
NAMES = st.one_of(
    st.sampled_from([*ACCELERATORS, *PRESETS, "H100", " dgx-h100", "gb200_nvl72", "h10"]),
    st.text(max_size=8),
)
SHORTHAND = st.one_of(
    NAMES,
    st.builds("{}x{}".format, SIZES, NAMES),
    st.builds("{}x{}x{}".format, SIZES, SIZES, NAMES),
)


@settings(max_examples=50)
@given(SHORTHAND.filter(lambda text: normal(text) != hardware.LOCAL))
@example("8xh100")
@example("\x00")
def test_any_text_gives_a_cluster_or_a_plain_error(text: str) -> None:
    spec, refusal = None, ""
    try:
        spec = hardware.cluster(text)
    except (ValueError, UnknownName) as error:
        refusal = str(error)
    event("refused" if refusal else "a cluster")
    assert isinstance(spec, ClusterSpec) or 0 < len(refusal) < 1000


def test_nodes_of_a_preset_are_the_users() -> None:
    assert hardware.cluster("llama-3-24k").accelerators == 24_576
    assert hardware.cluster("llama-3-24k", 2048).accelerators == 16_384
    assert [t.oversubscription for t in hardware.cluster("llama-3-24k").groups[0].network] == [
        1,
        1,
        7,
    ]
    for nodes in (0, -1, 10**30):
        with pytest.raises(ValueError, match="nodes"):
            hardware.cluster("dgx-h100", nodes)
        with pytest.raises(ValueError, match="nodes"):
            hardware.cluster("h100", nodes)
    with pytest.raises(ValueError, match="nodes"):
        hardware.cluster("8x8xh100", 4)


def test_importing_the_catalog_reads_no_data() -> None:
    code = (
        "import sys, cost_models.catalog; "
        "assert not {'json', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"memory_bytes_per_s": None, "memory_bytes_per_sec": 1e12},
         "lacks memory_bytes_per_s; memory_bytes_per_sec is no key"),
        ({"aliasses": []}, "aliasses is no key"),
        ({"peak_flop_per_s": {"bf16": 100, "fp16": None, "fp8": None}},
         "peak_bf16_flop_per_s: Input should be greater than or equal to 1000000, got 100"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named_with_its_key(wrong: dict[str, Any], says: str) -> None:
    first = json.loads(Path(hardware.__file__).with_name("accelerators.json").read_text())[
        "accelerators"
    ][0]
    item = {key: value for key, value in {**first, **wrong}.items() if value is not None}
    with pytest.raises(ValueError, match=re.escape(f"accelerators.json: {first['id']}: {says}")):
        checked_entry(item)
