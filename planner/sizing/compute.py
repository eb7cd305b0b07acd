"""A sizing computed: the best plan of every cluster, its goodput, and what to choose from."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import ceil
from multiprocessing import get_context
from typing import Any

from cost_models.catalog import hardware
from cost_models.critical_batch import tokens_over_fewest
from cost_models.goodput import daly_interval_s, effective_share, job_mtbf_s
from cost_models.plans import ParallelPlan
from cost_models.spec import ClusterSpec, NodeGroup
from cost_models.tuning import trained_parameters
from cost_models.units import DAY_S, HOUR_S
from planner.answer import ErrorBand, Note
from planner.consistency import contradictions
from planner.explain import report
from planner.progress import step, within_a_step
from planner.request import PlanRequest
from planner.search import cost_model, search
from planner.sizing.answer import BatchSize, Limit, Row, SizingAnswer, Step
from planner.sizing.request import SizingRequest, SizingSpec
from planner.solve import prepared
from planner.version import __version__

# A checkpoint of mixed-precision Adam (BLOOM wrote 13.1 bytes per parameter), copied to host memory
# at what one accelerator was measured to reach of its link (H200: 55 of 63 GB/s), then written
# while training goes on; ranks meet for it.
CHECKPOINT_BYTES_PER_PARAMETER = 14.0
HOST_COPY_FRACTION = 0.87
CHECKPOINT_BARRIER_S = 1.0
UNKNOWN_HOST_LINK_BYTES_PER_S = 25e9
MOST_KEPT = 2000  # best plans, a few kilobytes each


def size(asked: SizingRequest, workers: int = 1) -> SizingAnswer:
    """Every kind in every number; workers: processes that search at the same time."""
    began = time.perf_counter()
    clusters = list(_clusters(asked.sizing))
    rows = [_limited(row, asked.sizing) for row in _rows(asked, clusters, workers)]
    front = _front(rows)
    rows = [row.model_copy(update={"on_front": i in front}) for i, row in enumerate(rows)]
    allowed = [i for i, row in enumerate(rows) if row.days is not None and not row.exceeds]
    priced = [i for i in allowed if rows[i].cost_usd is not None]

    def least(places: list[int], *names: str) -> int | None:
        """The row with the least of the first, and of the next where that is equal."""
        order = {i: [_or_most(getattr(rows[i], name)) for name in names] for i in places}
        return min(places, key=order.__getitem__, default=None)

    return SizingAnswer(
        request=asked.document(),
        version=__version__,
        rows=tuple(rows),
        front=tuple(front),
        steps=tuple(_steps(rows, front)),
        cheapest=least(priced, "cost_usd", "days"),
        fastest=least(allowed, "days", "cost_usd"),
        fewest=least(allowed, "accelerators", "cost_usd", "days"),
        stops_paying=next((s for s in _steps(rows, _hull(rows, front)) if _steep(rows, s)), None),
        smallest={
            kind: next(
                (i for i, row in enumerate(rows) if row.accelerator == kind and not row.reason),
                None,
            )
            for kind in asked.sizing.accelerators
        },
        batch_sizes=tuple(_batch_sizes(asked)),
        space=_space(asked.base),
        assumed=_assumed(asked),
        prices_date=hardware.prices_date(),
        assumptions=tuple(_assumptions(asked, rows)),
        sizing_time_s=time.perf_counter() - began,
    )


def _rows(asked: SizingRequest, clusters: list[ClusterSpec], workers: int) -> list[Row]:
    work = partial(_row, asked)
    if workers < 2 or len(clusters) < 2 * workers:
        return list(_counted(map(work, clusters), len(clusters)))
    # The largest first: a worker that ends last has little left.
    order = sorted(range(len(clusters)), key=lambda i: -clusters[i].accelerators)
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        found = _counted(pool.map(work, (clusters[i] for i in order)), len(clusters))
        by_place = dict(zip(order, found, strict=True))
    return [by_place[i] for i in range(len(clusters))]


def _counted(rows: Iterable[Row], total: int) -> Iterator[Row]:
    for done, row in enumerate(rows, 1):
        step(done, total)
        yield row


def _clusters(sizing: SizingSpec) -> Iterator[ClusterSpec]:
    """Each kind in whole nodes of its own, or a part of one; no number twice."""
    for kind in sizing.accelerators:
        typical = hardware.accelerator_entry(kind).node.accelerators
        seen = set()
        for count in sizing.sizes:
            nodes, per_node = ceil(count / typical), min(count, typical)
            if (nodes, per_node) in seen:
                continue
            seen.add((nodes, per_node))
            yield _cluster(kind, nodes, per_node, sizing)


def _cluster(kind: str, nodes: int, per_node: int, sizing: SizingSpec) -> ClusterSpec:
    try:
        group = hardware.node_group(kind, nodes, per_node)
    except ValueError:  # a part of a node that its link domains do not divide: the whole node
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


def _row(asked: SizingRequest, cluster: ClusterSpec) -> Row:
    """The best plan on one cluster, and what the training takes there."""
    group = cluster.groups[0]
    names: dict[str, Any] = {
        "accelerator": group.accelerator.id,
        "nodes": group.nodes,
        "accelerators": cluster.accelerators,
        "price_usd_per_accelerator_hour": group.price_usd_per_accelerator_hour,
    }
    base = asked.base
    wrong = list(contradictions(base.model, cluster, base.training))
    if wrong:
        return Row(**names, reason=wrong[0].detail)
    request = _without_money(base.model_copy(update={"cluster": cluster}))
    found = _best(request.model_dump_json())
    if isinstance(found, str):
        return Row(**names, reason=found)
    return Row(**names, reason=None, **_of_plan(asked, cluster, found))


@dataclass(frozen=True)
class _Found:
    """The best plan on a cluster, and what days, money and energy follow from."""

    plan: ParallelPlan
    iteration_time_s: float
    error_band: ErrorBand
    mfu: float
    tokens_per_s: float
    memory_headroom: float


def _without_money(request: PlanRequest) -> PlanRequest:
    """The request without what its best plan does not depend on, so that it is searched once.

    Whoever tries other prices, failures or tokens then waits for no search.
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
def _best(document: str) -> _Found | str:
    """The best plan of a request, or why there is none."""
    request = PlanRequest.model_validate_json(document)
    bound, rules = prepared(request)
    with within_a_step():
        outcome = search(bound, rules, top_k=1)
    if not outcome.best:
        counts = outcome.counts
        assert counts is not None
        most = max(counts.rejected, key=lambda name: counts.rejected[name], default="memory")
        return "nothing fits" if most == "memory" else f"no plan: {most}"
    found = report(cost_model(bound), bound, outcome.best[0])
    return _Found(
        plan=found.plan,
        iteration_time_s=found.iteration_time_s,
        error_band=found.error_band,
        mfu=found.mfu,
        tokens_per_s=found.tokens_per_s,
        memory_headroom=1.0 - found.memory.peak_bytes / found.memory.capacity_bytes,
    )


def _of_plan(asked: SizingRequest, cluster: ClusterSpec, found: _Found) -> dict[str, Any]:
    """Days, goodput, cost and energy of the training by this plan."""
    sizing, group = asked.sizing, cluster.groups[0]
    tokens = asked.base.training.tokens
    assert tokens is not None
    training_days = tokens / found.tokens_per_s / DAY_S
    checkpoint_s = sizing.checkpoint_s
    if checkpoint_s is None:
        checkpoint_s = _checkpoint_s(asked.base, group, cluster.accelerators)
    rate = cluster.failures_per_1000_node_days
    mtbf = interval = None
    effective = 1.0
    if rate:
        mtbf = float(job_mtbf_s(group.nodes, 1000.0 * DAY_S / rate))
        interval = float(daly_interval_s(checkpoint_s, mtbf))
        restart = sizing.detect_s + sizing.restart_s
        effective = float(effective_share(interval, checkpoint_s, restart, mtbf))
    days = training_days / effective if effective > 0 else float("inf")
    hours = days * DAY_S / HOUR_S
    price, watts = group.price_usd_per_accelerator_hour, group.node_power_watts
    cost = None if price is None else hours * cluster.accelerators * price
    power = None if watts is None else watts * group.nodes * cluster.pue
    return {
        "plan": found.plan,
        "iteration_time_s": found.iteration_time_s,
        "error_band": found.error_band,
        "mfu": found.mfu,
        "tokens_per_s": found.tokens_per_s,
        "memory_headroom": found.memory_headroom,
        "training_days": training_days,
        "effective_share": effective,
        "mtbf_s": mtbf,
        "checkpoint_s": checkpoint_s,
        "checkpoint_interval_s": interval,
        "days": days,
        "cost_usd": cost,
        "tokens_per_usd": tokens / cost if cost else None,
        "power_watts": power,
        "energy_kwh": None if power is None else power / 1000.0 * hours,
    }


def _checkpoint_s(request: PlanRequest, group: NodeGroup, accelerators: int) -> float:
    """Seconds that training stands still while each rank copies its share to host memory."""
    link = group.host_link_bytes_per_s or UNKNOWN_HOST_LINK_BYTES_PER_S
    trained = trained_parameters(request.model, request.training)
    share = trained * CHECKPOINT_BYTES_PER_PARAMETER / accelerators
    return share / (HOST_COPY_FRACTION * link) + CHECKPOINT_BARRIER_S


def _limited(row: Row, sizing: SizingSpec) -> Row:
    """The row with the limits that it exceeds; what is not known exceeds none."""
    checks: tuple[tuple[Limit, float | None, float | None], ...] = (
        ("deadline", row.days, sizing.deadline_days),
        ("budget", row.cost_usd, sizing.budget_usd),
        ("power", row.power_watts, sizing.power_watts),
    )
    exceeds = tuple(
        name
        for name, value, most in checks
        if value is not None and most is not None and value > most
    )
    return row.model_copy(update={"exceeds": exceeds})


def _front(rows: list[Row]) -> list[int]:
    """Places of the rows that no other beats in both days and cost, the cheapest first."""
    known = [
        (row.cost_usd, row.days, i)
        for i, row in enumerate(rows)
        if row.cost_usd is not None and row.days is not None
    ]
    front: list[int] = []
    fewest = float("inf")
    for _, taken, i in sorted(known):
        if taken < fewest:
            front.append(i)
            fewest = taken
    return front


def _steps(rows: list[Row], front: list[int]) -> Iterator[Step]:
    """What each step along the front adds in cost for the days that it saves."""
    for slow, fast in pairwise(front):
        before, after = rows[slow], rows[fast]
        saved = (before.days or 0.0) - (after.days or 0.0)
        added = (after.cost_usd or 0.0) - (before.cost_usd or 0.0)
        yield Step(
            row=slow, faster_row=fast, days_saved=saved, cost_added_usd=added,
            usd_per_day_saved=added / saved,
        )  # fmt: skip


def _hull(rows: list[Row], front: list[int]) -> list[int]:
    """The front without what saves its days for more money each than a step over it does."""
    hull: list[int] = []
    for place in front:
        while len(hull) > 1 and _a_day(rows, hull[-2], hull[-1]) > _a_day(rows, hull[-1], place):
            hull.pop()
        hull.append(place)
    return hull


def _a_day(rows: list[Row], slow: int, fast: int) -> float:
    """Dollars for each day that one row saves over another."""
    step = next(_steps(rows, [slow, fast]))
    return step.usd_per_day_saved


def _steep(rows: list[Row], step: Step) -> bool:
    """Whether a day saved costs more than a day of the training that it shortens."""
    slow = rows[step.row]
    a_day_usd = (slow.cost_usd or 0.0) / (slow.days or 1.0)
    return step.usd_per_day_saved > a_day_usd


def _or_most(value: float | None) -> float:
    return float("inf") if value is None else value


def _assumed(asked: SizingRequest) -> dict[str, float]:
    """What is used where the request says nothing, or what it says instead."""
    sizing = asked.sizing
    cluster = _cluster(sizing.accelerators[0], 1, 1, sizing)
    return {
        "pue": cluster.pue,
        "failures_per_1000_node_days": cluster.failures_per_1000_node_days or 0.0,
        "detect_s": sizing.detect_s,
        "restart_s": sizing.restart_s,
    }


def _batch_sizes(asked: SizingRequest) -> Iterator[BatchSize]:
    """From an eighth to eight times the request's batch, in doublings."""
    critical, training = asked.sizing.critical_batch_size, asked.base.training
    if critical is None:
        return
    assert training.tokens is not None
    own = training.global_batch_size
    fewest = training.tokens / float(tokens_over_fewest(own, critical))
    for batch in sorted({max(1, own * 2**k // 8) for k in range(7)}):
        tokens = fewest * float(tokens_over_fewest(batch, critical))
        yield BatchSize(
            global_batch_size=batch, tokens=tokens, steps=tokens / (batch * training.seq_length),
            efficient=batch <= critical,
        )  # fmt: skip


def _space(request: PlanRequest) -> dict[str, Any]:
    """The limits of the search, which every row keeps to."""
    return request.search.model_dump(mode="json", exclude_none=True)["limits"]  # type: ignore[no-any-return]


def _assumptions(asked: SizingRequest, rows: list[Row]) -> Iterator[Note]:
    """What the days and the money rest on, in sentences."""
    sizing, training = asked.sizing, asked.base.training
    dated = hardware.prices_date()
    for kind in sizing.accelerators:
        price = next(
            (r.price_usd_per_accelerator_hour for r in rows if r.accelerator == kind), None
        )
        if price is None:
            text = f"{kind}: no price known, so no cost; give prices_usd_per_accelerator_hour"
        elif kind in sizing.prices_usd_per_accelerator_hour:
            text = f"{kind}: ${price:g} per accelerator-hour, as given"
        else:
            text = f"{kind}: ${price:g} per accelerator-hour, a catalog default of {dated}"
        yield Note(code="price", text=text)
    rate = sizing.failures_per_1000_node_days
    source = "as given" if rate is not None else "the catalog's default (Llama 3: 3.8)"
    rate = _assumed(asked)["failures_per_1000_node_days"]
    yield Note(code="failures", text=f"{rate:g} failures per 1000 node-days, {source}")
    yield Note(
        code="restart",
        text=f"a failure is found after {sizing.detect_s:g} s, training is back "
        f"{sizing.restart_s:g} s later and repeats what no checkpoint had; checkpoints at Daly's "
        "best interval",
    )
    checkpoint = (
        f"{sizing.checkpoint_s:g} s per checkpoint, as given"
        if sizing.checkpoint_s is not None
        else f"training stands still while each rank copies its share of "
        f"{CHECKPOINT_BYTES_PER_PARAMETER:g} bytes per parameter to host memory"
    )
    yield Note(code="checkpoint", text=checkpoint)
    yield Note(code="power", text="nodes at their typical draw in training, times PUE")
    yield Note(
        code="batch",
        text=f"the same batch of {training.global_batch_size:,} sequences at every size",
    )
    if sizing.critical_batch_size is not None:
        more = float(tokens_over_fewest(training.global_batch_size, sizing.critical_batch_size))
        yield Note(
            code="critical_batch",
            text=f"at a critical batch of {sizing.critical_batch_size:,} sequences, as given, this "
            f"one needs {more:.2f} times the tokens of a very small one for the same loss "
            "(McCandlish et al., arXiv 1812.06162); tokens are taken as given",
        )
    narrow = ", ".join(f"{name} {_limit(limit)}" for name, limit in _space(asked.base).items())
    yield Note(code="space", text=f"plans searched: {narrow or 'all'}")


def _limit(limit: dict[str, Any]) -> str:
    if "values" in limit:
        return "/".join(str(value) for value in limit["values"])
    return f"{limit.get('min', '')}..{limit.get('max', '')}"
