"""A row of a sizing: the best plan of one cluster, its goodput, days and cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import product
from math import ceil
from typing import Any

from cost_models.catalog import hardware
from cost_models.goodput import daly_interval_s, effective_share, job_mtbf_s
from cost_models.plans import ParallelPlan
from cost_models.spec import ClusterSpec, NodeGroup
from cost_models.trainable import trained_parameters
from cost_models.training_cost import power_watts, training_cost
from cost_models.units import DAY_S
from planner.answers.plans.competition import (
    Entry,
    any_fits,
    fastest_on_each,
    key_without_node_count,
)
from planner.answers.plans.explain import reports_of_several
from planner.answers.sizing.answer import Row
from planner.answers.sizing.request import SizingRequest, SizingSpec
from planner.documents.plan_report import Document, ErrorBand
from planner.documents.request import PlanRequest
from planner.inputs.requests.consistency import contradictions
from planner.progress import within_a_step
from planner.search.exhaustive import cost_model

# A checkpoint of mixed-precision Adam (BLOOM wrote 13.1 bytes per parameter), copied to host memory
# at the measured share of one accelerator's link rate (H200: 55 of 63 GB/s), then written while
# training continues; ranks synchronise for the copy.
CHECKPOINT_BYTES_PER_PARAMETER = 14.0
HOST_COPY_FRACTION = 0.87
CHECKPOINT_BARRIER_S = 1.0
UNKNOWN_HOST_LINK_BYTES_PER_S = 25e9
MOST_KEPT = 200  # cached best plans of a kind of accelerator, a few kilobytes for each size


def clusters_of(sizing: SizingSpec) -> Iterator[ClusterSpec]:
    """The named clusters, or every kind in every size, in whole nodes or part of one, each once."""
    named = (text.split("x", 1) for text in sizing.clusters)
    pairs = [(kind, int(number)) for number, kind in named]
    return clusters_of_pairs(pairs or product(sizing.accelerators, sizing.sizes), sizing)


def clusters_of_pairs(
    pairs: Iterable[tuple[str, int]], sizing: SizingSpec
) -> Iterator[ClusterSpec]:
    """The clusters of some kinds and numbers of accelerators, each once."""
    seen = set()
    for kind, count in pairs:
        typical = hardware.accelerator_entry(kind).node.accelerators
        nodes, per_node = ceil(count / typical), min(count, typical)
        if (kind, nodes, per_node) in seen:
            continue
        seen.add((kind, nodes, per_node))
        yield cluster_of_kind(kind, nodes, per_node, sizing)


def cluster_of_kind(kind: str, nodes: int, per_node: int, sizing: SizingSpec) -> ClusterSpec:
    try:
        group = hardware.node_group(kind, nodes, per_node)
    except ValueError:  # the node's link domains do not divide into this part: take a whole node
        group = hardware.node_group(kind, nodes)
    prices = sizing.prices_usd_per_accelerator_hour
    if kind in prices:
        group = group.model_copy(update={"price_usd_per_accelerator_hour": prices[kind]})
    cluster = hardware.cluster_of(f"{nodes}x{group.accelerators_per_node}x{kind}", group)
    given = {
        name: value
        for name in ("pue", "failures_per_1000_node_days")
        if (value := getattr(sizing, name)) is not None
    }
    return cluster.model_copy(update=given)


def rows_of(asked: SizingRequest, clusters: Sequence[ClusterSpec]) -> list[Row]:
    """The best plan on each of some clusters, and the time and cost of the training there."""
    base = asked.base
    wrong = [list(contradictions(base.model, one, base.training)) for one in clusters]
    able = [one for one, reasons in zip(clusters, wrong, strict=True) if not reasons]
    requests = (_without_money(base.model_copy(update={"cluster": one})) for one in able)
    found = iter(best(tuple(request.model_dump_json() for request in requests)))
    return [
        _row(asked, one, reasons[0].detail if reasons else next(found))
        for one, reasons in zip(clusters, wrong, strict=True)
    ]


def fits_on(asked: SizingRequest, cluster: ClusterSpec) -> bool:
    """Whether rows_of finds a plan on a cluster."""
    base = asked.base
    if any(contradictions(base.model, cluster, base.training)):
        return False
    request = _without_money(base.model_copy(update={"cluster": cluster}))
    return _any_fits(request.model_dump_json())


@lru_cache(maxsize=MOST_KEPT)
def _any_fits(document: str) -> bool:
    with within_a_step():
        return any_fits(PlanRequest.model_validate_json(document))


def _row(asked: SizingRequest, cluster: ClusterSpec, found: _PricedPlan | str) -> Row:
    """A cluster with its best plan, or with the reason why there is none."""
    group = cluster.groups[0]
    names: dict[str, Any] = {
        "accelerator": group.accelerator.id,
        "nodes": group.nodes,
        "accelerators": cluster.accelerators,
        "price_usd_per_accelerator_hour": group.price_usd_per_accelerator_hour,
    }
    if isinstance(found, str):
        return Row(**names, reason=found)
    return Row.of(found, **names, reason=None, **_of_plan(asked, cluster, found))


class _PricedPlan(Document):
    """The best plan on a cluster, with the numbers that days, cost and energy follow from."""

    plan: ParallelPlan
    iteration_time_s: float
    error_band: ErrorBand
    mfu: float
    tokens_per_s: float
    memory_headroom: float


def _without_money(request: PlanRequest) -> PlanRequest:
    """The request without the fields that do not affect its best plan, as a cache key.

    So other prices, failure rates or tokens need no new search.
    """
    cluster = request.cluster
    update: dict[str, Any] = {"pue": 1.0, "failures_per_1000_node_days": None}
    if request.search.objective != "cost":
        free = {"price_usd_per_accelerator_hour": None, "node_power_watts": None}
        update["groups"] = tuple(group.model_copy(update=free) for group in cluster.groups)
    training = request.training.model_copy(update={"tokens": None})
    cluster = cluster.model_copy(update=update)
    return request.model_copy(update={"cluster": cluster, "training": training})


@lru_cache(maxsize=MOST_KEPT)
def best(documents: tuple[str, ...]) -> tuple[_PricedPlan | str, ...]:
    """The best plan of each of some requests that differ in the cluster, or why there is none."""
    requests = [PlanRequest.model_validate_json(document) for document in documents]
    with within_a_step():
        found = fastest_on_each(requests[0], [one.cluster for one in requests]) if requests else ()
    groups: dict[Any, list[Entry]] = {}
    for place, one in enumerate(found):
        if one.outcome.best:
            groups.setdefault(key_without_node_count(one.request) or place, []).append(one)
    priced = {id(one): plan for own in groups.values() for one, plan in _priced(own)}
    return tuple(priced.get(id(one)) or _reason(one) for one in found)


def _reason(nothing: Entry) -> str:
    """Why there is no plan."""
    counts = nothing.outcome.counts
    assert counts is not None
    most = max(counts.rejected, key=lambda name: counts.rejected[name], default="memory")
    return "nothing fits" if most == "memory" else f"no plan: {most}"


def _priced(entries: Sequence[Entry]) -> Iterator[tuple[Entry, _PricedPlan]]:
    """The best plans of entries that differ in nodes only."""
    asked = [(one.request, one.outcome.best[0]) for one in entries]
    found = reports_of_several(cost_model(entries[0].request), asked, simulated=False)
    for one, own in zip(entries, found, strict=True):
        yield one, _PricedPlan.of(own, memory_headroom=own.memory.free_share)


def _of_plan(request: SizingRequest, cluster: ClusterSpec, priced: _PricedPlan) -> dict[str, Any]:
    """Days, goodput, cost and energy of the training with this plan."""
    sizing, group = request.sizing, cluster.groups[0]
    tokens = request.base.training.tokens
    assert tokens is not None
    training_days = tokens / priced.tokens_per_s / DAY_S
    checkpoint_s = sizing.checkpoint_s
    if checkpoint_s is None:
        checkpoint_s = _checkpoint_s(request.base, group, cluster.accelerators)
    rate = cluster.failures_per_1000_node_days
    mtbf = interval = None
    effective = 1.0
    if rate:
        mtbf = float(job_mtbf_s(group.nodes, 1000.0 * DAY_S / rate))
        interval = float(daly_interval_s(checkpoint_s, mtbf))
        restart = sizing.detect_s + sizing.restart_s
        effective = float(effective_share(interval, checkpoint_s, restart, mtbf))
    days = training_days / effective if effective > 0 else float("inf")
    whole = training_cost(cluster, days * DAY_S)
    return {
        "training_days": training_days,
        "effective_share": effective,
        "mtbf_s": mtbf,
        "checkpoint_s": checkpoint_s,
        "checkpoint_interval_s": interval,
        "days": days,
        "low_days": days * priced.error_band.low_s / priced.iteration_time_s,
        "high_days": days * priced.error_band.high_s / priced.iteration_time_s,
        "cost_usd": whole.cost_usd,
        "tokens_per_usd": tokens / whole.cost_usd if whole.cost_usd else None,
        "power_watts": power_watts(cluster),
        "energy_kwh": whole.energy_kwh,
    }


def _checkpoint_s(request: PlanRequest, group: NodeGroup, accelerators: int) -> float:
    """Seconds that training pauses while each rank copies its share to host memory."""
    link = group.host_link_bytes_per_s or UNKNOWN_HOST_LINK_BYTES_PER_S
    trained = trained_parameters(request.model, request.training)
    share = trained * CHECKPOINT_BYTES_PER_PARAMETER / accelerators
    return share / (HOST_COPY_FRACTION * link) + CHECKPOINT_BARRIER_S
