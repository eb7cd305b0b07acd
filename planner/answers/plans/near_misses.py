"""The smallest changes that would help a plan that cannot run, or a request that nothing fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cost_models.effects import is_read
from cost_models.estimate import CostModel
from cost_models.plans import FIELDS, ParallelPlan, Plans
from planner.answers.plans.competition import limited
from planner.answers.plans.explain import report
from planner.constraints import Rule
from planner.documents.answer import Change, Counts, Nearest, Reason
from planner.documents.formats import gib, value_words
from planner.documents.request import Bounds, PlanRequest
from planner.evidence.uncertainty.site_storage import room_of
from planner.search.axes import SEARCHED, SpaceTooLarge
from planner.search.exhaustive import cost_model, search
from planner.search.memory_reasons import memory_reasons
from planner.search.outcome import Outcome
from planner.search.plan_distance import changed_fields

# When nothing fits: the largest factor by which a larger cluster is tried.
LARGEST_ENLARGEMENT = 64


def outside_limits(request: PlanRequest, plan: ParallelPlan) -> list[Reason]:
    """The limits of a request that a plan violates."""
    # The search applies these limits only where the field has an effect.
    recompute = ("recompute_num_layers", "recompute_method", "recompute_modules")
    idle = {name: not is_read(plan, name) for name in recompute}
    ends = ("first_stage_layers", "last_stage_layers")
    idle |= dict.fromkeys(ends, plan.pp == 1 or bool(plan.stage_layers))
    reasons = []
    for name, bounds in request.search.limits.items():
        if idle.get(name, False):
            continue
        value = getattr(plan, name)
        if bounds.values is not None:
            inside = value in bounds.values
            allowed = " or ".join(map(value_words, bounds.values))
        else:
            low, high = bounds.min or 0, bounds.max
            inside = low <= int(value) and (high is None or int(value) <= high)
            allowed = f"{low} to {high if high is not None else 'any'}"
        if not inside:
            text = f"{name} {value_words(value)} is outside the request's limits: {allowed}"
            reasons.append(Reason(code="user_limit", text=text))
    return reasons


def smallest_change(
    request: PlanRequest, model: CostModel, plan: ParallelPlan, rules: tuple[Rule, ...]
) -> Change | None:
    """The feasible plan that differs in the fewest choices from a given one, then the fastest.

    Fields that the search does not vary keep the plan's values, unless a limit of the request or a
    rule forbids them.
    """
    limits = dict(request.search.limits)
    for name in FIELDS:
        if name not in SEARCHED and name not in limits:
            limits[name] = Bounds(values=(getattr(plan, name),))
    for attempt in (limited(request, limits, open=()), request):
        rows = search(attempt, rules, changed_fields(plan), top_k=1, own=plan).best
        if rows:
            return change_of(request, model, rows[0], difference(plan, rows[0]))
    return None


def needed_bytes(request: PlanRequest, plan: ParallelPlan) -> float:
    """What a plan needs of an accelerator's memory."""
    return float(cost_model(request).needed_bytes(Plans.of(plan))[0])


def free_bytes(request: PlanRequest, plan: ParallelPlan) -> float:
    """Bytes that a plan leaves free; negative where it does not fit."""
    return room_of(request).of_plan(plan) - needed_bytes(request, plan)


def difference(plan: ParallelPlan, other: ParallelPlan) -> dict[str, Any]:
    """The fields of `other` that differ; dp never alone, since it follows from the others."""
    before, after = plan.model_dump(mode="json"), other.model_dump(mode="json")
    return {name: after[name] for name in after if after[name] != before[name]}


def change_of(
    request: PlanRequest, model: CostModel, plan: ParallelPlan, fields: dict[str, Any]
) -> Change:
    """The fields that are changed, with the plan of the changed request and its estimates."""
    estimates = model.evaluate(Plans.from_rows([plan]))
    seconds = float(estimates.iteration_time_s[0])
    return Change(
        set=fields,
        plan=plan,
        peak_bytes=float(estimates.peak_bytes[0]),
        iteration_time_s=seconds,
        tokens_per_s=request.training.tokens_per_iteration / seconds,
    )


def near_misses(
    request: PlanRequest, model: CostModel, outcome: Outcome, rules: tuple[Rule, ...]
) -> list[Nearest]:
    """When nothing fits: the plan that needs the least memory, and changed requests that fit."""
    if outcome.best:
        return []
    changes = [*_enlarged(request, rules), *offloaded(request, rules)]
    found = []
    for plan in outcome.nearest:
        own = report(model, request, plan)
        found.append(
            Nearest(
                plan=plan,
                stage=own.memory.worst_stage,
                over_by_bytes=own.memory.needed_bytes - room_of(request).of_plan(plan),
                changes=tuple(changes),
            )
        )
    if not found and changes:
        found.append(Nearest(plan=None, stage=None, over_by_bytes=None, changes=tuple(changes)))
    return found


def offloaded(request: PlanRequest, rules: tuple[Rule, ...]) -> Iterator[Change]:
    """What fits with states or activations in the memory of a node."""
    if request.cluster.groups[0].host_link_bytes_per_s is None:
        return
    for name in ("offload_optimizer", "offload_activations"):
        if name not in request.search.limits:
            wider = limited(request, {**request.search.limits, name: Bounds(values=(True,))})
            if plan := _best_plan(wider, rules):
                yield change_of(wider, cost_model(wider), plan, {name: True})


def with_least_memory(
    counts: Counts, model: CostModel, request: PlanRequest, missed: Sequence[Nearest]
) -> Counts:
    """The counts, with what the plan that misses by least needs as the example of memory."""
    plan = missed[0].plan if missed else None
    if plan is None:
        return counts
    own = report(model, request, plan)
    text = (
        f"the plan that needs least takes {gib(own.memory.peak_bytes)} of "
        f"{gib(own.memory.capacity_bytes)} GiB"
    )
    if own.fits:
        text = "; ".join(reason.text for reason in memory_reasons(request, own))
    return counts.model_copy(update={"examples": counts.examples | {"memory": text}})


def _enlarged(request: PlanRequest, rules: tuple[Rule, ...]) -> list[Change]:
    """The smallest doubling of the nodes that fits."""
    factor = 2
    while factor <= LARGEST_ENLARGEMENT:
        group = request.cluster.groups[0]
        nodes = group.nodes * factor
        factor *= 2
        if nodes * group.accelerators_per_node > 1_000_000:
            break
        larger = request.cluster.model_copy(
            update={"groups": (group.model_copy(update={"nodes": nodes}),)}
        )
        wider = request.model_copy(update={"cluster": larger})
        if plan := _best_plan(wider, rules):
            return [change_of(wider, cost_model(wider), plan, {"nodes": nodes})]
    return []


def _best_plan(request: PlanRequest, rules: tuple[Rule, ...]) -> ParallelPlan | None:
    """The best plan of a changed request; None if none fits or there are too many to price."""
    try:
        return next(iter(search(request, rules, top_k=1).best), None)
    except SpaceTooLarge:
        return None
