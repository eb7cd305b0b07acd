"""The cost of a whole training: days, USD and energy of the cluster for its duration."""

from __future__ import annotations

from typing import NamedTuple

from cost_models.spec import ClusterSpec
from cost_models.units import DAY_S, HOUR_S


class TrainingCost(NamedTuple):
    """Days, USD and kWh; None if a price or a power is not known."""

    days: float
    cost_usd: float | None
    energy_kwh: float | None


def training_cost(cluster: ClusterSpec, seconds: float) -> TrainingCost:
    """The cost of all nodes of a cluster for some seconds, with the site's overhead (PUE)."""
    hourly, watts = usd_per_hour(cluster), power_watts(cluster)
    hours = seconds / HOUR_S
    return TrainingCost(
        days=seconds / DAY_S,
        cost_usd=None if hourly is None else hours * hourly,
        energy_kwh=None if watts is None else watts / 1000.0 * hours,
    )


def usd_per_hour(cluster: ClusterSpec) -> float | None:
    """The price of all accelerators; None if that of one group is not known."""
    total = 0.0
    for group in cluster.groups:
        if group.price_usd_per_accelerator_hour is None:
            return None
        total += group.accelerators * group.price_usd_per_accelerator_hour
    return total


def usd_per_million_tokens(cluster: ClusterSpec, tokens_per_s: float) -> float | None:
    """What a million tokens cost at this rate; None if a price is not known."""
    return training_cost(cluster, 1e6 / tokens_per_s).cost_usd


def power_watts(cluster: ClusterSpec) -> float | None:
    """The power of all nodes, PUE included; None if that of one group is not known."""
    total = 0.0
    for group in cluster.groups:
        if group.node_power_watts is None:
            return None
        total += group.node_power_watts * group.nodes
    return total * cluster.pue
