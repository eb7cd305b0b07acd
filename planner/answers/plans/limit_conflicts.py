"""Limits of a request that no plan can meet, alone or together, whatever the search varies.

They are numbers that must divide one another, so they are known without a search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

from cost_models.plans import VOCABULARIES, ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from planner.constraints import RULES, Context
from planner.documents.answer import LimitConflict
from planner.documents.formats import value_words
from planner.documents.request import PlanRequest
from planner.search.axes import divisors

_DEGREES = ("tp", "cp", "pp", "dp")
_POSITIVE = (*_DEGREES, "ep", "etp", "vpp", "micro_batch_size")
# Values of a range that are looked at; a wider one has a value that does.
_MOST_VALUES = 256

Values = dict[str, tuple[Any, ...]]


def limit_conflicts(request: PlanRequest) -> tuple[LimitConflict, ...]:
    """Every conflict; a limit that is impossible alone is not told again with others."""
    limited = _limited(request)
    found = [
        LimitConflict(fields=(name,), text=f"{name} at most 0: the least is 1")
        for name in _POSITIVE
        if limited.get(name) == ()
    ]
    values = {name: own for name, own in limited.items() if own}
    for check in (_degrees, _batch, _widths, _experts, _chunks):
        found += check(request, values)
    return tuple(found)


def _limited(request: PlanRequest) -> Values:
    """The values that the request leaves of each field that it limits."""
    values: Values = {}
    for name, bounds in request.search.limits.items():
        if bounds.values is not None:
            values[name] = bounds.values
        elif bounds.max is not None and bounds.max - (bounds.min or 0) < _MOST_VALUES:
            values[name] = tuple(range(max(bounds.min or 0, 1), bounds.max + 1))
    return values


def _conflict(values: Values, names: Sequence[str], what: str) -> LimitConflict:
    """What the values of these fields cannot: `what` goes on after them."""
    said = [f"{name} {' or '.join(map(value_words, values[name]))}" for name in names]
    return LimitConflict(fields=tuple(names), text=f"{' and '.join(said)}: {what}")


def _degrees(request: PlanRequest, values: Values) -> Iterator[LimitConflict]:
    """Degrees of parallelism that do not divide the accelerators."""
    world, alone = request.cluster.accelerators, False
    for name in (name for name in _DEGREES if name in values):
        if all(world % int(value) for value in values[name]):
            alone = True
            fitting = ", ".join(map(str, divisors(world)))
            yield _conflict(values, [name], f"must divide the {world} accelerators ({fitting})")
    names = [name for name in _DEGREES if name in values]
    sizes = _products(values, names, world)
    whole = len(names) == len(_DEGREES)
    if not alone and all(size != world if whole else world % size for size in sizes):
        must = "be" if whole else "divide"
        got = " or ".join(map(str, sorted(sizes)))
        yield _conflict(values, names, f"their product {got} must {must} the {world} accelerators")


def _products(values: Values, names: Sequence[str], world: int) -> set[int]:
    """The products of one value of each field; of those alone that divide the accelerators."""
    sizes = {1}
    for name in names:
        sizes = {size * int(own) for size in sizes for own in values[name] if world % int(own) == 0}
    return sizes


def _batch(request: PlanRequest, values: Values) -> Iterator[LimitConflict]:
    """Micro-batches that do not divide the batch, on their own or over the replicas."""
    batch = request.training.global_batch_size
    micro = [int(size) for size in values.get("micro_batch_size", (1,))]
    if all(batch % size for size in micro):
        yield _conflict(values, ["micro_batch_size"], f"must divide the batch of {batch:,}")
        return
    sources, replicas = _replicas(values, request.cluster.accelerators)
    if replicas and all(batch % (size * dp) for size, dp in product(micro, replicas)):
        names = [name for name in ("micro_batch_size", *sources) if name in values]
        got = " or ".join(map(str, sorted(replicas)))
        what = f"micro-batch x dp ({got}) must divide the batch of {batch:,}"
        yield _conflict(values, names, what)


def _replicas(values: Values, world: int) -> tuple[tuple[str, ...], set[int]]:
    """The fields that decide dp, and the values that they leave of it; none where it is open."""
    if "dp" in values:
        return ("dp",), {int(dp) for dp in values["dp"]}
    sources = ("tp", "cp", "pp")
    if not values.keys() >= set(sources):
        return (), set()
    sizes = _products(values, sources, world)
    return sources, {world // size for size in sizes if world % size == 0}


def _widths(request: PlanRequest, values: Values) -> Iterator[LimitConflict]:
    """Degrees that do not divide the model's heads and widths, or the sequence."""
    context = Context(request.model, request.cluster, request.training)
    codes = {"tp": ("heads_not_divisible", "kv_heads", "ffn_not_divisible"), "cp": ("cp_seq",)}
    for name in codes.keys() & values.keys():
        for rule in (rule for rule in RULES if rule.code in codes[name]):
            plans = [
                ParallelPlan.model_validate({name: value, "cp_kind": kind})
                for value, kind in product(values[name], VOCABULARIES["cp_kind"])
            ]
            if not any(rule.legal(context, Plans.of(plan)).all() for plan in plans):
                yield LimitConflict(fields=(name,), text=rule.explain(context, plans[0]))


def _experts(request: PlanRequest, values: Values) -> Iterator[LimitConflict]:
    """Expert parallelism that does not divide the experts."""
    experts = request.model.moe.num_experts if request.model.moe is not None else 1
    if all(experts % int(ep) for ep in values.get("ep", (1,))):
        what = f"must divide the {experts} experts" if experts > 1 else "the model has no experts"
        yield _conflict(values, ["ep"], what)


def _chunks(request: PlanRequest, values: Values) -> Iterator[LimitConflict]:
    """Stages and chunks beyond the layers, or chunks that the schedule does not have."""
    layers, pairs = request.model.num_layers, list[tuple[list[str], Callable[..., bool], str]]()
    if "stage_layers" not in values:
        pairs.append((["pp"], lambda pp: pp <= layers, f"more stages than {layers} layers"))
        more = f"stages x chunks are more than {layers} layers"
        pairs.append((["pp", "vpp"], lambda pp, vpp: pp > layers or pp * vpp <= layers, more))
    pairs.append((["pp", "vpp"], lambda pp, vpp: pp > 1 or vpp == 1, "chunks need stages, pp > 1"))
    pairs.append((["schedule", "vpp"], _has_chunks, ""))
    for names, passes, what in pairs:
        if not values.keys() >= set(names):
            continue
        if not any(passes(*each) for each in product(*(values[name] for name in names))):
            yield _conflict(values, names, what or _chunk_words(values["schedule"]))


def _has_chunks(schedule: str, vpp: int) -> bool:
    counts = SCHEDULES[schedule].chunk_counts
    return vpp in counts if counts else vpp > 1


def _chunk_words(schedules: Sequence[str]) -> str:
    counts = {
        name: " or ".join(map(str, SCHEDULES[name].chunk_counts)) or "2 or more"
        for name in schedules
    }
    return "; ".join(f"vpp of {name} is {count}" for name, count in counts.items())
