"""The better plan: the fastest of the framework, with as few changes as it takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from cost_models.estimate import Estimates
from cost_models.plans import FIELDS, ParallelPlan, Plans
from planner.answers.competition import limited, prepared
from planner.answers.explain import report
from planner.answers.near_misses import near_misses, smallest_change
from planner.documents.answer import Nearest
from planner.documents.request import Bounds, PlanRequest
from planner.lint.case import MINIMUM_GAIN, Case, changed
from planner.lint.findings import Better
from planner.lint.flags import changes
from planner.search.constraints import Context, violations
from planner.search.exhaustive import cost_model, search
from planner.search.plan_distance import CHOICES

# What the search leaves alone and a script may well have chosen: its own value stands beside ours.
_KEPT = (
    "rank_order",
    "cp_kind",
    "dynamic_cp",
    "attention_kernel",
    "moe_dispatcher",
    "overlap_tp",
    "overlap_ep",
    "offload_optimizer",
)
# Reasons that another batch mends.
BATCH = {"batch_identity", "schedule_micro_batches"}


def best(case: Case) -> Better | None:
    """The fastest plan that the framework accepts and that fits, with few changes.

    None where nothing fits, or nothing is faster than the script's own plan by MINIMUM_GAIN.
    """
    found = search(prepared(_open(case))[0], case.rules_of_framework, top_k=1).best
    if not found:
        return None
    plan, own = found[0], case.own
    seconds = _costs(case, plan).iteration_time_s[0]
    runs = own is not None and own.fits and not case.broken
    if runs and own and seconds > (1.0 - MINIMUM_GAIN) * own.iteration_time_s:
        return None
    return _better(case, _with_choices_of_script(case, plan, float(seconds) * (1.0 + MINIMUM_GAIN)))


def fewest_changes(case: Case) -> Better | None:
    """The fewest changes after which the script runs and fits; None where none do.

    Of another plan and, where only the batch does not divide, another batch: the faster one.
    """
    found = [better for better in (_replanned(case), _rebatched(case)) if better is not None]
    return max(found, key=lambda better: better.report.tokens_per_s, default=None)


def _rebatched(case: Case) -> Better | None:
    """The script's plan with the nearest batch that divides, where nothing else is wrong."""
    if not case.broken or {reason.code for _, reason in case.broken} - BATCH:
        return None
    plan, training, asked = case.plan, case.training, case.request
    batch = training.global_batch_size
    for unit in (plan.dp * plan.micro_batch_size, plan.dp * plan.micro_batch_size * plan.pp):
        near = max(unit, unit * round(batch / unit))
        other = training.model_copy(update={"global_batch_size": near})
        request = asked.model_copy(update={"training": other})
        context = Context(request.model, request.cluster, other)
        if any(violations(context, plan, (rule,)) for rule in case.rules):
            continue
        costs = cost_model(request)
        needed = costs.evaluate(Plans.from_rows([plan])).needed_bytes[0]
        if needed <= case.room_bytes(plan):
            return Better(
                report=report(costs, request, plan),
                changes=changes(case.framework, asked, case.reading, plan, request),
                global_batch_size=near,
            )
    return None


def _replanned(case: Case) -> Better | None:
    asked, _ = prepared(case.request)
    plan = case.plan
    if plan.recompute == "full" and plan.recompute_method == "uniform":
        # The search would try every count of layers; by blocks it knows which ones matter.
        layers = -(-case.model.num_layers // (plan.pp * plan.vpp))
        plan = plan.model_copy(update={"recompute_method": "block", "recompute_num_layers": layers})
    found = smallest_change(asked, case.costs, plan, case.rules_of_framework)
    return (
        _better(case, _with_choices_of_script(case, found.plan, np.inf))
        if found is not None
        else None
    )


def nearest(case: Case) -> tuple[Nearest, ...]:
    """Where no plan of the framework fits: which misses by least, and what would fit."""
    (asked, _), rules = prepared(case.request), case.rules_of_framework
    return tuple(near_misses(asked, case.costs, search(asked, rules, top_k=1), rules))


def _open(case: Case) -> PlanRequest:
    """The request, with the script's own choices beside the usual ones."""
    usual = ParallelPlan()
    limits = {
        name: Bounds(values=(getattr(usual, name), getattr(case.plan, name)))
        for name in _KEPT
        if getattr(case.plan, name) != getattr(usual, name) and name not in case.framework.axes
    }
    return limited(case.request, {**case.request.search.limits, **limits})


def _better(case: Case, plan: ParallelPlan) -> Better:
    return Better(
        report=report(case.costs, case.request, plan),
        changes=changes(case.framework, case.request, case.reading, plan),
    )


def _costs(case: Case, plan: ParallelPlan) -> Estimates:
    return case.costs.evaluate(Plans.from_rows([plan]))


def _with_choices_of_script(case: Case, plan: ParallelPlan, most_s: float) -> ParallelPlan:
    """The plan with every choice as the script has it where that fits and takes no longer.

    most_s: what an iteration may take then.
    """
    grouped = {name for choice in CHOICES for name in choice}
    for choice in (*CHOICES, *((name,) for name in FIELDS if name not in grouped)):
        kept: dict[str, Any] = {name: getattr(case.plan, name) for name in choice}
        tried = changed(plan, kept)
        if tried is None or tried == plan or not case.accepts(tried):
            continue
        costs = _costs(case, tried)
        if costs.needed_bytes[0] <= case.room_bytes(tried) and costs.iteration_time_s[0] <= most_s:
            plan = tried
    return plan
