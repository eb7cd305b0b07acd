"""The frameworks against each other: each one's fastest plan, priced with its own kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cost_models.plans import Plans
from planner import frameworks
from planner.documents.request import Bounds, PlanRequest
from planner.frameworks.able import runners
from planner.frameworks.devices import usual
from planner.progress import Parts
from planner.search.axes import EXPERT_FIELDS, divisors
from planner.search.constraints import Context, Rule
from planner.search.exhaustive import Outcome, cost_model, objective, search

# Of a framework that deals out layers by itself; a limit may name so many values.
_MOST_SPLITS = 255


@dataclass(frozen=True)
class Entry:
    """What one framework can do.

    framework: its name; None where no framework writes for these accelerators, or none runs what
    was asked for.  request, rules: as it is searched; score: of its best plan, the lower the
    better.
    """

    framework: str | None
    request: PlanRequest
    rules: tuple[Rule, ...]
    outcome: Outcome
    score: float


def compete(request: PlanRequest, top_k: int | None = None) -> list[Entry]:
    """Every framework that fits a plan, that of the best first; of equals, the first registered.

    The one that is named alone; else those that run the model on these accelerators.  Where none
    fits a plan, one entry without: of the preferred framework, or, if only schedules that no
    framework runs were asked for, of those.
    """
    named = request.search.framework
    if named:
        return [_entry(request, named, top_k)]
    able = runners(Context(request.model, request.cluster, request.training))
    entries: list[Entry] = []
    by_memory = request.search.objective == "memory_headroom"
    told = Parts(len(able), lowest="peak_bytes" if by_memory else "iteration_time_s")
    for name in able:
        with told.part():
            entries.append(_shared(request, name, entries) or _entry(request, name, top_k))
    fitting = [entry for entry in entries if entry.outcome.best]
    if not fitting:
        free = _entry(request, None, top_k)
        return [free] if free.outcome.best or not entries else entries[:1]
    return sorted(fitting, key=lambda entry: entry.score)


def fastest(request: PlanRequest) -> Entry:
    """The framework whose best plan is the fastest, with that plan alone."""
    return compete(request, top_k=1)[0]


def _entry(request: PlanRequest, name: str | None, top_k: int | None) -> Entry:
    bound, rules = prepared(request.for_framework(name))
    outcome = search(bound, rules, top_k=top_k)
    score = float("inf")
    if outcome.best:
        best = Plans.from_rows(outcome.best[:1])
        score = float(objective(bound)(best, cost_model(bound).evaluate(best))[0])
    return Entry(name, bound, rules, outcome, score)


def _shared(request: PlanRequest, name: str, others: list[Entry]) -> Entry | None:
    """The entry of a framework that searches the space of another and accepts its best plan.

    Megatron-Bridge and Megatron-LM differ in what they train (adapters, packed lengths), which is
    settled by then, not in how.
    """
    own = frameworks.get(name)
    for other in others:
        its = frameworks.get(str(other.framework))
        alike = own.axes == its.axes and own.splits == its.splits
        if alike and other.outcome.best and not own.reasons(request, other.outcome.best[0]):
            bound, rules = prepared(request.for_framework(name))
            return Entry(name, bound, rules, other.outcome, other.score)
    return None


def prepared(request: PlanRequest) -> tuple[PlanRequest, tuple[Rule, ...]]:
    """The request as it is searched, and the rules of the framework it is for (or none).

    What a framework says of the axes, or else the cluster, stands under the request's own limits.
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
    if chosen.splits is not None:
        degrees = divisors(request.cluster.accelerators)
        splits = {chosen.splits(request.model, pp, tp) for pp in degrees for tp in degrees}
        whole = sorted(split for split in splits if min(split) > 0)[:_MOST_SPLITS]
        limits["stage_layers"] = Bounds(values=((), *whole))
    return limited(request, {**limits, **request.search.limits}), chosen.rules


def limited(request: PlanRequest, limits: dict[str, Bounds], **search_fields: Any) -> PlanRequest:
    """The request with other limits of its search."""
    changed = request.search.model_copy(update={"limits": limits, **search_fields})
    return request.model_copy(update={"search": changed})
