"""The traffic of a plan on each tier of the network per iteration, and the busiest link."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cost_models.estimate import CostModel
from cost_models.package_files import table
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import NodeGroup
from cost_models.traffic import GroupTraffic as Amounts
from planner.documents.plan_report import Document

# The TIME_PARTS that are transfers between ranks.
TRANSFERS = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm")
# What the ranks of each kind of group send each other.
CARRIES: dict[str, str] = table("planner.answers.plans", "definitions.json")["carries"]


class LinkTraffic(Document):
    """The traffic of one kind of process group on one tier in an iteration.

    rank_bytes: sent by the busiest accelerator; domain_bytes: sent out of a domain by all its
    accelerators; line_s: time of rank_bytes at the full rate of the link.
    """

    tier: str
    rank_bytes: float
    domain_bytes: float
    line_s: float


class GroupTraffic(Document):
    """One kind of process group on the stage where it is busiest; the sums of tiers are per stage.

    name: a group of the cost model; transfer_s: the sum of its transfers, hidden or not.
    """

    name: str
    carries: str
    stage: int
    transfer_s: float
    links: tuple[LinkTraffic, ...]


class TierTraffic(Document):
    """All process groups on one tier: the links that leave domains of `domain_accelerators`.

    link_bytes_per_s: of one accelerator, with oversubscription; busy: the share of the iteration in
    which the busiest link works at its full rate.
    """

    tier: str
    domain_accelerators: int
    link_bytes_per_s: float
    rank_bytes: float
    domain_bytes: float
    line_s: float
    busy: float


class Traffic(Document):
    """Bytes on the links in one iteration.

    transfer_s: of the busiest stage, hidden or not; shown_s: the exposed part, which is in the
    iteration's time; busiest: the tier that is busy for the largest share of the iteration, None if
    nothing is sent.
    """

    iteration_time_s: float
    transfer_s: float
    shown_s: float
    groups: tuple[GroupTraffic, ...]
    tiers: tuple[TierTraffic, ...]
    busiest: str | None


def traffic(model: CostModel, plan: ParallelPlan) -> Traffic:
    """The traffic of a legal plan."""
    found = model.traffic(plan)
    estimates = model.evaluate(Plans.from_rows([plan]))
    iteration_s = float(estimates.iteration_time_s[0])
    tiers = tuple(_tiers(model.context.nodes, found, iteration_s)) if found else ()
    return Traffic(
        iteration_time_s=iteration_s,
        transfer_s=float(np.max(sum(one.seconds for one in found))) if found else 0.0,
        shown_s=sum(float(estimates.time_parts_s[name][0]) for name in TRANSFERS),
        groups=tuple(_group(model.context.nodes, one) for one in found),
        tiers=tiers,
        busiest=max(tiers, key=lambda tier: tier.busy).tier if tiers else None,
    )


def _domains(nodes: NodeGroup) -> list[int]:
    """Accelerators that send over a tier together: one, then those of each domain."""
    return [1, *(tier.domain_accelerators or nodes.accelerators for tier in nodes.network[:-1])]


def _group(nodes: NodeGroup, amounts: Amounts) -> GroupTraffic:
    stage = int(np.argmax(amounts.seconds))
    links = (
        LinkTraffic(
            tier=tier.name,
            rank_bytes=float(amounts.link_bytes[i, stage]),
            domain_bytes=float(amounts.mean_bytes[i, stage]) * domain,
            line_s=float(amounts.line_s[i, stage]),
        )
        for i, (tier, domain) in enumerate(zip(nodes.network, _domains(nodes), strict=True))
    )
    return GroupTraffic(
        name=amounts.name,
        carries=CARRIES[amounts.name],
        stage=stage,
        transfer_s=float(amounts.seconds[stage]),
        links=tuple(link for link in links if link.rank_bytes > 0),
    )


def _tiers(
    nodes: NodeGroup, groups: Iterable[Amounts], iteration_s: float
) -> Iterator[TierTraffic]:
    groups = tuple(groups)
    for i, (tier, domain) in enumerate(zip(nodes.network, _domains(nodes), strict=True)):
        line_s = sum(one.line_s[i] for one in groups)
        stage = int(np.argmax(line_s))
        yield TierTraffic(
            tier=tier.name,
            domain_accelerators=domain,
            link_bytes_per_s=tier.bandwidth_bytes_per_s / tier.oversubscription,
            rank_bytes=float(sum(one.link_bytes[i, stage] for one in groups)),
            domain_bytes=float(sum(one.mean_bytes[i, stage] for one in groups)) * domain,
            line_s=float(line_s[stage]),
            busy=float(line_s[stage]) / iteration_s,
        )
