"""The competition of frameworks: the fastest plan of each, priced with its own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from cost_models.plans import ParallelPlan
from cost_models.spec import ClusterSpec
from planner import frameworks
from planner.constraints import Context, Rule
from planner.documents.request import Bounds, PlanRequest, Value
from planner.documents.scored_runs import has_runs
from planner.frameworks.base import Framework
from planner.frameworks.devices import preferred, usual
from planner.frameworks.plan_defaults import own_trainings
from planner.frameworks.supported import (
    attention_kernels,
    runners,
    runners_on_each,
    running,
    runs,
    tunes_on_one_node,
)
from planner.progress import Parts, within_a_step
from planner.search.axes import EXPERT_FIELDS, SpaceTooLarge, divisors_of_any
from planner.search.exhaustive import fits, search
from planner.search.outcome import Outcome
from planner.search.several_spaces import best_of_each, best_on_each, priced_together

# A plan this much slower than the best one so far may win once its layers are repartitioned.
REPARTITIONED = 1.05
# Most layer splits of a framework that decides them itself: a limit may name as many values.
_MOST_SPLITS = 255


@dataclass(frozen=True)
class Entry:
    """One framework's result.

    framework: its name; None if no framework supports these accelerators, or none runs the
    requested schedules.  request, rules: those of its search.
    """

    framework: str | None
    request: PlanRequest
    rules: tuple[Rule, ...]
    outcome: Outcome


def compete(request: PlanRequest, top_k: int | None = None) -> list[Entry]:
    """Every framework with a plan that fits, the fastest first; ties in the order of registration.

    If the request names a framework, only that one; else those of `_asked` that run the model on
    these accelerators.  If none has a plan that fits, a single entry without a plan: of the
    preferred framework, or of none if no framework runs the requested schedules.  For all but the
    first framework only the best plan is searched.
    """
    able = _candidate_frameworks(request)
    told = _shared_progress(request, 3)
    with told.part():
        entries = [_entry(request, name, top_k) for name in able[:1]]
    (entries,) = _others([request], able, [entries], told, np.inf)
    fitting = sorted((one for one in entries if one.outcome.best), key=_rank_key)
    if not fitting:
        return [_none_fits(request, top_k, entries[0] if entries else None)]
    if fitting[0].outcome is entries[0].outcome:
        return fitting
    return _searched_whole(request, fitting, top_k)


def fastest(request: PlanRequest) -> Entry:
    """The framework whose best plan is the best, with that plan alone."""
    able = _candidate_frameworks(request)
    (entries,) = _others([request], able, [[]], _shared_progress(request, 2), REPARTITIONED)
    if found := _first(entries):
        return found
    return _none_fits(request, 1, _entry(request, able[0], 1) if able else None)


def any_fits(request: PlanRequest) -> bool:
    """Whether `fastest` finds a plan that fits, told sooner."""
    context, told = Context(request.model, request.cluster, request.training), []
    usual = not request.search.framework and not request.training.lora_rank
    able = running(context) if usual else _candidate_frameworks(request)
    for name in chain(able, () if request.search.framework else (None,)):
        told.append(fits(*prepared(request.for_framework(name))))
        if told[-1]:
            return True
    return None in told and bool(fastest(request).outcome.best)


def fastest_on_each(request: PlanRequest, clusters: Sequence[ClusterSpec]) -> list[Entry]:
    """What `fastest` finds on each cluster, those together that differ in nodes only."""
    asked = [request.model_copy(update={"cluster": cluster}) for cluster in clusters]
    found = dict[int, Entry | None]()
    for able, places in _alike(asked):
        found |= zip(
            places, _fastest_searched_together([asked[i] for i in places], able), strict=True
        )
    return [found.get(place) or fastest(one) for place, one in enumerate(asked)]


def _alike(asked: Sequence[PlanRequest]) -> list[tuple[tuple[str, ...], list[int]]]:
    """Places of requests that differ in the number of nodes only, the largest last, and the
    frameworks that are searched for them.
    """
    by_key: dict[Any, list[int]] = {}
    for place in sorted(range(len(asked)), key=lambda i: asked[i].cluster.accelerators):
        if (key := key_without_node_count(asked[place])) is not None:
            by_key.setdefault(key, []).append(place)
    by_able: dict[Any, list[int]] = {}
    for key, places in by_key.items():
        if len(places) == 1:
            continue
        largest = asked[places[-1]]
        each = _able_on_each(largest, [asked[i].cluster.accelerators for i in places])
        for able, place in zip(each, places, strict=True):
            by_able.setdefault((key, able), []).append(place)
    return [(able, places) for (_, able), places in by_able.items() if len(places) > 1]


def key_without_node_count(request: PlanRequest) -> tuple[Any, ...] | None:
    """What clusters have in common that differ in the number of nodes only.

    None where more of a search hangs on that: the room of hosts, slices of TPUs.
    """
    cluster, search = request.cluster, request.search
    reads = "offload_optimizer" in {*search.open, *search.limits} or preferred(cluster)
    if reads or len(cluster.groups) > 1 or not priced_together(request):
        return None
    group = cluster.groups[0].model_copy(update={"nodes": 1})
    tunes = tunes_on_one_node(cluster, request.training.lora_rank > 0)
    return group, cluster.reserved_bytes_per_accelerator, tunes


def _fastest_searched_together(
    asked: Sequence[PlanRequest], able: Sequence[str]
) -> list[Entry | None]:
    """The fastest entry of each request, which differ in nodes only; None: search it alone."""
    none = [list[Entry]() for _ in asked]
    try:
        each = _others(asked, able, none, _shared_progress(asked[-1], 2), REPARTITIONED)
    except SpaceTooLarge:  # one of them may not be
        each = none
    return [_first(entries) for entries in each]


def _first(entries: Sequence[Entry]) -> Entry | None:
    """The fastest entry; ties in their order."""
    fitting = [one for one in entries if one.outcome.best]
    return min(fitting, key=_rank_key, default=None)


def _able_on_each(request: PlanRequest, sizes: Sequence[int]) -> list[tuple[str, ...]]:
    """The candidates on clusters of so many accelerators, which are else as the request's."""
    if request.search.framework:
        return [(request.search.framework,)] * len(sizes)
    context = Context(request.model, request.cluster, request.training)
    return [_competing_among(context, able) for able in runners_on_each(context, sizes)]


def _shared_progress(request: PlanRequest, parts: int) -> Parts:
    by_memory = request.search.objective == "memory_headroom"
    return Parts(parts, lowest="peak_bytes" if by_memory else "iteration_time_s")


def _candidate_frameworks(request: PlanRequest) -> tuple[str, ...]:
    """The framework that is named, or those that compete."""
    if request.search.framework:
        return (request.search.framework,)
    return _asked(Context(request.model, request.cluster, request.training))


def _none_fits(request: PlanRequest, top_k: int | None, first: Entry | None) -> Entry:
    """An entry where no framework has a plan that fits."""
    if not request.search.framework:
        free = _entry(request, None, top_k)
        if free.outcome.best or first is None:
            return free
    assert first is not None
    return first


def by_trainers(request: PlanRequest) -> list[Entry]:
    """Trainers with a plan that fits, the fastest first; of the framework alone that is named.

    Each trains as it usually does where the request says nothing: the entry's request has that.
    Gradients of adapters are reduced as those of all weights are, which FSDP needs.
    """
    training, named, entries = request.training, request.search.framework, list[Entry]()
    for name in (named,) if named else frameworks.FRAMEWORKS:
        framework, tried = frameworks.get(name), {training} if named else set()
        if not framework.adapters:
            continue
        for own in own_trainings(framework, training, request.training_left_out):
            if own not in tried and runs(name, Context(request.model, request.cluster, own)):
                entries.append(_entry(request.model_copy(update={"training": own}), name, None))
            tried.add(own)
    return sorted((one for one in entries if one.outcome.best), key=_rank_key)


def _asked(context: Context) -> tuple[str, ...]:
    """The frameworks that compete where none is named.

    For adapters on one node those are the trainers that one command starts there on a data set, if
    any runs, else those that have adapters.
    """
    return _competing_among(context, runners(context))


def _competing_among(context: Context, able: tuple[str, ...]) -> tuple[str, ...]:
    """The same; able: the frameworks that run the model."""
    if not tunes_on_one_node(context.cluster, context.training.lora_rank > 0):
        return able
    adapting = tuple(name for name in able if frameworks.get(name).adapters)
    return tuple(name for name in adapting if not frameworks.get(name).competes) or adapting or able


def _others(
    asked: Sequence[PlanRequest], able: Sequence[str], given: Sequence[list[Entry]], told: Parts,
    within: float,
) -> list[list[Entry]]:  # fmt: skip
    """The given entries, and the best plan of each of the other frameworks, in the order of `able`.

    Of each request; several differ in the number of nodes only, the largest is the last.  One
    search for all that have a space of their own; then those that accept no plan that it found.
    within: see best_of_each.
    """
    first = len(given[0])
    searched: list[Framework] = [frameworks.get(name) for name in able[:first]]
    alike = list[str]()
    for name in able[first:]:
        own = frameworks.get(name)
        if any(_same_space(own, its) for its in searched):
            alike.append(name)
        else:
            searched.append(own)
    with told.part():
        found = _best_of_each(asked, [own.name for own in searched[first:]], within, given)
        each = [[*entries, *others] for entries, others in zip(given, found, strict=True)]
    shared = [
        {name: one for name in alike if (one := _shared(request, name, entries))}
        for request, entries in zip(asked, each, strict=True)
    ]
    left = [name for name in alike if any(name not in own for own in shared)]
    with told.part():
        found = _best_of_each(asked, left, within, each)
    return [
        sorted(
            (*entries, *({str(one.framework): one for one in others} | own).values()),
            key=lambda one: able.index(str(one.framework)),
        )
        for entries, others, own in zip(each, found, shared, strict=True)
    ]


def _best_of_each(
    asked: Sequence[PlanRequest], names: Sequence[str], within: float,
    entries: Sequence[Sequence[Entry]],
) -> list[list[Entry]]:  # fmt: skip
    """The best plan of each framework for each request; entries: what is found already."""
    sizes = [request.cluster.accelerators for request in asked]
    questions = [prepared(asked[-1].for_framework(name), sizes) for name in names]
    best_s = [min(map(_score, own), default=np.inf) for own in entries]
    if len(asked) == 1:
        found = [[own] for own in best_of_each(questions, within, *best_s)]
    else:
        found = best_on_each(questions, sizes, within, np.array(best_s))
    return [
        [
            Entry(name, bound.model_copy(update={"cluster": request.cluster}), rules, own[place])
            for name, (bound, rules), own in zip(names, questions, found, strict=True)
        ]
        for place, request in enumerate(asked)
    ]


def _score(entry: Entry) -> float:
    return entry.outcome.score


def _rank_key(entry: Entry) -> tuple[bool, float]:
    """The order of frameworks: no estimate heads that stands on code alone, without a run."""
    plans = entry.outcome.best
    return bool(plans) and not has_runs(plans[0].runtime), entry.outcome.score


def _searched_whole(request: PlanRequest, fitting: list[Entry], top_k: int | None) -> list[Entry]:
    """The entries, the winner and those that share its outcome with more than its best plan."""
    with within_a_step():
        whole = _entry(request, fitting[0].framework, top_k)
    if whole.outcome.score > fitting[0].outcome.score:  # it was stopped
        return fitting
    alike = fitting[0].outcome
    return [replace(one, outcome=whole.outcome) if one.outcome is alike else one for one in fitting]


def _entry(request: PlanRequest, name: str | None, top_k: int | None) -> Entry:
    bound, rules = prepared(request.for_framework(name))
    return Entry(name, bound, rules, search(bound, rules, top_k=top_k))


def _shared(request: PlanRequest, name: str, others: list[Entry]) -> Entry | None:
    """The entry of a framework that shares the search space of another and accepts its best plan.

    Megatron-Bridge and Megatron-LM differ in the trainings that they support (adapters, packed
    lengths), which the rules have checked before, and not in their plans.
    """
    own = frameworks.get(name)
    for other in others:
        best = other.outcome.best
        alike = best and _same_space(own, frameworks.get(str(other.framework)))
        if alike and not own.reasons(request, best[0]):
            bound, rules = prepared(request.for_framework(name))
            return Entry(name, bound, rules, other.outcome)
    return None


def _same_space(own: Framework, other: Framework) -> bool:
    """Whether a search takes the same values of all axes for both."""
    return _framework_axes(own) == _framework_axes(other) and own.splits == other.splits


def _framework_axes(framework: Framework) -> dict[str, tuple[Value, ...]]:
    """The axes of a framework that a search without it has otherwise."""
    usual = ParallelPlan()
    return {
        name: values for name, values in framework.axes.items() if values != (getattr(usual, name),)
    }


def prepared(
    request: PlanRequest, sizes: Sequence[int] = ()
) -> tuple[PlanRequest, tuple[Rule, ...]]:
    """The request to be searched, and the rules of its framework (none without a framework).

    The axes of the framework, or else of the cluster, are limits unless the request has its own.
    sizes: numbers of accelerators that are searched together, if not the cluster's alone.
    """
    if not request.search.framework:
        own = {name: Bounds(values=values) for name, values in usual(request.cluster).items()}
        return limited(request, {**own, **request.search.limits}) if own else request, ()
    chosen = frameworks.get(request.search.framework)
    limits = {
        name: Bounds(values=values)
        for name, values in chosen.axes.items()
        if request.model.moe is not None or name not in EXPERT_FIELDS
    }
    if kernels := _other_kernels(request, chosen):
        limits["attention_kernel"] = Bounds(values=kernels)
    if chosen.splits is not None:
        degrees = divisors_of_any(sizes or (request.cluster.accelerators,))
        splits = {chosen.splits(request.model, pp, tp) for pp in degrees for tp in degrees}
        whole = sorted(split for split in splits if min(split) > 0)[:_MOST_SPLITS]
        limits["stage_layers"] = Bounds(values=((), *whole))
    return limited(request, {**limits, **request.search.limits}), chosen.rules


def _other_kernels(request: PlanRequest, chosen: Framework) -> tuple[str, ...]:
    """Attention kernels of the model, where a framework's usual one is none of them.

    Few kernels have sinks, families of transformers differ in their kernels, and accelerators
    before Ampere have few.
    """
    older = request.cluster.before_ampere
    if not (request.model.attention_sinks or chosen.runtime == "transformers" or older):
        return ()
    context = Context(request.model, request.cluster, request.training)
    able = attention_kernels(chosen.name, context)
    return () if chosen.axes.get("attention_kernel", ("flash",))[0] in able else able


def limited(request: PlanRequest, limits: dict[str, Bounds], **search_fields: Any) -> PlanRequest:
    """The request with other limits on its search."""
    changed = request.search.model_copy(update={"limits": limits, **search_fields})
    return request.model_copy(update={"search": changed})
