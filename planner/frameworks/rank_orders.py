"""The order in which each framework numbers its ranks along the axes of a plan.

Axes are listed from the fastest to the slowest: neighbours along the first differ by one rank.
The experts of an MoE model have a grid of their own over the same ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cost_models import plugins
from cost_models.catalog.names import resolve
from cost_models.package_files import text
from cost_models.plans import ParallelPlan

IntArray = NDArray[np.int64]


class NoOrder(ValueError):
    """The framework has no place for an axis that the plan needs."""


@dataclass(frozen=True)
class Order:
    """Axes from fastest to slowest; experts: those of the experts' grid, empty if there is none.

    pp_inside: the order for a plan's rank_order tp-cp-ep-pp-dp; None if there is none.
    """

    label: str
    source: str
    axes: tuple[str, ...]
    experts: tuple[str, ...] = ()
    pp_inside: Order | None = None


def _order(label: str, row: dict[str, Any]) -> Order:
    inside = row.get("pp_inside")
    return Order(
        label,
        row["source"],
        tuple(row["axes"]),
        tuple(row.get("experts", ())),
        None if inside is None else _order(label, inside),
    )


def _orders(row: dict[str, Any]) -> dict[str, Order]:
    return {name: _order(label, row) for name, label in row["frameworks"].items()}


ORDERS: dict[str, Order] = {}
for _row in json.loads(text("planner.frameworks", "rank_orders.json")):
    ORDERS |= _orders(_row)
for _own in plugins.rows("frameworks/rank_orders.json", "orders", _orders):
    ORDERS = _own | ORDERS


@dataclass(frozen=True)
class Grid:
    """A grid of ranks: names and sizes of its axes, the fastest first."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def world_size(self) -> int:
        return math.prod(self.sizes)

    def stride(self, name: str) -> int:
        """The difference between the ranks of neighbours along an axis."""
        return math.prod(self.sizes[: self.names.index(name)])

    def size(self, *names: str) -> int:
        """Number of ranks in a group along these axes."""
        return math.prod(self.sizes[self.names.index(name)] for name in names)

    def coordinates(self, name: str) -> IntArray:
        """The coordinate of each rank along an axis: shape (world,)."""
        ranks = np.arange(self.world_size, dtype=np.int64)
        found: IntArray = ranks // self.stride(name) % self.size(name)
        return found

    def groups(self, *names: str) -> IntArray:
        """Groups of ranks that differ along these axes only: shape (groups, members), ascending."""
        ranks = np.arange(self.world_size, dtype=np.int64).reshape(self.sizes[::-1])
        last = len(self.sizes) - 1
        varied = sorted(last - self.names.index(name) for name in names)
        moved = np.moveaxis(ranks, varied, range(len(self.sizes) - len(varied), len(self.sizes)))
        return moved.reshape(-1, self.size(*names))


def order_of(framework: str, plan: ParallelPlan) -> Order:
    """The order of a framework under a plan.

    Raises cost_models.catalog.names.UnknownName with the nearest names, or NoOrder.
    """
    found = ORDERS[resolve(framework, {name: name for name in ORDERS}, "framework")]
    if plan.rank_order == "tp-cp-ep-pp-dp":
        if found.pp_inside is None:
            raise NoOrder(f"{found.label} has no rank order {plan.rank_order}")
        return found.pp_inside
    return found


def grids(order: Order, plan: ParallelPlan) -> tuple[Grid, Grid | None]:
    """The grid of a plan's ranks, and that of its experts if the order has one.

    Raises NoOrder if the plan needs an axis that the order lacks.
    """
    sizes = _sizes(plan)
    dense = _grid(order.axes, sizes)
    experts = _grid(order.experts, sizes) if order.experts and plan.ep * plan.etp > 1 else None
    for name in ("tp", "cp", "pp", "ep"):
        known = {*order.axes, *(order.experts if experts else ())}
        if sizes[name] > 1 and name not in known:
            raise NoOrder(f"{order.label} has no {name} axis; the plan has {name} {sizes[name]}")
    if plan.ep > 1 and "etp" not in order.experts and plan.etp > 1:
        raise NoOrder(f"{order.label} does not split experts by tensors (etp {plan.etp})")
    for grid in (dense, experts):
        if grid is not None and grid.world_size != plan.accelerators:
            raise NoOrder(
                f"{' x '.join(f'{n} {s}' for n, s in zip(grid.names, grid.sizes, strict=True))} "
                f"is not the plan's {plan.accelerators} ranks"
            )
    return dense, experts


def _grid(names: tuple[str, ...], sizes: Mapping[str, int]) -> Grid:
    return Grid(names, tuple(sizes[name] for name in names))


def _sizes(plan: ParallelPlan) -> dict[str, int]:
    """Sizes of all axes that occur in an order."""
    shard = plan.dp
    if plan.zero_stage == 0:
        shard = 1
    elif plan.dp_shard:
        # A plan counts the ranks of a shard group over dp and cp together.
        shard = max(min(plan.dp_shard // plan.cp, plan.dp), 1)
    world = plan.accelerators
    return {
        "tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp, "ep": plan.ep,
        "etp": plan.etp, "edp": world // max(plan.etp * plan.ep * plan.pp, 1),
        "dp_shard": shard, "dp_replicate": plan.dp // shard,
        "efsdp": max(shard * plan.cp * plan.tp // plan.ep, 1),
    }  # fmt: skip
