"""The catalog's accelerators, clusters and prices, read from their files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from cost_models.spec import AcceleratorSpec, NetworkTier

_DIRECTORY = Path(__file__).parent


@dataclass(frozen=True)
class TypicalNode:
    """The node an accelerator usually comes in."""

    accelerators: int
    domains: tuple[NetworkTier, ...]
    """The links among accelerators, fastest first; a domain may span nodes (NVL72, TPU)."""
    network: NetworkTier
    """The NICs."""
    host_link_bytes_per_s: float
    """PCIe or C2C, per accelerator and direction."""
    interconnect: str
    example: str
    coarse: str
    """What the links are taken as, where that is coarse; empty: they are as they are."""


@dataclass(frozen=True)
class AcceleratorEntry:
    """One accelerator of the catalog; `flags` are doubts and choices."""

    spec: AcceleratorSpec
    aliases: tuple[str, ...]
    driver_names: tuple[str, ...]
    year: int
    memory_basis: str
    ranks_per_package: int
    """Ranks of one printed device: 2 where the entry is a die or a core of a package of two."""
    node: TypicalNode
    sources: tuple[str, ...]
    flags: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.spec.id


@dataclass(frozen=True)
class ClusterEntry:
    """One preset: a node and its network; the number of nodes is the user's."""

    id: str
    name: str
    aliases: tuple[str, ...]
    accelerator: str
    nodes: int
    """If the user gives none."""
    nodes_per_unit: int
    """Nodes of what one counts: 18 in an NVL72 rack, 1 where one counts nodes."""
    network: tuple[NetworkTier, ...]
    """Above the node, from the NICs outward."""
    host_memory_bytes: float | None
    link_bytes_per_s: float | None
    """Of the fastest domain, where the node's is not that of the accelerator's typical one."""
    sources: tuple[str, ...]
    flags: tuple[str, ...]


def _json(name: str) -> dict[str, Any]:
    document = json.loads((_DIRECTORY / name).read_text(encoding="utf-8"))
    return cast(dict[str, Any], document)


@cache
def price_table() -> dict[str, Any]:
    return _json("prices.json")


@cache
def accelerator_entries() -> dict[str, AcceleratorEntry]:
    return {
        item["id"]: _accelerator_of(item) for item in _json("accelerators.json")["accelerators"]
    }


@cache
def cluster_entries() -> dict[str, ClusterEntry]:
    return {item["id"]: _cluster_of(item) for item in _json("clusters.json")["clusters"]}


@cache
def accelerator_ids() -> dict[str, str]:
    return {name: e.id for e in accelerator_entries().values() for name in (e.id, *e.aliases)}


@cache
def cluster_ids() -> dict[str, str]:
    return {name: e.id for e in cluster_entries().values() for name in (e.id, *e.aliases)}


def _tier(item: dict[str, Any]) -> NetworkTier:
    return NetworkTier(
        name=item["name"],
        domain_accelerators=item.get("accelerators"),
        bandwidth_bytes_per_s=item["bytes_per_s"],
        latency_s=item["latency_us"] * 1e-6,
        oversubscription=item.get("oversubscription", 1.0),
        topology=item.get("topology", "switch"),
    )


def _accelerator_of(item: dict[str, Any]) -> AcceleratorEntry:
    node, peak = item["node"], item["peak_flop_per_s"]
    return AcceleratorEntry(
        spec=AcceleratorSpec(
            id=item["id"],
            name=item["name"],
            vendor=item["vendor"],
            memory_bytes=item["memory_bytes"],
            memory_bytes_per_s=item["memory_bytes_per_s"],
            peak_bf16_flop_per_s=peak["bf16"],
            peak_fp16_flop_per_s=peak["fp16"],
            peak_fp8_flop_per_s=peak["fp8"],
            peak_fp4_flop_per_s=peak.get("fp4"),
            tdp_watts=item["tdp_watts"],
            efficiency_profile=item["efficiency_profile"],
            confidence=item["confidence"],
        ),
        aliases=tuple(item["aliases"]),
        driver_names=tuple(item["driver_names"]),
        year=item["year"],
        memory_basis=item["memory_basis"],
        ranks_per_package=item.get("ranks_per_package", 1),
        node=TypicalNode(
            accelerators=node["accelerators"],
            domains=tuple(_tier(domain) for domain in node["domains"]),
            network=_tier(node["network"]),
            host_link_bytes_per_s=node["host_link_bytes_per_s"],
            interconnect=node["interconnect"],
            example=node["example"],
            coarse=node.get("coarse", ""),
        ),
        sources=tuple(item["sources"]),
        flags=tuple(item["flags"]),
    )


def _cluster_of(item: dict[str, Any]) -> ClusterEntry:
    return ClusterEntry(
        id=item["id"],
        name=item["name"],
        aliases=tuple(item["aliases"]),
        accelerator=item["accelerator"],
        nodes=item["nodes"],
        nodes_per_unit=item.get("nodes_per_unit", 1),
        network=tuple(_tier(tier) for tier in item.get("network", ())),
        host_memory_bytes=item.get("host_memory_bytes"),
        link_bytes_per_s=item.get("link_bytes_per_s"),
        sources=tuple(item["sources"]),
        flags=tuple(item["flags"]),
    )
