"""The better plan: the fastest of the framework, with as few changes as possible."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from cost_models.estimate import Estimates
from cost_models.plans import FIELDS, ParallelPlan, Plans
from planner.answers.lint.changed_options import changes
from planner.answers.lint.findings import Better, FlagChange
from planner.answers.lint.linted_launch import MINIMUM_GAIN, LintedLaunch, changed
from planner.answers.lint.variables import variables
from planner.answers.plans.competition import limited, prepared
from planner.answers.plans.explain import report
from planner.answers.plans.near_misses import near_misses, smallest_change
from planner.constraints import Context, violations
from planner.documents.answer import Nearest
from planner.documents.request import Bounds, PlanRequest
from planner.evidence.uncertainty.record import seen_together
from planner.search.exhaustive import cost_model, search
from planner.search.plan_distance import CHOICES
from planner.search.simplicity import unproven_features

# Fields that the search does not vary but a script may have set: its own value is searched too.
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
# Options with which checkpoints of before are not read.
_CHECKPOINT_OPTIONS = ("--ckpt-format", "--dist-ckpt-format")
# Reasons that another batch size would remove.
BATCH = {"batch_identity", "schedule_micro_batches"}


def best(launch: LintedLaunch) -> Better | None:
    """The fastest plan that the framework accepts and that fits, with few changes.

    None where nothing fits, or nothing is faster than the script's own plan by MINIMUM_GAIN.
    """
    found = search(
        prepared(_with_script_values(launch))[0], launch.rules_of_framework, top_k=1
    ).best
    if not found:
        return None
    plan, own = found[0], launch.own
    seconds = _costs(launch, plan).iteration_time_s[0]
    runs = own is not None and own.fits and not launch.broken
    if runs and own and seconds > (1.0 - MINIMUM_GAIN) * own.iteration_time_s:
        return None
    return _better(
        launch, _with_choices_of_script(launch, plan, float(seconds) * (1.0 + MINIMUM_GAIN))
    )


def fewest_changes(launch: LintedLaunch) -> Better | None:
    """The fewest changes after which the script runs and fits; None if there are none.

    If only the batch does not divide, another batch is compared with another plan: the faster one
    is returned.
    """
    found = [better for better in (_replanned(launch), _rebatched(launch)) if better is not None]
    return max(found, key=lambda better: better.report.tokens_per_s, default=None)


def _rebatched(launch: LintedLaunch) -> Better | None:
    """The script's plan with the nearest batch that divides, if nothing else is wrong."""
    if not launch.broken or {reason.code for _, reason in launch.broken} - BATCH:
        return None
    plan, training, asked = launch.plan, launch.training, launch.request
    batch = training.global_batch_size
    for unit in (plan.dp * plan.micro_batch_size, plan.dp * plan.micro_batch_size * plan.pp):
        near = max(unit, unit * round(batch / unit))
        other = training.model_copy(update={"global_batch_size": near})
        request = asked.model_copy(update={"training": other})
        context = Context(request.model, request.cluster, other)
        if any(violations(context, plan, (rule,)) for rule in launch.rules):
            continue
        costs = cost_model(request)
        needed = costs.evaluate(Plans.from_rows([plan])).needed_bytes[0]
        if needed <= launch.room_bytes(plan):
            return Better(
                report=report(costs, request, plan),
                changes=changes(
                    launch.framework, asked, launch.reading, plan, _environment(launch), request
                ),
                global_batch_size=near,
            )
    return None


def _replanned(launch: LintedLaunch) -> Better | None:
    asked, _ = prepared(launch.request)
    plan = launch.plan
    if plan.recompute == "full" and plan.recompute_method == "uniform":
        # The search would try every count of layers; by blocks it knows which ones matter.
        layers = -(-launch.model.num_layers // (plan.pp * plan.vpp))
        plan = plan.model_copy(update={"recompute_method": "block", "recompute_num_layers": layers})
    found = smallest_change(asked, launch.costs, plan, launch.rules_of_framework)
    return (
        _better(launch, _with_choices_of_script(launch, found.plan, np.inf))
        if found is not None
        else None
    )


def nearest(launch: LintedLaunch) -> tuple[Nearest, ...]:
    """If no plan of the framework fits: the nearest miss, and changes that would fit."""
    (asked, _), rules = prepared(launch.request), launch.rules_of_framework
    return tuple(near_misses(asked, launch.costs, search(asked, rules, top_k=1), rules))


def _with_script_values(launch: LintedLaunch) -> PlanRequest:
    """The request, with the script's own values added to the usual ones."""
    usual = ParallelPlan()
    limits = {
        name: Bounds(values=(getattr(usual, name), getattr(launch.plan, name)))
        for name in _KEPT
        if getattr(launch.plan, name) != getattr(usual, name) and name not in launch.framework.axes
    }
    return limited(launch.request, {**launch.request.search.limits, **limits})


def _better(launch: LintedLaunch, plan: ParallelPlan) -> Better:
    needed = changes(launch.framework, launch.request, launch.reading, plan, _environment(launch))
    return Better(
        report=report(launch.costs, launch.request, plan),
        changes=needed,
        caution=_caution(launch, plan, needed),
    )


def _caution(launch: LintedLaunch, plan: ParallelPlan, needed: Iterable[FlagChange]) -> str:
    """What no published run has shown of a plan, where the script's own plan has less of it."""
    chip = launch.request.cluster.groups[0].accelerator
    seen = seen_together(chip, launch.model.moe is not None)
    missing = unproven_features(plan, seen)
    parts = []
    if missing and missing != unproven_features(launch.plan, seen):
        parts.append(f"no published run of its kind has {' with '.join(missing)}: measure it first")
    if any(change.option in _CHECKPOINT_OPTIONS for change in needed):
        parts.append("checkpoints get another format")
    return "; ".join(parts)


def _environment(launch: LintedLaunch) -> dict[str, str]:
    """The variables that its scripts set."""
    return {one.name: one.value for one in variables(launch.files)}


def _costs(launch: LintedLaunch, plan: ParallelPlan) -> Estimates:
    return launch.costs.evaluate(Plans.from_rows([plan]))


def _with_choices_of_script(
    launch: LintedLaunch, plan: ParallelPlan, most_s: float
) -> ParallelPlan:
    """The plan with as many choices of the script as fit and take no longer.

    most_s: the limit for the time of an iteration.
    """
    grouped = {name for choice in CHOICES for name in choice}
    for choice in (*CHOICES, *((name,) for name in FIELDS if name not in grouped)):
        kept: dict[str, Any] = {name: getattr(launch.plan, name) for name in choice}
        tried = changed(plan, kept)
        if tried is None or tried == plan or not launch.accepts(tried):
            continue
        costs = _costs(launch, tried)
        if (
            costs.needed_bytes[0] <= launch.room_bytes(tried)
            and costs.iteration_time_s[0] <= most_s
        ):
            plan = tried
    return plan
