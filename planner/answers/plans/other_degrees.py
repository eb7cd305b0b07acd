"""The best plan compared with the best one of other degrees: what it saves and what it costs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cost_models.cost_parts import TIME_PARTS
from cost_models.estimate import CostModel
from cost_models.plans import FIELDS, ParallelPlan, Plans
from planner.answers.plans.chance_to_be_first import compared
from planner.answers.plans.explain import reports
from planner.documents.answer import Rival
from planner.documents.formats import TIE, listed, recompute_words, seconds, share, value_words
from planner.documents.plan_report import PlanReport
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.error_band import SURE
from planner.evidence.uncertainty.site_storage import room_of
from planner.search.best_other_degrees import DEGREES, differing
from planner.search.exhaustive import FASTER
from planner.search.outcome import Outcome
from planner.search.repartitioned_plans import ShortList, repartitioned_plans
from planner.search.space import Space

# Share of all differences from which a part is mentioned.
WORTH = 0.02
# Fields that follow from the degrees, or are shown with the field that they belong to.
_FOLLOWS = (
    "sequence_parallel", "dp", "schedule", "first_stage_layers", "last_stage_layers",
    "stage_layers", "recompute_modules", "recompute_method", "recompute_num_layers",
)  # fmt: skip

# What else is told of a plan of other degrees.
_BESIDE = ("micro_batch_size", "recompute", "moe_dispatcher", "offload_optimizer")


def rival(
    request: PlanRequest, model: CostModel, space: Space, best: PlanReport, outcome: Outcome
) -> Rival | None:
    """The fastest plan of other degrees against the best; None if the objective is not time."""
    if outcome.rival is None or request.search.objective == "memory_headroom":
        return None
    found = reports(
        model, request, _repartitioned(request, model, space, outcome.rival), simulated=False
    )
    # Plans repartitioned here were not in the search, so they do not head the answer.
    behind = [one for one in found[1:] if one.iteration_time_s >= best.iteration_time_s]
    return against(request, best, min([found[0], *behind], key=lambda one: one.iteration_time_s))


def against(request: PlanRequest, best: PlanReport, other: PlanReport) -> Rival:
    """A plan compared with another one that is at least as fast: what that saves and costs."""
    parts = moved(best.time_parts_s, other.time_parts_s)
    slower_by = other.iteration_time_s / best.iteration_time_s - 1.0
    chance = compared(request, best, other).chance
    claim = _claim(best.plan, other.plan, slower_by, sure=chance >= SURE)
    return Rival(
        plan=other.plan, iteration_time_s=other.iteration_time_s, slower_by=slower_by,
        chance_slower=chance, saved_s=parts, claim=claim,
        sentence=_sentence(claim, parts),
    )  # fmt: skip


def choice(plan: ParallelPlan, name: str) -> str:
    """A field and its value as text: TP 4 for a degree, micro_batch_size 2 for any other."""
    value = getattr(plan, name)
    if name == "recompute":
        return f"recompute {recompute_words(plan.model_dump())}"
    return f"{DEGREES.get(name, f'{name} ')}{value_words(value)}"


def _repartitioned(
    request: PlanRequest, model: CostModel, space: Space, plan: ParallelPlan
) -> list[ParallelPlan]:
    """A plan as it is, and with its layers repartitioned by time, as the best plan's are."""
    if not space.free_partition:
        return [plan]
    room = room_of(request)
    now = Plans.from_rows([plan])
    now_s = model.evaluate(now).iteration_time_s
    asked = ShortList(now, now_s, FASTER * float(now_s[0]))
    (found,) = repartitioned_plans(model, [asked], room)
    plans = space.legal(found)
    if not len(plans):
        return [plan]
    fits = model.evaluate(plans).needed_bytes <= room.of(plans)
    return [plan, *(plans.row(row) for row in np.flatnonzero(fits).tolist())]


def moved(best: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The largest saving of the best plan, and the largest difference among the other parts, in s.

    If they add up to a loss, further savings are added until they add up to a gain.
    """
    by = {name: other[name] - best[name] for name in best}
    saved = sorted(by, key=lambda name: -by[name])
    second = max(saved[1:], key=lambda name: abs(by[name]))
    told = list(dict.fromkeys([saved[0], second]))
    for name in saved[1:]:
        if sum(by[name] for name in told) > 0.0 or by[name] <= 0.0:
            break
        told += [name] if name not in told else []
    least = WORTH * sum(map(abs, by.values()))
    return {name: by[name] for name in told if abs(by[name]) > least}


def _claim(best: ParallelPlan, other: ParallelPlan, slower_by: float, sure: bool) -> str:
    """TP 4 beats TP 8 by 9.8 %; with what else the other has, if that is more than its degrees."""
    names = differing(best, other) or _switched(best, other)
    one, two = (listed([choice(plan, name) for name in names]) for plan in (best, other))
    beside = [name for name in _BESIDE if name not in names]
    beside = [choice(other, n) for n in beside if getattr(best, n) != getattr(other, n)]
    two += f" with {listed(beside)}" if beside else ""
    several = len(names) > 1
    if slower_by < TIE:
        return f"{one} {'are' if several else 'is'} as fast as {two}"
    beats = ("" if sure else "probably ") + ("beat" if several else "beats")
    return f"{one} {beats} {two} by {share(slower_by)}"


def _sentence(claim: str, parts: Mapping[str, float]) -> str:
    """TP 4 beats TP 8 by 9.8 %: saves 14.2 s of TP communication, costs 628 ms of bubble."""
    words = _saved_words(parts)
    return f"{claim}: {words}" if words else claim


def _saved_words(parts: Mapping[str, float]) -> str:
    """Saves 14.2 s of TP communication, costs 628 ms of bubble; empty where nothing moves."""
    saves, costs = (
        listed([f"{seconds(abs(value))} of {TIME_PARTS[name].title}" for name, value in own])
        if (own := [item for item in parts.items() if (item[1] > 0) == gain])
        else ""
        for gain in (True, False)
    )
    words = [f"saves {saves}"] if saves else []
    return ", ".join([*words, f"costs {costs}"] if costs else words)


def _switched(plan: ParallelPlan, other: ParallelPlan) -> list[str]:
    """The fields in which two plans of equal degrees differ, without those that follow."""
    changed = [name for name in FIELDS if getattr(plan, name) != getattr(other, name)]
    return [name for name in changed if name not in _FOLLOWS] or changed
