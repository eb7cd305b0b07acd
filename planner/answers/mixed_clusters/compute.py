"""The best use of a mixed cluster: every part, all at the slowest's pace, all as a pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import permutations, product
from math import gcd
from typing import Any

import numpy as np

from cost_models.catalog import hardware
from cost_models.catalog.names import UnknownName
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import AcceleratorSpec, ClusterSpec, NetworkTier, NodeGroup
from cost_models.training_cost import training_cost
from planner.answers.mixed_clusters.answer import GroupName, Kind, MixedAnswer, Option, StageUse
from planner.answers.mixed_clusters.pipeline import Groups, Result
from planner.answers.plans.competition import fastest
from planner.answers.plans.explain import report
from planner.constraints import RULES, Context
from planner.documents.plan_report import Note
from planner.documents.request import PlanRequest
from planner.progress import step, within_a_step
from planner.search.axes import Axes, divisors
from planner.search.exhaustive import cost_model
from planner.version import __version__

SIMULATED = 12  # pipelines that are simulated: the first by the closed form
SPLIT = 60  # plans whose layers are split over the groups: the first by the groups' rates
REFINED = 2  # simulated pipelines whose layer split the simulator improves further
MOST_ORDERED = 4  # with up to so many groups, every order along the pipeline is tried
PlacedPlan = tuple[ParallelPlan, tuple[int, ...]]  # a plan, and the group of each stage
# Of a tier of the network.
_SLOWER_WHERE_HIGHER = ("latency_s", "collective_wait_s", "oversubscription")
# These hold for the whole pipeline, not for each group: groups have different ranks and layers.
_RULES_NOT_APPLIED = ("world_size", "layers_not_divisible")


def find(request: PlanRequest) -> MixedAnswer:
    """Options to train on a mixed cluster that fit in memory, the fastest first."""
    began = time.perf_counter()
    groups = request.cluster.groups
    alike: list[Callable[[PlanRequest], Iterator[Option]]] = [
        *(partial(_single_group, place=place) for place in range(len(groups))),
        _slowest,
    ]
    mixed = Groups(request.model, request.cluster, request.training, request.search.memory_risk)
    placed = list(_plans_without_layers(request, mixed))
    total = len(alike) + len(placed)
    options = list[Option]()
    for done, way in enumerate(alike):
        step(done, total)
        with within_a_step():
            options += way(request)
    options += _pipelines(request, mixed, placed, total)
    options.sort(key=lambda option: option.iteration_time_s)
    return MixedAnswer(
        request=request.document(),
        version=__version__,
        groups=tuple(
            GroupName(accelerator=g.accelerator.id, nodes=g.nodes, accelerators=g.accelerators)
            for g in groups
        ),
        options=tuple(options),
        verdict=_verdict(options, groups),
        notes=tuple(_notes(request)),
        search_time_s=time.perf_counter() - began,
    )


def _single_group(request: PlanRequest, place: int) -> Iterator[Option]:
    """One group by itself, over the whole space."""
    alone = request.cluster.model_copy(update={"groups": (request.cluster.groups[place],)})
    yield from _equal(request, alone, "part", (place,))


def _slowest(request: PlanRequest) -> Iterator[Option]:
    """All nodes as equal ones, of which each is as slow and small as the worst."""
    groups = request.cluster.groups
    shapes = {
        (g.accelerators_per_node, tuple(t.domain_accelerators for t in g.network)) for g in groups
    }
    if len(shapes) == 1:
        alike = request.cluster.model_copy(update={"groups": (_worst(groups),)})
        yield from _equal(request, alike, "slowest", tuple(range(len(groups))))


def _worst(groups: tuple[NodeGroup, ...]) -> NodeGroup:
    """Equal nodes as many as all, each number the worst of the groups'."""
    first = groups[0]

    def least(
        specs: list[Any], fields: Any, higher_is_worse: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        found = {}
        for name in fields:
            values = [getattr(spec, name) for spec in specs]
            if all(isinstance(v, float | int) and not isinstance(v, bool) for v in values):
                found[name] = max(values) if name in higher_is_worse else min(values)
            elif any(v is None for v in values):
                found[name] = None
        return found

    accelerators = [g.accelerator for g in groups]
    slow = min(accelerators, key=lambda a: a.peak_bf16_flop_per_s or 0.0)
    worst = slow.model_copy(update=least(accelerators, AcceleratorSpec.model_fields))
    tiers = tuple(
        same[0].model_copy(update=least(list(same), NetworkTier.model_fields, _SLOWER_WHERE_HIGHER))
        for same in zip(*(g.network for g in groups), strict=True)
    )
    price = None
    if all(g.price_usd_per_accelerator_hour is not None for g in groups):
        spent = sum((g.price_usd_per_accelerator_hour or 0.0) * g.accelerators for g in groups)
        price = spent / sum(g.accelerators for g in groups)
    return first.model_copy(
        update={
            "accelerator": worst,
            "nodes": sum(g.nodes for g in groups),
            "network": tiers,
            "price_usd_per_accelerator_hour": price,
        }
    )


def _equal(
    request: PlanRequest, cluster: ClusterSpec, kind: Kind, order: tuple[int, ...]
) -> Iterator[Option]:
    """The best plan on equal nodes, if any fits."""
    asked = request.model_copy(update={"cluster": cluster})
    first = fastest(asked)
    bound, rows = first.request, first.outcome.best
    if not rows:
        return
    found = report(cost_model(bound), bound, rows[0])
    stages = tuple(
        StageUse.of(
            s,
            group=order[0] if kind == "part" else -1,
            micro_batch_s=found.iteration_time_s / found.num_micro_batches,
            capacity_bytes=found.memory.capacity_bytes,
        )
        for s in found.memory.stages
    )
    count = cluster.accelerators
    yield Option.of(found, kind=kind, order=order, accelerators=count, stages=stages)


def _pipelines(
    request: PlanRequest, groups: Groups, placed: Sequence[PlacedPlan], total: int
) -> Iterator[Option]:
    """The best pipeline whose stages stand on one group each; total: steps of the whole work."""
    ranked = []
    for left, (plan, owner) in zip(range(len(placed), 0, -1), placed, strict=True):
        step(total - left, total)
        layers = groups.partition(plan, owner)
        if layers is not None:
            partition = plan.model_copy(update={"stage_layers": layers})
            ranked.append((groups.rough_s(partition, owner), partition, owner))
    ranked.sort(key=lambda item: item[0])
    simulated = [
        (groups.evaluate(plan, owner), plan, owner) for _, plan, owner in ranked[:SIMULATED]
    ]
    simulated.sort(key=lambda item: (not item[0].fits, item[0].iteration_time_s))
    refined = [(*groups.refined(plan, owner), owner) for _, plan, owner in simulated[:REFINED]]
    fitting = [item for item in refined if item[1].fits]
    if fitting:
        yield _option(request, *min(fitting, key=lambda item: item[1].iteration_time_s))


def _plans_without_layers(request: PlanRequest, groups: Groups) -> Iterator[PlacedPlan]:
    """Legal plans without their layers, and the group of each stage, in every order of groups.

    The first SPLIT by the time that the groups' rates add up to, layers split evenly, of those
    whose stages have room in all groups together; the others after them.
    """
    rows = list(_candidates(request))
    if not rows:
        return
    plans = Plans.from_rows(rows)
    legal = np.ones(len(rows), dtype=np.bool_)
    for group in request.cluster.groups:
        alone = request.cluster.model_copy(update={"groups": (group,)})
        context = Context(request.model, alone, request.training)
        for rule in RULES:
            if rule.code not in _RULES_NOT_APPLIED:
                legal &= np.asarray(rule.legal(context, plans))
    kept = np.flatnonzero(legal)
    if not len(kept):
        return
    rate = np.zeros(len(kept))
    for model, group in zip(groups.models, request.cluster.groups, strict=True):
        rate += group.accelerators / model.evaluate(plans.take(kept)).iteration_time_s
    first = np.lexsort((-rate, ~groups.have_room(plans.take(kept))))
    places = range(len(request.cluster.groups))
    orders = list(permutations(places)) if len(places) <= MOST_ORDERED else [tuple(places)]
    for i in kept[first][:SPLIT].tolist():
        plan = rows[i]
        size = plan.tp * plan.cp * plan.dp
        for order in orders:
            counts = ((g, request.cluster.groups[g].accelerators // size) for g in order)
            yield plan, tuple(g for g, stages in counts for _ in range(stages))


def _candidates(request: PlanRequest) -> Iterator[ParallelPlan]:
    """Plans whose stages fill whole parts of every group."""
    groups, values = request.cluster.groups, Axes(request).values
    total, shared = request.cluster.accelerators, gcd(*(g.accelerators for g in groups))
    if "1f1b" not in values["schedule"]:
        return
    zero = 1 if 1 in values["zero_stage"] else values["zero_stage"][0]
    recomputes: list[dict[str, Any]] = [
        {"recompute": "none"},
        {"recompute": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    ]
    for size in divisors(shared):
        stages = total // size
        if stages not in values["pp"]:
            continue
        for tp, cp, micro, recompute in product(
            values["tp"], values["cp"], values["micro_batch_size"], recomputes
        ):
            if size % (tp * cp) == 0 and recompute["recompute"] in values["recompute"]:
                yield ParallelPlan(
                    tp=tp, sequence_parallel=tp > 1, cp=cp, pp=stages, dp=size // (tp * cp),
                    zero_stage=zero, micro_batch_size=micro, **recompute,
                )  # fmt: skip


def _option(
    request: PlanRequest, plan: ParallelPlan, result: Result, owner: tuple[int, ...]
) -> Option:
    training = request.training
    tokens_per_s = training.tokens_per_iteration / result.iteration_time_s
    whole = None
    if training.tokens is not None:
        whole = training_cost(request.cluster, training.tokens / tokens_per_s)
    return Option(
        kind="pipeline",
        order=tuple(dict.fromkeys(owner)),
        accelerators=request.cluster.accelerators,
        plan=plan,
        iteration_time_s=result.iteration_time_s,
        tokens_per_s=tokens_per_s,
        days=whole and whole.days,
        cost_usd=whole and whole.cost_usd,
        stages=tuple(
            StageUse(
                stage=s,
                group=g,
                layers=plan.stage_layers[s],
                micro_batch_s=float(result.stage_s[s]),
                total_bytes=float(result.stage_bytes[s]),
                capacity_bytes=float(result.capacity_bytes[s]),
            )
            for s, g in enumerate(owner)
        ),
    )


def _verdict(options: list[Option], groups: tuple[NodeGroup, ...]) -> str:
    """One sentence: whether the whole cluster or a part of it is fastest."""
    if not options:
        return "Nothing fits, on a part or on all of the cluster"
    best = options[0]
    alone = next((option for option in options if option.kind == "part"), None)
    if best.kind == "part":
        name = groups[best.order[0]].accelerator.id
        return f"The {name} nodes alone are fastest; the others would slow them down"
    words = {
        "slowest": "All nodes, evenly loaded",
        "pipeline": "All nodes, layers distributed by their speed",
    }[best.kind]
    if alone is None:
        return f"{words}: no group alone has a plan that fits"
    gain = alone.iteration_time_s / best.iteration_time_s
    name = groups[alone.order[0]].accelerator.id
    return f"{words}: {gain:.2f} times as fast as the {name} nodes alone"


def _notes(request: PlanRequest) -> Iterator[Note]:
    """Notes on the assumptions of each kind of option."""
    yield Note(
        code="pipeline",
        text="pipelines over groups: 1F1B, each stage on nodes of one kind, sequence parallel with "
        "tp, recompute none or full, ZeRO as allowed; timed by the simulator",
    )
    yield Note(
        code="slowest",
        text="all evenly: every accelerator and link as slow and small as the worst of the groups",
    )
    yield Note(code="links", text="messages between groups take the slower group's links")
    if request.training.tokens is None:
        return
    yield Note(code="days", text="days without failures and checkpoints, which planner size counts")
    for group in request.cluster.groups:
        yield Note(code="price", text=f"{group.accelerator.id}: {_price_words(group)}")


def _price_words(group: NodeGroup) -> str:
    price = group.price_usd_per_accelerator_hour
    if price is None:
        return "no price known, so no cost where it is used"
    try:
        usual = hardware.node_group(group.accelerator.id, 1).price_usd_per_accelerator_hour
    except UnknownName:
        usual = None
    source = f"a catalog default of {hardware.prices_date()}" if price == usual else "as given"
    return f"${price:g} per accelerator-hour, {source}"
