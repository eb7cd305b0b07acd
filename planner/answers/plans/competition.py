"""The competition of frameworks: the fastest plan of each, priced with its own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.constraints import Context, Rule
from planner.documents.request import Bounds, PlanRequest, Value
from planner.frameworks.base import Framework
from planner.frameworks.devices import usual
from planner.frameworks.plan_defaults import usual_training
from planner.frameworks.supported import attention_kernels, runners, runs, tunes_on_one_node
from planner.progress import Parts, within_a_step
from planner.search.axes import EXPERT_FIELDS, divisors
from planner.search.exhaustive import search
from planner.search.outcome import Outcome

# A plan this much slower than the best one so far may win once its layers are repartitioned.
REPARTITIONED = 1.05
# What FSDP reduces gradients of adapters in too.
_REDUCED = "gradient_reduce_dtype"
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


def compete(
    request: PlanRequest, top_k: int | None = None, best_only: bool = False,
    fastest_only: bool = False,
) -> list[Entry]:  # fmt: skip
    """Every framework with a plan that fits, the fastest first; ties in the order of registration.

    If the request names a framework, only that one; else those of `_asked` that run the model on
    these accelerators.  If none has a plan that fits, a single entry without a plan: of the
    preferred framework, or of none if no framework runs the requested schedules.  For all but the
    first framework (for all of them with best_only), only the best plan is searched; with
    fastest_only none of a framework that is slower than one before.
    """
    context = Context(request.model, request.cluster, request.training)
    named = request.search.framework
    able = (named,) if named else _asked(context)
    entries = _entries(request, able, top_k, best_only, fastest_only)
    fitting = sorted((one for one in entries if one.outcome.best), key=_score)
    if not fitting:
        free = None if named else _entry(request, None, top_k)
        if free is not None and (free.outcome.best or not entries):
            return [free]
        return [_entry(request, able[0], top_k) if best_only else entries[0]]
    if best_only or fitting[0].outcome is entries[0].outcome:
        return fitting
    return _searched_whole(request, fitting, top_k)


def by_trainers(request: PlanRequest) -> list[Entry]:
    """Trainers with a plan that fits, the fastest first; of the framework alone that is named.

    Each trains as it usually does where the request says nothing: the entry's request has that.
    Gradients of adapters are reduced as those of all weights are, which FSDP needs.
    """
    left_out = {name.removeprefix("/training/") for name in request.defaulted}
    training, named, entries = request.training, request.search.framework, list[Entry]()
    adapts = training.lora_rank > 0
    for name in (named,) if named else frameworks.FRAMEWORKS:
        framework, tried = frameworks.get(name), {training} if named else set()
        usual = usual_training(framework, training.precision, adapts)
        sharded = {_REDUCED: framework.training[_REDUCED]} if _REDUCED in framework.training else {}
        for fields in (usual, usual | sharded) if framework.adapters else ():
            own = training.model_copy(update={n: fields[n] for n in left_out & fields.keys()})
            if own not in tried and runs(name, Context(request.model, request.cluster, own)):
                entries.append(_entry(request.model_copy(update={"training": own}), name, None))
            tried.add(own)
    return sorted((one for one in entries if one.outcome.best), key=_score)


def _asked(context: Context) -> tuple[str, ...]:
    """The frameworks that compete where none is named.

    For adapters on one node those are the trainers that one command starts there on a data set, if
    any runs, else those that have adapters.
    """
    able = runners(context)
    if not tunes_on_one_node(context.cluster, context.training.lora_rank > 0):
        return able
    adapting = tuple(name for name in able if frameworks.get(name).adapters)
    return tuple(name for name in adapting if not frameworks.get(name).competes) or adapting or able


def _entries(
    request: PlanRequest,
    able: Sequence[str],
    top_k: int | None,
    best_only: bool,
    fastest_only: bool,
) -> list[Entry]:
    """What each framework finds; of all but the first only the best plan.

    fastest_only: of those that are slower than one before, no plan.
    """
    entries: list[Entry] = []
    by_memory = request.search.objective == "memory_headroom"
    told = Parts(len(able), lowest="peak_bytes" if by_memory else "iteration_time_s")
    for name in able:
        with told.part():
            best_s = min(map(_score, entries), default=np.inf) if fastest_only else np.inf
            entry = _shared(request, name, entries)
            only = best_only or bool(entries)
            entries.append(entry or _entry(request, name, top_k, only, REPARTITIONED * best_s))
    return entries


def _score(entry: Entry) -> float:
    return entry.outcome.score


def _searched_whole(request: PlanRequest, fitting: list[Entry], top_k: int | None) -> list[Entry]:
    """The entries, the winner and those that share its outcome with more than its best plan."""
    with within_a_step():
        whole = _entry(request, fitting[0].framework, top_k)
    if whole.outcome.score > fitting[0].outcome.score:  # it was stopped
        return fitting
    alike = fitting[0].outcome
    return [replace(one, outcome=whole.outcome) if one.outcome is alike else one for one in fitting]


def fastest(request: PlanRequest) -> Entry:
    """The framework whose best plan is the fastest, with that plan alone."""
    return compete(request, top_k=1, best_only=True, fastest_only=True)[0]


def _entry(
    request: PlanRequest, name: str | None, top_k: int | None, best_only: bool = False,
    most_s: float = np.inf,
) -> Entry:  # fmt: skip
    bound, rules = prepared(request.for_framework(name))
    top_k = 1 if best_only else top_k
    outcome = search(bound, rules, top_k=top_k, best_only=best_only, most_s=most_s)
    return Entry(name, bound, rules, outcome)


def _shared(request: PlanRequest, name: str, others: list[Entry]) -> Entry | None:
    """The entry of a framework that shares the search space of another and accepts its best plan.

    Megatron-Bridge and Megatron-LM differ in the trainings that they support (adapters, packed
    lengths), which the rules have checked before, and not in their plans.
    """
    own = frameworks.get(name)
    for other in others:
        its = frameworks.get(str(other.framework))
        alike = _varied(own) == _varied(its) and own.splits == its.splits
        if alike and other.outcome.best and not own.reasons(request, other.outcome.best[0]):
            bound, rules = prepared(request.for_framework(name))
            return Entry(name, bound, rules, other.outcome)
    return None


def _varied(framework: Framework) -> dict[str, tuple[Value, ...]]:
    """The axes of a framework that a search without it has otherwise."""
    usual = ParallelPlan()
    return {
        name: values for name, values in framework.axes.items() if values != (getattr(usual, name),)
    }


def prepared(request: PlanRequest) -> tuple[PlanRequest, tuple[Rule, ...]]:
    """The request to be searched, and the rules of its framework (none without a framework).

    The axes of the framework, or else of the cluster, are limits unless the request has its own.
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
        degrees = divisors(request.cluster.accelerators)
        splits = {chosen.splits(request.model, pp, tp) for pp in degrees for tp in degrees}
        whole = sorted(split for split in splits if min(split) > 0)[:_MOST_SPLITS]
        limits["stage_layers"] = Bounds(values=((), *whole))
    return limited(request, {**limits, **request.search.limits}), chosen.rules


def _other_kernels(request: PlanRequest, chosen: Framework) -> tuple[str, ...]:
    """Attention kernels of the model, where a framework's usual one is none of them.

    Few kernels have sinks, and families of transformers differ in their kernels.
    """
    if not request.model.attention_sinks and chosen.runtime != "transformers":
        return ()
    context = Context(request.model, request.cluster, request.training)
    able = attention_kernels(chosen.name, context)
    return () if chosen.axes.get("attention_kernel", ("flash",))[0] in able else able


def limited(request: PlanRequest, limits: dict[str, Bounds], **search_fields: Any) -> PlanRequest:
    """The request with other limits on its search."""
    changed = request.search.model_copy(update={"limits": limits, **search_fields})
    return request.model_copy(update={"search": changed})
