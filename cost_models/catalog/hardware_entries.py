"""The catalog's accelerators, clusters and prices, read from their files."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from cost_models import plugins
from cost_models.catalog.names import normal
from cost_models.profiles import profiles
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
    provider: str = ""
    """Who rents it under this name; empty: nobody."""
    accelerators_per_node: int | None = None
    """None: as many as the accelerator's typical node has."""
    price_usd_per_hour: float | None = None
    """Of a node, on demand; None: the accelerator's price in the catalog."""
    prices_date: str = ""


def _json(name: str) -> dict[str, Any]:
    document = json.loads((_DIRECTORY / name).read_text(encoding="utf-8"))
    return cast(dict[str, Any], document)


@cache
def price_table() -> dict[str, Any]:
    return _json("prices.json")


@cache
def accelerator_entries() -> dict[str, AcceleratorEntry]:
    entries = map(checked_entry, _json("accelerators.json")["accelerators"])
    by_id = {entry.id: entry for entry in entries}
    names = {name for entry in by_id.values() for name in (entry.id, *entry.aliases)}

    def added(item: dict[str, Any]) -> AcceleratorEntry:
        entry = checked_entry(item)
        entry_names = {entry.id, *entry.aliases}
        plugins.require_unused_names(entry_names, names)
        if entry.spec.efficiency_profile not in ("", *profiles()):
            wrong = f"{entry.id}: no efficiency profile {entry.spec.efficiency_profile!r}"
            raise ValueError(f"{wrong}; leave it empty, or take {', '.join(sorted(profiles()))}")
        names.update(entry_names)
        return entry

    outside = plugins.rows("catalog/accelerators.json", "accelerators", added)
    return by_id | {entry.id: entry for entry in outside}


@cache
def cluster_entries() -> dict[str, ClusterEntry]:
    presets = map(_cluster_of, _json("clusters.json")["clusters"])
    return {entry.id: entry for entry in (*presets, *_instance_entries())}


@cache
def accelerator_ids() -> dict[str, str]:
    """The ids of accelerators by each of their names, which may also lack their hyphens."""
    names = {name: e.id for e in accelerator_entries().values() for name in (e.id, *e.aliases)}
    return {name.replace("-", ""): accelerator for name, accelerator in names.items()} | names


@cache
def cluster_ids() -> dict[str, str]:
    return {name: e.id for e in cluster_entries().values() for name in (e.id, *e.aliases)}


def _tier(item: dict[str, Any]) -> NetworkTier:
    return NetworkTier(
        name=item["name"],
        domain_accelerators=item.get("accelerators"),
        bandwidth_bytes_per_s=item["bytes_per_s"],
        latency_s=item["latency_us"] * 1e-6,
        collective_wait_s=item.get("collective_wait_us", 0.0) * 1e-6,
        oversubscription=item.get("oversubscription", 1.0),
        topology=item.get("topology", "switch"),
    )


class _Read(dict[str, Any]):
    """An object of an entry that knows which of its keys were not read."""

    def __init__(self, item: dict[str, Any]) -> None:
        super().__init__({key: self._inner(value) for key, value in item.items()})
        self.unread = set(item)

    @classmethod
    def _inner(cls, value: Any) -> Any:
        if isinstance(value, list):
            return [cls._inner(item) for item in value]
        return cls(value) if isinstance(value, dict) else value

    def __getitem__(self, key: str) -> Any:
        self.unread.discard(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.unread.discard(key)
        return super().get(key, default)

    def all_unread(self) -> set[str]:
        """The unread keys of the object and of those in it, among them any that no entry has."""
        lists = (value if isinstance(value, list) else [value] for value in self.values())
        inner = (child for values in lists for child in values if isinstance(child, _Read))
        return self.unread.union(*(child.all_unread() for child in inner))


def checked_entry(item: dict[str, Any]) -> AcceleratorEntry:
    """The entry of an object.  Raises ValueError, which names the entry and the key."""
    read = _Read(item)
    location = f"accelerators.json: {item.get('id', 'an entry without id')}"
    try:
        entry = _accelerator_of(read)
    except KeyError as error:
        unknown = difflib.get_close_matches(error.args[0], read.all_unread(), n=1)
        hint = f"; {unknown[0]} is no key" if unknown else ""
        raise ValueError(f"{location}: lacks {error.args[0]}{hint}") from None
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        key = ".".join(map(str, first["loc"]))
        raise ValueError(f"{location}: {key}: {first['msg']}, got {first['input']}") from None
    if unread := read.all_unread():
        raise ValueError(f"{location}: {', '.join(sorted(unread))} is no key")
    return entry


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
            large_gemm_fraction=item.get("large_gemm_fraction"),
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


def _instance_entries() -> Iterator[ClusterEntry]:
    """The rows of `instances.json`: a node of a provider each."""
    document = _json("instances.json")
    for provider in document["providers"]:
        for values in provider["instances"]:
            row = dict(zip(document["columns"], values, strict=True))
            yield _instance_of(row, provider, document["latency_source"])


def _instance_of(
    row: dict[str, Any], provider: dict[str, Any], latency_source: str
) -> ClusterEntry:
    per_node, gbit, price = (
        row["accelerators"],
        row["network_gbit_per_s"],
        row["price_usd_per_hour"],
    )
    tier = {
        "name": provider["network"],
        "latency_us": provider["latency_us"],
        "collective_wait_us": provider.get("collective_wait_us", 0.0),
    }
    network = [] if gbit is None else [tier | {"bytes_per_s": gbit * 1e9 / 8 / per_node}]
    memory_gib, nvme_tb = row["host_memory_gib"], row["nvme_tb"]
    parts = [f"{per_node}x {accelerator_entries()[row['accelerator']].spec.name}"]
    parts += [] if gbit is None else [f"{gbit:g} Gb/s"]
    parts += [] if nvme_tb is None else [f"{nvme_tb:g} TB NVMe"]
    parts += [] if price is None else [f"${price:.2f}/h ({provider['prices_date']})"]
    return ClusterEntry(
        id=normal(row["name"]),
        name=f"{row['name']}: {', '.join(parts)}",
        aliases=(),
        accelerator=row["accelerator"],
        nodes=1,
        nodes_per_unit=1,
        network=tuple(map(_tier, network)),
        host_memory_bytes=None if memory_gib is None else memory_gib * 2.0**30,
        link_bytes_per_s=None,
        sources=(*provider["sources"], latency_source),
        flags=(f"price: {provider['prices_basis']}", *provider["flags"]),
        provider=provider["provider"],
        accelerators_per_node=per_node,
        price_usd_per_hour=price,
        prices_date=provider["prices_date"],
    )
