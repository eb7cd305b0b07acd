"""Seconds of one collective or message on the tiers of a cluster.

The bandwidth of a group grows with its members per domain: on every tier that the group crosses,
each inner domain sends over the links of its members alone, since sibling groups use the other
links at the same time (derived; checked against NVIDIA's and AWS's published all-reduce rates, see
the tests).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import all_of, maximum, minimum, where
from cost_models.placement import Axis, members
from cost_models.profiles import CollectiveTable, EfficiencyProfile, FloatArray
from cost_models.sources import Array, formula
from cost_models.spec import NetworkTier

# Bytes over the slowest link per byte of payload, by nccl-tests' convention of payload.
_BUS_PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
# Seconds that one more rank adds to a ring inside a domain (LL128 NVLink step, nccl-tuning).
_RING_STEP_S = 1.9e-6
# Between nodes a collective fills its links slowly: below RAMP_BYTES it takes as long as one larger
# by RAMP_SHARE; a step of a tree waits for a chunk besides its latency.  From the all-reduce rates
# by size of 4 to 512 nodes of H100s (arXiv 2411.13055, read off; NVIDIA GTC24 S62129).
RAMP_SHARE, RAMP_BYTES = 0.35, 200e6
TREE_STEP, CHUNK_S, CHUNK_PAYLOAD_BYTES = 1.4, 16e-6, 64 * 2**20
# Axes of a torus, and ranks along one of the cubes that it is built of (Google, TPU v5p and TPU7x).
TORUS_AXES, TORUS_SIDE = {"torus-2d": 2, "torus-3d": 3}, 4
_TINY_S = 1e-30  # keeps a division by "no time" finite where the result is not used


@dataclass(frozen=True)
class _Grid:
    """A measured table as log2 of seconds over index positions in ranks and bytes."""

    log_ranks: FloatArray
    log_bytes: FloatArray
    log_seconds: FloatArray
    floor_s: FloatArray

    @classmethod
    def of(cls, table: CollectiveTable) -> _Grid:
        return cls(
            np.log2(table.ranks),
            np.log2(table.bytes),
            np.log2(table.seconds),
            table.seconds.min(axis=1),
        )


class Fabric:
    """The tiers of a node group with the measured rates that apply to them.

    measured_bytes_per_s: link bandwidth of the machine whose collectives the profile holds.
    """

    def __init__(
        self,
        tiers: tuple[NetworkTier, ...],
        profile: EfficiencyProfile,
        measured_bytes_per_s: float,
    ) -> None:
        self.tiers, self.profile = tiers, profile
        self.link_scale = measured_bytes_per_s / tiers[0].bandwidth_bytes_per_s
        self.grids = {op: _Grid.of(table) for op, table in profile.collectives.items()}
        self.message = profile.measured.message if profile.measured else None

    def transfer(
        self, op: str, payload_bytes: Array, axis: Axis, all_to_all_fraction: float | None = None
    ) -> Array:
        """Seconds of a collective over a group, or of a `send` to its next member.

        The cost model prices all transfers here, so that they can also be counted (traffic.py).
        """
        if op == "send":
            return send_s(self, payload_bytes, axis)
        return collective_s(self, op, payload_bytes, axis, all_to_all_fraction)


@dataclass(frozen=True)
class Crossing:
    """A group on the links that leave the domains of the tier inside `tier`.

    inner, outer: its members in one of those domains, and in one of the tier's own; used: whether
    it needs these links at all; link_bytes_per_s: an accelerator's part of them, shared as they
    are oversubscribed.
    """

    tier: NetworkTier
    inner: Array
    outer: Array
    used: Array
    link_bytes_per_s: Array

    @property
    def step_s(self) -> float:
        """Seconds of one step of a collective over these links."""
        return self.tier.latency_s + self.tier.collective_wait_s


def crossings(fabric: Fabric, axis: Axis) -> Iterator[Crossing]:
    """Every tier outside the fastest domain, from the inside out."""
    inner = 1.0 * members(axis, fabric.tiers[0].domain_accelerators)
    for tier in fabric.tiers[1:]:
        outer = 1.0 * members(axis, tier.domain_accelerators)
        link = tier.bandwidth_bytes_per_s / _shared(fabric, tier, axis)
        yield Crossing(tier, inner, outer, inner < axis.size, link)
        inner = outer


@formula("1", "nccl-tests")
def bus_factor(passes: float, ranks: Array) -> Array:
    """Bytes over the slowest link per byte of payload: passes (n-1)/n."""
    return passes * (ranks - 1.0) / ranks


@formula("s", "nccl-tests", "derived")
def ring_s(payload_bytes: Array, factor: Array, bus_bytes_per_s: Array, latency_s: Array) -> Array:
    """Seconds of a bandwidth-optimal collective: latency + payload x factor / bus bandwidth."""
    return latency_s + payload_bytes * factor / bus_bytes_per_s


@formula("s", "derived")
def message_s(payload_bytes: Array, link_bytes_per_s: Array, latency_s: Array) -> Array:
    """Seconds of one point-to-point message."""
    return latency_s + payload_bytes / link_bytes_per_s


@formula("s", "nccl-tests", "aiconfigurator", "derived")
def collective_s(
    fabric: Fabric,
    op: str,
    payload_bytes: Array,
    axis: Axis,
    all_to_all_fraction: float | None = None,
) -> Array:
    """Seconds of `op` over a process group; 0 for a group of one.

    payload_bytes by nccl-tests' convention: the full buffer (all_reduce), the gathered output
    (all_gather), the full input (reduce_scatter), what one rank sends in all (all_to_all).
    all_to_all_fraction: of the NICs, where not that of NCCL's (DeepEP reaches 0.86 to 0.92).
    Not modelled: other traffic than that of the sibling groups, adaptive routing, SHARP.
    """
    if all_of(axis.size == 1):
        return 0.0
    ranks = np.asarray(axis.size, dtype=np.float64)
    payload = np.asarray(payload_bytes, dtype=np.float64)
    inner = 1.0 * members(axis, fabric.tiers[0].domain_accelerators)
    if not payload.shape == ranks.shape == inner.shape:
        payload, ranks, inner = np.broadcast_arrays(payload, ranks, inner)
    moved = (ranks > 1) & (payload > 0)
    if op == "all_to_all":
        fraction = all_to_all_fraction or fabric.profile.all_to_all_fraction
        return where(moved, _all_to_all_s(fabric, payload, ranks, inner, axis, fraction), 0.0)
    inside, floor = _domain_s(fabric, op, payload, inner)
    if all_of(inner >= ranks):
        return where(moved, inside, 0.0)
    passes = _BUS_PASSES[op]
    within = payload * bus_factor(passes, inner) / maximum(inside, _TINY_S)
    bus, latency = _outer_tier_rates(
        fabric, op, axis, where(inner > 1, within, np.inf), floor, payload
    )
    filled = payload + RAMP_SHARE * minimum(payload, RAMP_BYTES)
    crossing = ring_s(filled, bus_factor(passes, ranks), maximum(bus, 1.0), latency)
    return where(moved, where(inner >= ranks, inside, crossing), 0.0)


def _shared(fabric: Fabric, tier: NetworkTier, axis: Axis) -> Array:
    """The oversubscription of a tier's uplinks for the traffic of a group.

    On rails the members of a group with the same place in their nodes meet at one switch, below
    the oversubscribed links.
    """
    domain = fabric.tiers[0].domain_accelerators
    if tier.topology != "rail" or domain is None:
        return tier.oversubscription
    return where(axis.stride % domain == 0, 1.0, tier.oversubscription)


@formula("s", "ml-engineering", "derived")
def send_s(fabric: Fabric, payload_bytes: Array, axis: Axis) -> Array:
    """Seconds of one message to the next member of a group, over the group's slowest hop."""
    size = np.asarray(axis.size)
    first = fabric.tiers[0]
    links = _links(first, "send", size) if first.topology in TORUS_AXES else 1.0
    link = np.full(size.shape, first.bandwidth_bytes_per_s * links)
    latency = np.full(size.shape, fabric.tiers[0].latency_s)
    for hop in crossings(fabric, axis):
        link = where(hop.used, hop.link_bytes_per_s, link)
        latency = where(hop.used, hop.tier.latency_s, latency)
    seconds = message_s(payload_bytes, link * fabric.profile.p2p_fraction, latency)
    if fabric.message is not None:
        inside = members(axis, fabric.tiers[0].domain_accelerators) >= size
        link_s = fabric.message.fixed_s + payload_bytes * fabric.message.per_unit_s
        seconds = where(inside, link_s, seconds)
    return where(size > 1, seconds, 0.0)


def _outer_tier_rates(
    fabric: Fabric, op: str, axis: Axis, bus: Array, latency: Array, payload: Array
) -> tuple[Array, Array]:
    """Bus bandwidth and latency after every tier outside the fastest domain."""
    chunk_s = CHUNK_S * minimum(payload / CHUNK_PAYLOAD_BYTES, 1.0)
    for hop in crossings(fabric, axis):
        rate = fabric.profile.network_fraction * hop.link_bytes_per_s
        bus = where(hop.used, minimum(bus, rate * hop.inner), bus)
        domains = maximum(hop.outer / hop.inner, 1.0)
        # A ring takes a step per domain; NCCL reduces over a tree where that is shorter.
        steps, step_s = domains - 1.0, hop.step_s
        if op == "all_reduce":
            tree = 2.0 * np.log2(domains) * (TREE_STEP * step_s + chunk_s)
            steps_s = minimum(2.0 * steps * step_s, tree)
        else:
            steps_s = steps * step_s
        latency = latency + where(hop.used, steps_s, 0.0)
    return bus, latency


def _all_to_all_s(
    fabric: Fabric, payload: Array, ranks: Array, inner: Array, axis: Axis, fraction: float
) -> Array:
    """Inside and outside the domain at the same time; each rank sends through its own NIC."""
    seconds, _ = _domain_s(fabric, "all_to_all", payload * inner / ranks, inner)
    for hop in crossings(fabric, axis):
        leaving = leaving_bytes(payload, ranks, ranks - hop.inner)
        latency = hop.step_s * (1.0 + np.log2(maximum(hop.outer / hop.inner, 1.0)))
        through = ring_s(leaving, 1.0, fraction * hop.link_bytes_per_s, latency)
        seconds = where(hop.used, maximum(seconds, through), seconds)
    return seconds


@formula("byte", "derived")
def leaving_bytes(payload_bytes: Array, ranks: Array, outside: Array) -> Array:
    """Bytes that one rank of an all-to-all sends to ranks outside its domain."""
    return payload_bytes * outside / ranks


@formula("byte", "nccl-tests", "derived")
def link_bytes(fabric: Fabric, op: str, payload_bytes: Array, axis: Axis) -> list[Array]:
    """Bytes that the busiest accelerator's link sends on each tier, from the innermost outward.

    `collective_s` and `send_s` divide these by the bandwidth.  A ring passes its bytes once over
    the border of each domain, spread over the links of the members there; in a chain only the last
    member in a domain sends over its border.
    """
    ranks = np.asarray(axis.size, dtype=np.float64)
    hops = list(crossings(fabric, axis))
    inner = 1.0 * members(axis, fabric.tiers[0].domain_accelerators)
    if op == "send":
        inside = where((ranks > 1) & (inner > 1), payload_bytes, 0.0)
        return [inside, *(where(hop.used, payload_bytes, 0.0) for hop in hops)]
    if op == "all_to_all":
        inside = payload_bytes * inner / ranks * bus_factor(_BUS_PASSES[op], inner)
        by_hop = (leaving_bytes(payload_bytes, ranks, ranks - hop.inner) for hop in hops)
        return [
            inside,
            *(where(hop.used, sent, 0.0) for hop, sent in zip(hops, by_hop, strict=True)),
        ]
    passed = payload_bytes * bus_factor(_BUS_PASSES[op], ranks)
    inside = where(inner > 1, passed, 0.0)
    return [inside, *(where(hop.used, passed / hop.inner, 0.0) for hop in hops)]


def _links(tier: NetworkTier, op: str, ranks: Array) -> Array:
    """The share of an accelerator's links inside a domain that a group of this size uses.

    Of a torus a group lies along as few axes as hold it, 4 ranks deep each (the cubes that slices
    are built of), and its rings use both links of each; messages and all-to-alls pass through
    others, so that they see one axis.
    """
    if tier.topology in TORUS_AXES:
        axes = TORUS_AXES[tier.topology]
        if op in ("send", "all_to_all"):
            return 1.0 / axes
        used: Array = np.ceil(np.log2(maximum(ranks, 2.0)) / np.log2(TORUS_SIDE))
        return minimum(used, axes) / axes
    domain = tier.domain_accelerators or 2
    return (ranks - 1.0) / (domain - 1.0) if tier.topology == "mesh" and domain > 1 else 1.0


def _domain_s(fabric: Fabric, op: str, payload: Array, ranks: Array) -> tuple[Array, Array]:
    """(seconds, seconds of the smallest message) inside one fastest domain.

    From the measured table, bilinear in log2(ranks) and log2(bytes) of log2(seconds); where none
    was measured, a ring at the profile's stated fraction of the link.
    """
    tier, profile = fabric.tiers[0], fabric.profile
    grid = fabric.grids.get(op)
    single = ranks <= 1
    if grid is None:
        links = _links(tier, op, ranks)
        bus = maximum(tier.bandwidth_bytes_per_s * profile.domain_fraction * links, 1.0)
        latency = np.log2(maximum(ranks, 1.0)) * _BUS_PASSES[op] * tier.latency_s
        seconds = ring_s(payload, bus_factor(_BUS_PASSES[op], ranks), bus, latency)
        return where(single, 0.0, seconds), where(single, 0.0, latency)
    log_ranks = np.log2(ranks)
    log_bytes = np.log2(maximum(payload, 1.0))
    row = np.interp(log_ranks, grid.log_ranks, np.arange(len(grid.log_ranks)))
    column = np.interp(log_bytes, grid.log_bytes, np.arange(len(grid.log_bytes)))
    i = minimum(row.astype(np.int64), max(len(grid.log_ranks) - 2, 0))
    j = minimum(column.astype(np.int64), len(grid.log_bytes) - 2)
    i1 = minimum(i + 1, len(grid.log_ranks) - 1)
    a, b = row - i, column - j
    table = grid.log_seconds
    log_s = (1.0 - a) * ((1.0 - b) * table[i, j] + b * table[i, j + 1])
    log_s = log_s + a * ((1.0 - b) * table[i1, j] + b * table[i1, j + 1])
    # Above the largest measured size the last rate holds.
    seconds = np.exp2(log_s + maximum(log_bytes - grid.log_bytes[-1], 0.0))
    floor = minimum((1.0 - a) * grid.floor_s[i] + a * grid.floor_s[i1], seconds)
    # Wider groups than measured move more over each link; rings also take more steps.  Only
    # what exceeds the latency scales with the bandwidth of the links.
    largest = float(np.exp2(grid.log_ranks[-1]))
    beyond = maximum(ranks, largest)
    wider = bus_factor(1.0, beyond) / bus_factor(1.0, largest)
    steps = (beyond - largest) * (0.0 if op == "all_reduce" else _RING_STEP_S)
    seconds = floor + (seconds - floor) * fabric.link_scale * wider + steps
    return where(single, 0.0, seconds), where(single, 0.0, floor + steps)
