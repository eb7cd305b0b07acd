"""The ranks of a plan: coordinates, process groups, and the link that each group crosses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from cost_models.catalog.names import UnknownName
from cost_models.plans import ParallelPlan
from cost_models.spec import ClusterSpec
from planner.answers.plans.network_traffic import CARRIES, Traffic, traffic
from planner.answers.plans.plan_answers import IllegalPlan, illegal
from planner.answers.plans.rank_orders import rank_orders
from planner.documents.answer import RankOrder
from planner.documents.plan_report import Document, Note
from planner.documents.problems import refuse, shown
from planner.documents.request import PlanRequest
from planner.frameworks.rank_orders import Grid, IntArray, NoOrder, grids, order_of
from planner.search.exhaustive import cost_model
from planner.version import __version__

# With more ranks, a document of all coordinates would be tens of megabytes.
MOST_RANKS = 131_072
# The number of groups listed of each kind.
MOST_GROUPS = 1024
_TALKATIVE = ("tp", "etp", "ep", "cp")


class AxisInfo(Document):
    """One axis of a grid: neighbours along it are `stride` ranks apart."""

    name: str
    size: int
    stride: int


class GroupKind(Document):
    """Process groups along some axes; links: how many groups need which tier of the network."""

    name: str
    axes: tuple[str, ...]
    carries: str
    size: int
    count: int
    links: dict[str, int]
    ranks: tuple[tuple[int, ...], ...]


class RanksAnswer(Document):
    """The answer to `planner ranks`.

    coordinates: by axis, one number per rank; complete: whether every group is listed; traffic: as
    the cost model prices it, in the plan's rank order; rank_orders: the plan in each order, the
    fastest first, empty if the order has no effect.
    """

    request: dict[str, Any]
    version: str
    framework: str
    source: str
    world_size: int
    nodes: int
    accelerators_per_node: int
    axes: tuple[AxisInfo, ...]
    expert_axes: tuple[AxisInfo, ...]
    groups: tuple[GroupKind, ...]
    traffic: Traffic
    rank_orders: tuple[RankOrder, ...]
    coordinates: dict[str, tuple[int, ...]]
    complete: bool
    warnings: tuple[Note, ...]

    def coloured(self) -> tuple[str, tuple[int, ...]]:
        """The axis that colours a picture, with its coordinates: pp, else the next split axis."""
        sizes = {axis.name: axis.size for axis in self.axes}
        likely = ("pp", "dp", "dp_shard", "dp_replicate", "cp", "tp")
        name = next((n for n in likely if sizes.get(n, 1) > 1), self.axes[0].name)
        return name, self.coordinates[name]

    def framed(self) -> bool:
        """Whether the ranks of a tensor-parallel group are adjacent."""
        return any(axis.name == "tp" and axis.size > 1 == axis.stride for axis in self.axes)


def ranks(request: PlanRequest, plan: ParallelPlan, framework: str) -> RanksAnswer:
    """Where a framework puts every rank of a plan.

    Raises IllegalPlan if the plan cannot run there, RequestError if the framework is unknown, does
    not support the plan, or there are too many ranks to list.
    """
    try:
        order = order_of(framework, plan)
        dense, experts = grids(order, plan)
    except UnknownName as error:
        detail, known = f"unknown framework {shown(framework)!r}", error.known
        raise refuse(
            "/order",
            "unknown_name",
            detail,
            framework,
            did_you_mean=error.nearest,
            allowed=known,
        ) from None
    except NoOrder as error:
        raise refuse("/plan", "no_rank_order", str(error)) from None
    # A framework's other refusals do not change where ranks are.
    if reasons := illegal(request, plan):
        raise IllegalPlan(reasons)
    if dense.world_size > MOST_RANKS:
        raise refuse(
            "/plan", "too_many_ranks", f"got {dense.world_size:,} ranks, allowed {MOST_RANKS:,}"
        )
    group = request.cluster.groups[0]
    kinds = tuple(_kinds(dense, experts, request.cluster))
    model = cost_model(request)
    return RanksAnswer(
        request=request.document(),
        version=__version__,
        framework=order.label,
        source=order.source,
        world_size=dense.world_size,
        nodes=group.nodes,
        accelerators_per_node=group.accelerators_per_node,
        axes=_axes(dense),
        expert_axes=_axes(experts) if experts else (),
        groups=kinds,
        traffic=traffic(model, plan),
        rank_orders=rank_orders(model, request, plan),
        coordinates={
            name: tuple(grid.coordinates(name).tolist())
            for grid in (experts, dense)
            if grid is not None
            for name in grid.names
        },
        complete=all(len(kind.ranks) == kind.count for kind in kinds),
        warnings=(*_unpriced(dense), *_warnings(kinds, request.cluster)),
    )


def _axes(grid: Grid) -> tuple[AxisInfo, ...]:
    return tuple(
        AxisInfo(name=name, size=size, stride=grid.stride(name))
        for name, size in zip(grid.names, grid.sizes, strict=True)
    )


def _kinds(dense: Grid, experts: Grid | None, cluster: ClusterSpec) -> Iterator[GroupKind]:
    """The kinds of groups: one for each axis with several ranks, and those over several axes."""
    for name in dense.names:
        yield from _kind(name, dense, (name,), CARRIES[name], cluster)
    data = tuple(n for n in dense.names if n in ("cp", "dp", "dp_shard", "dp_replicate"))
    if sum(dense.size(name) > 1 for name in data) > 1:
        what = "gradients of the weights that all of them hold"
        yield from _kind("data x cp" if "cp" in data else "data", dense, data, what, cluster)
    model = tuple(n for n in dense.names if n in ("tp", "pp"))
    if all(dense.size(name) > 1 for name in model) and len(model) > 1:
        yield from _kind("model", dense, model, "the norm of the gradients", cluster)
    if experts is not None:
        for name in experts.names:
            if name not in dense.names:
                yield from _kind(name, experts, (name,), CARRIES[name], cluster)


def _kind(
    name: str, grid: Grid, axes: tuple[str, ...], carries: str, cluster: ClusterSpec
) -> Iterator[GroupKind]:
    if grid.size(*axes) == 1:
        return
    found = grid.groups(*axes)
    yield GroupKind(
        name=name, axes=axes, carries=carries, size=found.shape[1], count=found.shape[0],
        links=_links(found, cluster), ranks=tuple(map(tuple, found[:MOST_GROUPS].tolist())),
    )  # fmt: skip


def _links(groups: IntArray, cluster: ClusterSpec) -> dict[str, int]:
    """Numbers of groups by the innermost tier whose domain holds all their members."""
    tiers = cluster.groups[0].network
    left = np.ones(len(groups), dtype=np.bool_)
    counts: dict[str, int] = {}
    for tier in tiers:
        if tier.domain_accelerators is None or tier is tiers[-1]:
            inside = left
        else:
            domains = groups // tier.domain_accelerators
            inside = left & np.all(domains == domains[:, :1], axis=1)
        if number := int(inside.sum()):
            counts[tier.name] = counts.get(tier.name, 0) + number
        left = left & ~inside
    return counts


def _unpriced(grid: Grid) -> Iterator[Note]:
    """A note if the cost model's order differs from the framework's: cp inside tp."""
    if min(grid.size("tp"), grid.size("cp") if "cp" in grid.names else 1) == 1:
        return
    if grid.stride("cp") < grid.stride("tp"):
        text = "traffic and times are priced with tp inside cp; here cp is inside tp"
        yield Note(code="priced_otherwise", text=text)


def _warnings(kinds: tuple[GroupKind, ...], cluster: ClusterSpec) -> Iterator[Note]:
    """A note if a group with much communication leaves the fastest domain because of the order."""
    fastest = cluster.groups[0].network[0]
    domain = fastest.domain_accelerators or cluster.accelerators
    inside = {kind.name: kind.links.get(fastest.name, 0) == kind.count for kind in kinds}
    for kind in kinds:
        crossing = kind.count - kind.links.get(fastest.name, 0)
        if kind.name not in _TALKATIVE or not crossing:
            continue
        if kind.size > domain:
            text = (
                f"{kind.name} {kind.size} is wider than the {domain} accelerators of {fastest.name}"
            )
            yield Note(code="wider_than_domain", text=f"{text}: {kind.carries} cross it")
            continue
        text = (
            f"{crossing:,} of {kind.count:,} {kind.name} groups of {kind.size} leave {fastest.name}"
        )
        yield Note(code="leaves_domain", text=f"{text} and would fit inside: {kind.carries}")
    if inside.get("pp") and inside.get("dp") is False:
        text = (
            "pipelines stay inside the fastest domain while data parallelism leaves it: the order "
            "tp-cp-ep-dp-pp puts the rarer messages outside"
        )
        yield Note(code="pp_inside_dp", text=text)
