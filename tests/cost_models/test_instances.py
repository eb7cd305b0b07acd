"""Instances of cloud providers, found by their own names."""

from __future__ import annotations

from collections import Counter

import pytest

from cost_models.catalog import hardware
from cost_models.catalog.names import UnknownName

INSTANCES = {entry.name.partition(":")[0]: entry for entry in hardware.clusters() if entry.provider}


@pytest.mark.one_in(1, quick=6)
@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_is_found_by_the_providers_name_in_any_case_with_or_without_a_count(
    name: str,
) -> None:
    entry = INSTANCES[name]
    one = hardware.cluster(name)
    assert (one.groups[0].nodes, one.accelerators) == (1, entry.accelerators_per_node)
    assert one.groups[0].accelerator.id == entry.accelerator
    assert entry.prices_date
    for text in (name.upper(), f" {name.lower()} ", f"1x{name}"):
        assert hardware.cluster(text) == one
    four = hardware.cluster(f"4X{name}")
    assert four == hardware.parse_shorthand(f"4x{name}") == hardware.cluster(name, 4)
    assert four.groups[0] == one.groups[0].model_copy(
        update={"nodes": 4, "network": four.groups[0].network}
    )
    for text in (f"0x{name}", f"-1x{name}", f"8x8x{name}", f"99999999x{name}", f"1000001x{name}"):
        with pytest.raises(ValueError, match="cluster") as refused:
            hardware.parse_shorthand(text)
        assert len(str(refused.value)) < 1000
    misspelled = name[:-1] + ("y" if name[-1] != "y" else "z")
    with pytest.raises((UnknownName, ValueError), match="did you mean"):
        hardware.cluster(misspelled)


def test_there_are_instances_of_every_large_provider() -> None:
    providers = Counter(entry.provider for entry in INSTANCES.values())
    assert len(INSTANCES) == 188
    assert {"AWS", "GCP", "Azure", "OCI", "Lambda", "Nebius", "CoreWeave", "Crusoe"} <= set(
        providers
    )


def test_an_instance_has_its_own_accelerators_network_memory_and_price() -> None:
    """3.2 Tb/s of a node are 50 GB/s for each of 8; $55.04 are $6.88 for each."""
    (p5,) = hardware.cluster("4xp5.48xlarge").groups
    assert (p5.nodes, p5.accelerators_per_node, p5.accelerator.id) == (4, 8, "h100-sxm-80gb")
    assert [tier.name for tier in p5.network] == ["nvlink", "efa"]
    assert p5.network[1].bandwidth_bytes_per_s == 50e9
    assert p5.host_memory_bytes == 2**41
    assert p5.price_usd_per_accelerator_hour == 6.88
    (one,) = hardware.cluster("g6e.xlarge").groups
    assert (one.accelerators_per_node, one.price_usd_per_accelerator_hour) == (1, 1.861)
    assert hardware.cluster_entry("g6e.xlarge").name.startswith(
        "g6e.xlarge: 1x L40S 48GB, 2.5 Gb/s"
    )
    # Without a price of its own: the median of the accelerator.
    (p5e,) = hardware.cluster("p5e.48xlarge").groups
    assert p5e.price_usd_per_accelerator_hour == hardware.price_usd_per_hour("h200-sxm-141gb")
    # Without a network of its own: the accelerator's typical one.
    typical = hardware.accelerator_entry("l40s").node.network
    assert hardware.cluster("l40s-48gb.8x").groups[0].network[1] == typical


def test_a_counted_name_may_begin_with_a_number_itself() -> None:
    (group,) = hardware.cluster("2x1x_A100-80GB_SECURE").groups
    assert (group.nodes, group.accelerators_per_node) == (2, 1)
    (group,) = hardware.cluster("3x2x_A100-80GB_SECURE").groups
    assert (group.nodes, group.accelerators_per_node) == (3, 2)
