"""Answers about plans: the best plan of a request, the cost of one plan, and why not another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from cost_models.calibrations import PARTS_OF_TERM
from cost_models.estimate import CostModel
from cost_models.layers import layers_of
from cost_models.plans import ParallelPlan
from cost_models.profiles import EfficiencyProfile
from cost_models.spec import TrainingSpec
from planner import frameworks
from planner.answers.plans import near_misses as misses
from planner.answers.plans.alike import Asked, plans_in_steps, shared
from planner.answers.plans.chance_to_be_first import (
    best_expected,
    compared,
    contenders,
    measure_next,
    selection,
)  # fmt: skip
from planner.answers.plans.competition import Entry, by_trainers, compete, fastest, prepared
from planner.answers.plans.explain import report, reports, reports_of_several
from planner.answers.plans.hand_made import baseline
from planner.answers.plans.host_memory import FIELD as OFFLOADED
from planner.answers.plans.host_memory import offloading
from planner.answers.plans.limit_conflicts import limit_conflicts
from planner.answers.plans.other_degrees import rival
from planner.answers.plans.picks import picks
from planner.answers.plans.published_recipe import published_recipe
from planner.answers.plans.rank_orders import rank_orders
from planner.answers.plans.unsearched_fields import held_fixed
from planner.constraints import RULES, Context, Rule, passing, violations
from planner.documents.answer import (
    EstimateAnswer,
    Launch,
    PlanAnswer,
    ProfileInfo,
    Reason,
    Replanned,
    Unbuildable,
    WhyAnswer,
)
from planner.documents.plan_report import PlanReport
from planner.documents.request import PlanRequest
from planner.documents.scored_runs import Evidence
from planner.evidence.uncertainty import site_storage as sites
from planner.evidence.uncertainty.nearest_runs import evidence
from planner.frameworks.devices import WRITTEN, other_stack, preferred
from planner.frameworks.supported import obstacles, runners
from planner.progress import NothingYet, within_a_step
from planner.search.exhaustive import cost_model
from planner.search.memory_reasons import memory_reasons
from planner.search.space import Space
from planner.version import __version__


class IllegalPlan(ValueError):
    """A given plan breaks rules; `reasons` has all of them."""

    def __init__(self, reasons: list[Reason]) -> None:
        super().__init__("; ".join(reason.text for reason in reasons))
        self.reasons = reasons

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process."""
        return type(self), (self.reasons,)


def find(request: PlanRequest) -> PlanAnswer:
    """The fastest plans that fit, explained: those of the framework whose best is the fastest.

    Raises SpaceTooLarge, and NothingYet where the search was stopped before it found any.
    """
    model, began = cost_model(request), time.perf_counter()
    entries, opened = compete(request), list[str]()
    if entries[0].framework is None or not entries[0].outcome.best:
        with within_a_step():
            request, entries, opened = _fallback_options(request, entries)
        model = cost_model(request)
    searched_s = time.perf_counter() - began
    counts = [entry.outcome.counts for entry in entries]
    if not entries[0].outcome.best and any(one is not None and one.cut_short for one in counts):
        raise NothingYet
    with within_a_step():
        answer = _explained(request, model, entries, searched_s)
    told = _fallback(request, entries[0].framework, opened)
    return answer.model_copy(update={"opened": tuple(opened), "fallback": told})


def _fallback_options(
    request: PlanRequest, entries: list[Entry]
) -> tuple[PlanRequest, list[Entry], list[str]]:
    """What fits with the optimizer in host memory, or as trainers train by themselves.

    The request that has it, its entries, and what it has besides: one that a framework launches
    before one that none does; the request's own if nothing is found.
    """
    wider, found = offloading(request), (request, entries, list[str]())
    if wider is not None and not entries[0].outcome.best:
        others = compete(wider)
        if others[0].outcome.best:
            found = wider, others, [OFFLOADED]
        if others[0].outcome.best and others[0].framework is not None:
            return found
    for asked in (request, wider):
        if asked is not None and (others := by_trainers(asked)):
            training, given = others[0].request.training, request.training
            opened = [] if asked is request else [OFFLOADED]
            opened += [f"/training/{name}" for name, v in training if v != getattr(given, name)]
            alike = [one for one in others if one.request.training == training]
            return asked.model_copy(update={"training": training}), alike, opened
    return found


def _fallback(request: PlanRequest, framework: str | None, opened: Sequence[str]) -> str | None:
    """A sentence on what is not as asked."""
    fields = [name.removeprefix("/training/") for name in opened if name != OFFLOADED]
    said = ["Nothing fits with the optimizer's states on the accelerators: they are offloaded"]
    said = said if OFFLOADED in opened else []
    if fields:
        each = ", ".join(f"{name} {getattr(request.training, name)}" for name in fields)
        title = frameworks.get(str(framework)).title
        said.append(f"No plan fits otherwise: {each}, as {title} trains by itself")
    return ". ".join(said) or None


def _explained(
    request: PlanRequest, model: CostModel, entries: Sequence[Entry], searched_s: float
) -> PlanAnswer:
    """The answer from the results of the searches."""
    first = entries[0]
    asked, rules, outcome = first.request, first.rules, first.outcome
    assert outcome.counts is not None
    space = Space(asked, rules)
    plans = reports(model, request, outcome.best)
    best = plans[0] if plans else None
    front = tuple(reports(model, request, outcome.pareto, simulated=False))
    close = contenders(request, outcome.contenders)
    unbuildable = None if best else _unbuildable(request)
    # No changed request of a near miss lets these frameworks run.
    missed = () if unbuildable else misses.near_misses(asked, model, outcome, rules)
    return PlanAnswer(
        **_common(request, model),
        best=best,
        evidence=_evidence(request, best.plan) if best else None,
        rival=rival(request, model, space, best, outcome) if best else None,
        rank_orders=rank_orders(model, request, best.plan) if best else (),
        launch=_launch(first.framework, best),
        no_launch=_no_launch(request, best) if best and first.framework is None else None,
        frameworks=_others(request, model, entries, best),
        picks=picks(request, model, outcome, plans, front),
        held_fixed=held_fixed(request, first, best) if best else (),
        unbuildable=unbuildable,
        replanned=_replanned(request, model, best),
        plans=tuple(plans),
        contenders=close,
        best_expected=best_expected(close),
        selection=selection(request, outcome.contenders),
        measure_next=measure_next(request, outcome.contenders),
        pareto=front,
        nearest=tuple(missed),
        conflicts=() if best else limit_conflicts(request),
        space=space.axes(),
        counts=misses.with_least_memory(outcome.counts, model, request, missed),
        baseline=baseline(request, model, rules, best),
        recipe=published_recipe(request, model, best),
        search_time_s=searched_s,
    )


def estimate(request: PlanRequest, plan: ParallelPlan) -> EstimateAnswer:
    """Time and memory of one plan; IllegalPlan when it cannot run at all."""
    (found,) = estimates([(request, plan)])
    if isinstance(found, IllegalPlan):
        raise found
    return found


def estimates(asked: Sequence[Asked]) -> list[EstimateAnswer | IllegalPlan]:
    """Time and memory of plans, for requests of which `shared` says the same.

    They are checked and priced as one array, which takes little longer than a single plan.
    """
    first, _ = asked[0]
    training = shared(first).training
    model = cost_model(first.model_copy(update={"training": training}))
    refused = dict(_refused(asked, training))
    legal = [each for i, each in enumerate(asked) if i not in refused]
    common = _common(first, model)
    answers = (
        EstimateAnswer(
            **common | {"request": request.document()},
            estimate=own,
            evidence=_evidence(request, plan),
        )
        for (request, plan), own in zip(legal, reports_of_several(model, legal), strict=True)
    )
    return [refused[i] if i in refused else next(answers) for i in range(len(asked))]


def _refused(asked: Sequence[Asked], training: TrainingSpec) -> Iterator[tuple[int, IllegalPlan]]:
    """The indices of plans that cannot run, with every reason; training: as they are priced."""
    context = Context(asked[0][0].model, asked[0][0].cluster, training)
    for i in np.flatnonzero(~passing(RULES, context, plans_in_steps(asked, training))).tolist():
        yield i, IllegalPlan(illegal(*asked[i]))


def why(request: PlanRequest, plan: ParallelPlan) -> WhyAnswer:
    """What limits a plan, by how much, and the smallest change that fits."""
    model = cost_model(request)
    asked, rules = prepared(request)
    reasons = illegal(request, plan, rules) + misses.outside_limits(request, plan)
    own: PlanReport | None = None
    if not illegal(request, plan):
        own = report(model, request, plan)
        reasons += memory_reasons(request, own)
    best_rows = fastest(request).outcome.best
    best = report(model, request, best_rows[0]) if best_rows else None
    common = _common(request, model)
    if reasons:
        verdicts: dict[str, Literal["does not fit", "may run out"]]
        verdicts = {"memory": "does not fit", "memory_risk": "may run out"}
        only = reasons[0].code if len({reason.code for reason in reasons}) == 1 else ""
        with within_a_step():
            change = misses.smallest_change(asked, model, plan, rules)
        return WhyAnswer(
            **common, verdict=verdicts.get(only, "illegal"), reasons=tuple(reasons), estimate=own,
            smallest_change=change, best=best, slower_by=None, differences_s={},
        )  # fmt: skip
    assert own is not None
    if best is None or own.iteration_time_s <= best.iteration_time_s:
        return WhyAnswer(
            **common, verdict="best", reasons=(), estimate=own, smallest_change=None,
            best=own, slower_by=0.0, differences_s={},
        )  # fmt: skip
    differences = {
        part: own.time_parts_s[part] - best.time_parts_s[part]
        for part in own.time_parts_s
        if own.time_parts_s[part] != best.time_parts_s[part]
    }
    return WhyAnswer(
        **common, verdict="slower", reasons=(), estimate=own, smallest_change=None, best=best,
        slower_by=own.iteration_time_s / best.iteration_time_s - 1.0,
        chance_slower=compared(request, best, own).chance,
        differences_s=dict(sorted(differences.items(), key=lambda item: -abs(item[1]))),
    )  # fmt: skip


def _launch(framework: str | None, best: PlanReport | None) -> Launch | None:
    if framework is None or best is None:
        return None
    return Launch(framework=framework, slower_by=0.0, plan=best)


def _no_launch(request: PlanRequest, best: PlanReport) -> str:
    """The reason why no framework can start a plan: the accelerators, or a framework's rules."""
    if stack := other_stack(request.cluster, WRITTEN):
        return f"{stack}, which no framework here writes for"
    name = request.search.framework or preferred(request.cluster) or frameworks.PREFERRED
    framework = frameworks.get(name)
    reason, *_ = framework.reasons(request, best.plan)
    return f"{framework.title} cannot run this plan: {reason.text}"


def _others(
    request: PlanRequest, model: CostModel, entries: Sequence[Entry], best: PlanReport | None
) -> tuple[Launch, ...]:
    """The fastest plan of each framework, the fastest first."""
    if best is None:
        return ()
    named = [entry for entry in entries if entry.framework and entry.outcome.best]
    rows = [row for row in dict.fromkeys(one.outcome.best[0] for one in named) if row != best.plan]
    told = dict(zip(rows, reports(model, request, rows), strict=True)) | {best.plan: best}
    found = [(str(entry.framework), told[entry.outcome.best[0]]) for entry in named]
    return tuple(
        Launch(framework=name, slower_by=plan.iteration_time_s / best.iteration_time_s - 1.0,
               plan=plan)
        for name, plan in found
    )  # fmt: skip


def _unbuildable(request: PlanRequest) -> Unbuildable | None:
    """If the requested framework runs no plan: the reason, and the best framework that does."""
    if not request.search.framework:
        return None
    framework = frameworks.get(request.search.framework)
    context = Context(request.model, request.cluster, request.training)
    foreign, reasons = obstacles(framework, context)
    if not reasons:
        return None
    able = runners(context)
    free = request.for_framework(None)
    first, instead = fastest(free), None
    if not (first.framework and first.outcome.best):
        first = next(iter(by_trainers(free)), first)
    if first.framework and first.outcome.best:
        plan = report(cost_model(first.request), first.request, first.outcome.best[0])
        instead = Launch(framework=first.framework, slower_by=0.0, plan=plan)
    return Unbuildable(
        framework=framework.name, title=framework.title, builds=not foreign, reasons=reasons,
        able=able, instead=instead,
    )  # fmt: skip


def _replanned(request: PlanRequest, model: CostModel, best: PlanReport | None) -> Replanned | None:
    """The effect of the request's profile or site; None for the usual profile."""
    if (request.profile is None and request.site is None) or best is None:
        return None
    asked = request.model_copy(update={"profile": None, "site": None})
    usual = cost_model(asked)
    if usual.context.profile.id == model.context.profile.id:
        return None
    rows = fastest(asked).outcome.best
    if not rows:
        return None
    own = report(model, request, rows[0])
    return Replanned(
        usual_profile=usual.context.profile.id,
        usual_time_s=report(usual, asked, rows[0]).iteration_time_s,
        plan=own,
        slower_by=own.iteration_time_s / best.iteration_time_s - 1.0,
        differences=misses.difference(rows[0], best.plan),
    )


def illegal(request: PlanRequest, plan: ParallelPlan, rules: tuple[Rule, ...] = ()) -> list[Reason]:
    """Every rule that a plan breaks: the planner's, and a framework's if given."""
    context = Context(request.model, request.cluster, request.training)
    return violations(context, plan, (*RULES, *rules))


def _common(request: PlanRequest, model: CostModel) -> dict[str, Any]:
    return {
        "request": request.document(),
        "version": __version__,
        "layers": layers_of(request.model).by_title,
        "profile": profile_info(model.context.profile),
    }


def profile_info(profile: EfficiencyProfile) -> ProfileInfo:
    """The efficiency profile of an answer, with what a calibration measured of it."""
    measured = {term: PARTS_OF_TERM[term] for term in profile.measured_terms}
    return ProfileInfo.of(profile, measured=measured)


def _evidence(request: PlanRequest, plan: ParallelPlan) -> Evidence:
    site = sites.site_of_request(request.site)
    return evidence(request.model, request.cluster, request.training, plan, site)
