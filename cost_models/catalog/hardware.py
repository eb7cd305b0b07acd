"""Accelerators and clusters by name: the catalog's hardware, and the shorthand for it.

Data: `accelerators.json`, `clusters.json`, `instances.json`, `prices.json`, each number with its
source, in bytes, bytes/s per accelerator and direction, FLOP/s (dense), watts and microseconds;
instances as their providers print them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NoReturn, cast

from cost_models.catalog.hardware_entries import (
    AcceleratorEntry,
    ClusterEntry,
    accelerator_entries,
    accelerator_ids,
    cluster_entries,
    cluster_ids,
    price_table,
)
from cost_models.catalog.names import UnknownName, normal, resolve
from cost_models.spec import AcceleratorSpec, ClusterSpec, NetworkTier, NodeGroup

FORMS = (
    "8x8xh100-sxm (nodes x accelerators per node x accelerator)",
    "64xh100-sxm (accelerators in typical nodes)",
    "4xdgx-h100 or 4xp5.48xlarge (nodes, racks or pods of a preset or instance)",
    "v5p-128 (a TPU slice)",
    "a preset or instance",
    "local",
)
LOCAL = "local"
# How the names of cards begin that people have at home, mostly one of them.
CONSUMER_CARDS = ("GeForce ", "TITAN ", "Radeon RX ")

_SHORTHAND = re.compile(r"([0-9]+)x(?:([0-9]+)x)?(.+)")
# A TPU slice by its accelerator type: v5p-128, v6e-256.
_SLICE = re.compile(r"(?:tpu-?)?(v[0-9]\w*)-([0-9]{1,7})")
# TensorCores of a chip where a type's number counts these and not chips
# (docs.cloud.google.com/tpu/docs/supported-tpu-configurations).
_COUNTED_CORES = {"tpu-v4": 2, "tpu-v5p": 2}
_MAX_TEXT = 200
MOST_ACCELERATORS = 1_000_000  # of a ClusterSpec


def accelerator(name: str) -> AcceleratorSpec:
    """The accelerator of that id or alias.  Raises UnknownName."""
    return accelerator_entry(name).spec


def accelerator_entry(name: str) -> AcceleratorEntry:
    """The catalog entry of that id or alias.  Raises UnknownName."""
    return accelerator_entries()[resolve(name, accelerator_ids(), "accelerator")]


def accelerators() -> tuple[AcceleratorEntry, ...]:
    return tuple(accelerator_entries().values())


def cluster_entry(name: str) -> ClusterEntry:
    """The preset of that id or alias.  Raises UnknownName."""
    return cluster_entries()[resolve(name, cluster_ids(), "cluster")]


def clusters() -> tuple[ClusterEntry, ...]:
    return tuple(cluster_entries().values())


def node_group(
    accelerator_name: str,
    nodes: int,
    accelerators_per_node: int | None = None,
    *,
    network: tuple[NetworkTier, ...] = (),
    host_memory_bytes: float | None = None,
    link_bytes_per_s: float | None = None,
) -> NodeGroup:
    """Equal nodes of a catalog accelerator, with its links, price and power.

    The first tier is the fastest domain of the accelerator, also where it holds only one.  The
    others follow outward: `network`, or the NICs of the typical node.  Raises UnknownName, and
    ValueError where the domains do not divide the node.
    """
    entry = accelerator_entry(accelerator_name)
    node, spec = entry.node, entry.spec
    per_node = node.accelerators if accelerators_per_node is None else accelerators_per_node
    domains = [_equal_parts(tier, per_node, nodes) for tier in _domains(entry, per_node)]
    if link_bytes_per_s is not None:
        domains[0] = domains[0].model_copy(update={"bandwidth_bytes_per_s": link_bytes_per_s})
    return NodeGroup(
        accelerator=spec,
        nodes=nodes,
        accelerators_per_node=per_node,
        network=(*domains, *(network or (node.network,))),
        host_memory_bytes=host_memory_bytes,
        host_link_bytes_per_s=node.host_link_bytes_per_s,
        price_usd_per_accelerator_hour=price_usd_per_hour(spec.id),
        node_power_watts=_node_power_watts(spec, per_node),
    )


def cluster(name: str, nodes: int | None = None) -> ClusterSpec:
    """A cluster from a preset, an accelerator (in typical nodes), a shorthand or 'local'.

    The bare name of a consumer card is one card, that of any other accelerator a typical node.
    `nodes` counts nodes, of a preset or an accelerator.  Raises UnknownName, or ValueError.
    """
    key = normal(name)
    if key == LOCAL:
        if nodes not in (None, 1):
            raise ValueError(f"local is one node, got {nodes}")
        return local_cluster()
    return _named_cluster(name, nodes)


@lru_cache(maxsize=256)  # requests name few, and one that is the same object is compared at once
def _named_cluster(name: str, nodes: int | None) -> ClusterSpec:
    key = normal(name)
    if key in cluster_ids():
        return _preset(cluster_entry(key), nodes)
    if key in accelerator_ids():
        group = node_group(key, 1 if nodes is None else nodes, _per_node_of_a_bare_name(key, nodes))
        return cluster_of(f"{nodes or 1}x{group.accelerators_per_node}x{key}", group)
    if nodes is None and (slice_of := _slice(key)):
        return parse_shorthand(slice_of)
    if not re.match(r"[0-9]+x", key):
        known = {**cluster_ids(), **accelerator_ids(), LOCAL: LOCAL}
        raise UnknownName("cluster", name[:_MAX_TEXT], _nearest(key, known))
    if nodes is not None:
        raise ValueError(f"{key[:_MAX_TEXT]!r} already says how many nodes, got nodes {nodes} too")
    return parse_shorthand(name)


def _slice(key: str) -> str:
    """The shorthand of a TPU slice, by its chips; empty for any other name."""
    match = _SLICE.fullmatch(key)
    chip = (
        accelerator_ids().get(f"tpu-{match[1]}") or accelerator_ids().get(match[1])
        if match
        else None
    )
    if match is None or chip is None:
        return ""
    chips, rest = divmod(int(match[2]), _COUNTED_CORES.get(chip, 1))
    return "" if rest or not chips else f"{chips}x{chip}"


def _per_node_of_a_bare_name(key: str, nodes: int | None) -> int | None:
    """One card of those that people have at home; None: as many as a typical node has."""
    consumer = accelerator_entry(key).spec.name.startswith(CONSUMER_CARDS)
    return 1 if consumer and nodes is None else None


def _refuse_too_many(text: str, accelerators: int) -> None:
    if accelerators > MOST_ACCELERATORS:
        _refuse(text, f"more than {MOST_ACCELERATORS} accelerators")


def parse_shorthand(text: str) -> ClusterSpec:
    """A cluster from '8x8xh100-sxm', '64xh100-sxm' or '4xdgx-h100'.

    Two numbers are nodes and accelerators per node.  One number counts the units of a preset
    (nodes, of '4xp5.48xlarge'; racks of 'gb200-nvl72'; pods), else accelerators in typical nodes:
    whole ones, or a part of a single one.  Raises ValueError with the allowed forms and the
    nearest names.
    """
    key = normal(text)
    match = _SHORTHAND.fullmatch(key) if len(key) <= _MAX_TEXT else None
    if match is None:
        _refuse(text, "not a cluster")
    first, second, name = match.groups()
    if max(len(first), len(second or "")) > 7:
        _refuse_too_many(text, MOST_ACCELERATORS + 1)
    count, counted = int(first), key[len(first) + 1 :]
    if count < 1:
        _refuse(text, "the first number must be >= 1")
    if counted in cluster_ids():  # first, since an instance's name may begin with a number
        return _counted_preset(text, cluster_entry(counted), count)
    if second is not None:
        per_node = int(second)
        if per_node < 1:
            _refuse(text, "accelerators per node must be >= 1")
        if name not in accelerator_ids():
            _refuse(text, f"unknown accelerator {name!r}", _nearest(name, accelerator_ids()))
        _refuse_too_many(text, count * per_node)
        return cluster_of(key, node_group(name, count, per_node))
    if name not in accelerator_ids():
        known = {**cluster_ids(), **accelerator_ids()}
        _refuse(text, f"unknown accelerator or preset {name!r}", _nearest(name, known))
    _refuse_too_many(text, count)
    typical = accelerator_entry(name).node.accelerators
    if count > typical and count % typical:
        _refuse(text, f"{count} is not a multiple of the {typical} accelerators of a node")
    return cluster_of(key, node_group(name, max(count // typical, 1), min(count, typical)))


def _counted_preset(text: str, entry: ClusterEntry, units: int) -> ClusterSpec:
    typical = accelerator_entry(entry.accelerator).node.accelerators
    per_unit = entry.nodes_per_unit * (entry.accelerators_per_node or typical)
    _refuse_too_many(text, units * per_unit)
    return _preset(entry, units * entry.nodes_per_unit)


def cluster_of(name: str, *groups: NodeGroup) -> ClusterSpec:
    """A cluster of these groups with the catalog's PUE and failure rate."""
    defaults = price_table()
    return ClusterSpec(
        name=name,
        groups=groups,
        pue=defaults["pue"]["default"],
        failures_per_1000_node_days=defaults["failures_per_1000_node_days"]["default"],
    )


def prices_date() -> str:
    """Year and month of the latest evidence for the catalog's prices."""
    return str(price_table()["date"])


def local_cluster() -> ClusterSpec:
    """The machine this runs on: its GPUs if the catalog knows them, otherwise its CPU cores."""
    from cost_models.catalog import local  # measures the CPU, which only this needs

    return local.cluster()


def _preset(entry: ClusterEntry, nodes: int | None) -> ClusterSpec:
    group = node_group(
        entry.accelerator,
        entry.nodes if nodes is None else nodes,
        entry.accelerators_per_node,
        network=entry.network,
        host_memory_bytes=entry.host_memory_bytes,
        link_bytes_per_s=entry.link_bytes_per_s,
    )
    if entry.price_usd_per_hour is not None:
        price = entry.price_usd_per_hour / group.accelerators_per_node
        group = group.model_copy(update={"price_usd_per_accelerator_hour": price})
    return cluster_of(entry.id, group)


def _domains(entry: AcceleratorEntry, per_node: int) -> list[NetworkTier]:
    """The tiers inside the fastest domains when a node holds `per_node` accelerators.

    A smaller node cuts a domain that does not span nodes; of a mesh it also cuts the links.  So do
    whole trays that fill a rack only in part: 64 of 72.  More cards over PCIe share one domain.
    """
    per_node = max(per_node, 1)  # NodeGroup refuses less, with the path
    typical = entry.node.accelerators
    tiers: list[NetworkTier] = []
    for tier in entry.node.domains:
        size = cast(int, tier.domain_accelerators)
        bandwidth = tier.bandwidth_bytes_per_s
        part_of_rack = size > typical and 2 * per_node > size and per_node % typical == 0
        if per_node < size and (size <= typical or part_of_rack):
            if tier.topology == "mesh" and per_node > 1:
                bandwidth *= (per_node - 1) / (size - 1)
            size = per_node
        elif per_node % size and size % per_node:
            if tier.name != "pcie":
                raise ValueError(
                    f"{per_node} accelerators per node do not fit the {tier.name} domain of {size} "
                    f"{entry.id}"
                )
            size = per_node  # a board with more slots
        if not tiers or size > cast(int, tiers[-1].domain_accelerators):
            cut = {"domain_accelerators": size, "bandwidth_bytes_per_s": bandwidth}
            tiers.append(tier.model_copy(update=cut))
    return tiers


def _equal_parts(tier: NetworkTier, per_node: int, nodes: int) -> NetworkTier:
    """A domain that spans nodes as a job uses it: equal parts, 64 of a rack's 72 for 256."""
    size, ranks = cast(int, tier.domain_accelerators), per_node * nodes
    if not 0 < per_node < size:
        return tier
    domain_sizes = [n for n in range(per_node, min(size, ranks) + 1, per_node) if ranks % n == 0]
    # Racks that a job would use by half or less are used as they are.
    if ranks < size or (ranks % size and domain_sizes and 2 * domain_sizes[-1] > size):
        return tier.model_copy(update={"domain_accelerators": domain_sizes[-1]})
    return tier


def price_usd_per_hour(accelerator_id: str) -> float | None:
    """On-demand price in USD per accelerator hour, None if the catalog has none."""
    price = price_table()["prices"].get(accelerator_id)
    return None if price is None else float(price["on_demand"])


def _node_power_watts(spec: AcceleratorSpec, per_node: int) -> float | None:
    """Typical draw of a node in training, W: a share of the nameplate, else from the TDP."""
    power = price_table()["power"]
    system = power["systems"].get(spec.id)
    if system is not None:
        watts = system["max_watts"] / system["accelerators"] * power["typical_share"]
    elif spec.tdp_watts is not None:
        watts = spec.tdp_watts * power["tdp_factor"]
    else:
        return None
    return float(round(watts * per_node))


def _refuse(text: str, reason: str, nearest: tuple[str, ...] = ()) -> NoReturn:
    hint = f"; did you mean {', '.join(nearest)}?" if nearest else ""
    shown = text if len(text) <= 60 else text[:60] + "..."
    raise ValueError(f"cluster {shown!r}: {reason}{hint}; allowed: {', '.join(FORMS)}")


def _nearest(name: str, names: Mapping[str, str]) -> tuple[str, ...]:
    try:
        return (resolve(name, names, ""),)
    except UnknownName as error:
        return error.nearest
