"""The fields that a search held fixed, and what other values would save the best plan.

Each value is tried alone, with the rest of the best plan unchanged: a search that opens the field
may save more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import ValidationError

from cost_models.plans import FIELDS, VOCABULARIES, ParallelPlan, Plans
from cost_models.schedules import SCHEDULES
from planner import frameworks
from planner.answers.plans.competition import Entry
from planner.constraints import RULES, Context, Rule, passing
from planner.documents.answer import HeldFixed
from planner.documents.plan_report import PlanReport
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.site_storage import room_of
from planner.search.axes import EXPERT_FIELDS, SEARCHED, Axes
from planner.search.exhaustive import cost_model

# The framework decides these fields, or another part of the answer covers them.
_NOT_CHOSEN = ("runtime", "rank_order", "dp_shard", "recompute_layers", "recompute_method")
# A value that changes the time by less is reported as without effect.
NO_EFFECT = 1e-4


def held_fixed(request: PlanRequest, entry: Entry, best: PlanReport) -> tuple[HeldFixed, ...]:
    """The fields that were held fixed but could have other values, the largest savings first.

    entry: the search that found the best plan.
    """
    asked, rules, outcome = entry.request, entry.rules, entry.outcome
    near = [*outcome.best, *outcome.simple, *outcome.pareto]
    found = [
        *_values(request, asked, rules, best),
        *_schedules(request, asked, best),
        *_eight_bits(request, rules, best, near),
    ]
    felt = [one for one in found if abs(one.saves) > NO_EFFECT]
    return tuple(sorted(felt, key=lambda one: -one.saves))


def _values(
    request: PlanRequest, asked: PlanRequest, rules: tuple[Rule, ...], best: PlanReport
) -> Iterator[HeldFixed]:
    """Fields that have one value in the search although the framework accepts others."""
    values = Axes(asked).values
    tried: dict[str, list[tuple[Any, ParallelPlan]]] = {}
    for field in FIELDS:
        if field in (*SEARCHED, *_NOT_CHOSEN) or len(values[field]) != 1:
            continue
        if field in EXPERT_FIELDS and request.model.moe is None:
            continue
        now = getattr(best.plan, field)
        others: tuple[Any, ...] = VOCABULARIES.get(field, ())
        if isinstance(now, bool):
            others = (not now,)
        changed = [(other, _with_other_values(best.plan, **{field: other})) for other in others]
        tried[field] = [(other, plan) for other, plan in changed if plan and other != now]
    rows = [plan for plans in tried.values() for _, plan in plans]
    seconds = _seconds(request, rows, (*RULES, *rules))
    for field, plans in tried.items():
        own, seconds = seconds[: len(plans)], seconds[len(plans) :]
        if np.isfinite(own).any():
            fastest = int(np.argmin(own))
            yield HeldFixed(
                field=field,
                value=getattr(best.plan, field),
                other=plans[fastest][0],
                saves=_saved(best, own[fastest]),
            )


def _schedules(request: PlanRequest, asked: PlanRequest, best: PlanReport) -> Iterator[HeldFixed]:
    """The fastest of the schedules that the framework does not run."""
    known = Axes(asked).values["schedule"]
    if best.plan.pp == 1 or request.search.limits.get("schedule") is not None:
        return
    plans = []
    for name, schedule in SCHEDULES.items():
        if name in known or not schedule.synchronous:
            continue
        counts = schedule.chunk_counts or (max(best.plan.vpp, 2),)
        plan = _with_other_values(best.plan, schedule=name, vpp=counts[-1])
        if plan is not None:
            plans.append(plan)
    seconds = _seconds(request, plans, RULES)
    if np.isfinite(seconds).any():
        plan = plans[int(np.argmin(seconds))]
        posterior_at = map(frameworks.get, frameworks.FRAMEWORKS)
        runs = [
            one.title
            for one in posterior_at
            if one.competes and plan.schedule in one.axes.get("schedule", ())
        ]
        yield HeldFixed(
            field="schedule",
            value=best.plan.schedule,
            other=plan.schedule,
            saves=_saved(best, float(seconds.min())),
            runs_in=tuple(runs),
        )


def _eight_bits(
    request: PlanRequest, rules: tuple[Rule, ...], best: PlanReport, near: list[ParallelPlan]
) -> Iterator[HeldFixed]:
    """FP8 if the hardware has it: with the best plan, or else with the first that then fits.

    near: the other plans to try.
    """
    training = request.training
    fastest = min(group.accelerator.peak_fp8_flop_per_s or 0.0 for group in request.cluster.groups)
    if training.precision != "bf16" or not fastest:
        return
    try:
        changed = type(training).model_validate({**training.model_dump(), "precision": "fp8"})
    except ValidationError:
        return
    other = request.model_copy(update={"training": changed})
    seconds = _seconds(other, near, (*RULES, *rules))
    if np.isfinite(seconds).any():
        saves = _saved(best, float(seconds.min()))
        yield HeldFixed(field="precision", value="bf16", other="fp8", saves=saves)


def _with_other_values(plan: ParallelPlan, **fields: Any) -> ParallelPlan | None:
    """A plan with other values; None if they contradict each other."""
    try:
        return ParallelPlan.model_validate({**plan.model_dump(), **fields})
    except ValidationError:
        return None


def _seconds(request: PlanRequest, rows: list[ParallelPlan], rules: tuple[Rule, ...]) -> Any:
    """Seconds of each plan that is legal and fits; infinite for the others."""
    if not rows:
        return np.zeros(0)
    plans = Plans.from_rows(rows)
    context = Context(request.model, request.cluster, request.training)
    legal = passing(rules, context, plans)
    seconds = np.full(len(rows), np.inf)
    if legal.any():
        some = plans.take(legal)
        estimates = cost_model(request).evaluate(some)
        fits = estimates.needed_bytes <= room_of(request).of(some)
        seconds[legal] = np.where(fits, estimates.iteration_time_s, np.inf)
    return seconds


def _saved(best: PlanReport, seconds: float) -> float:
    return 1.0 - float(seconds) / best.iteration_time_s
