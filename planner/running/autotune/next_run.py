"""One step of tuning: what is known about the best plans so far, and which one to run next.

The site is the only state: its runs of the same model, cluster and training count as measured, so
that asking again continues from whatever was learned since.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, exp, fsum, log
from statistics import NormalDist
from typing import Any

import numpy as np

from cost_models.plans import ParallelPlan, Plans
from cost_models.profiles import profile_for
from cost_models.units import HOUR_S
from planner import frameworks
from planner.answers.plans.competition import compete, prepared
from planner.answers.plans.explain import plan_id, report
from planner.answers.plans.plan_answers import illegal
from planner.documents.problems import RequestError, from_reasons, refuse, shown
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty import site_pricing as pricing
from planner.evidence.uncertainty.beliefs import Belief
from planner.evidence.uncertainty.error_features import Array, ErrorFeatures, groups_of, shares_of
from planner.evidence.uncertainty.site import LearnedRun, Site
from planner.evidence.uncertainty.tuning_policy import UNLIKELY, WORTH, Advice, advised, plan_belief
from planner.running.autotune.answer import Candidate, Ending, NextRun, TuneAnswer
from planner.search.exhaustive import cost_model
from planner.search.memory_reasons import memory_reason
from planner.version import __version__

MAX_CANDIDATES = 64
_SEARCHED_PLANS = 1_000  # plans of the search from which candidates are drawn
# Plans are equal to the cost model if their shares of time differ by less than _SAME in all, and
# their times by less than _SAME_TIME: only the first of them is a candidate.
_SAME, _SAME_TIME = 1e-3, 1e-3
# Two plans run equally if they agree in these fields and have the same cost.
_SPLIT = {"tp", "cp", "pp", "vpp", "dp", "ep", "etp", "zero_stage", "micro_batch_size", "recompute"}
_EQUAL = 1e-9
# Enough for a steady step by the rule of planner/inputs/logs/steps.py; what the launch files train.
ITERATIONS = 20
START_S = 900.0  # containers, imports, communicators, compilation (a judgement)
_DEVIATIONS_80 = NormalDist().inv_cdf(0.9)  # deviations to either side of 80 %
_DEVIATIONS_95 = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Budget:
    """Limits on the runs of one question; None: no limit."""

    runs: int | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True)
class Question:
    """The candidates of a request at a site, and the site's runs that measured them.

    seconds: estimates without the site.  site_seconds: estimates with its corrections.
    """

    request: PlanRequest
    site: Site
    plans: tuple[ParallelPlan, ...]
    measured_by: dict[int, tuple[LearnedRun, ...]]
    seconds: Array
    site_seconds: Array
    features: tuple[ErrorFeatures, ...]

    @property
    def runs(self) -> tuple[LearnedRun, ...]:
        """The site's runs that measured a candidate of this question."""
        return tuple(run for runs in self.measured_by.values() for run in runs)

    @cached_property
    def measured(self) -> dict[int, float]:
        """Seconds of measured candidates, the geometric mean of their runs."""
        return {
            i: exp(fsum(log(run.step_s) for run in runs) / len(runs))
            for i, runs in self.measured_by.items()
        }

    @cached_property
    def belief(self) -> Belief:
        """The posterior of the candidates' times, given the site's other runs and their own."""
        ids = {run.id for run in self.runs}
        others = tuple(run for run in self.site.runs if run.id not in ids)
        known = Site(name=self.site.name, runs=others).correction
        return plan_belief(known, self.features, self.seconds, self.measured)

    @property
    def gpu_hours(self) -> float:
        """The least that the runs of this question took: all of their steps at the usual time."""
        steps = fsum((run.steps + sum(run.left_out.values())) * run.step_s for run in self.runs)
        return steps * self.request.cluster.accelerators / HOUR_S


def bound(request: PlanRequest) -> PlanRequest:
    """The request bound to one framework, so that every candidate can be launched."""
    if request.search.framework is not None:
        return request
    return request.for_framework(frameworks.PREFERRED)


def question(request: PlanRequest, site: Site, without: Collection[str] = ()) -> Question:
    """The candidates of a request: the best plans of its search, its own plan, and measured ones.

    without: ids, or prefixes of ids, of plans to leave out.  Raises RequestError where the
    request's own plan cannot run.
    """
    named = [] if request.plan is None else [_runnable_plan(request, request.plan)]
    best = compete(request, top_k=_SEARCHED_PLANS)[0].outcome.best
    earlier = [(run, PlanRequest.model_validate(run.request)) for run in site.runs]
    runs = [(run, r.named_plan) for run, r in earlier if _key(r) == _key(request)]
    plans = _without_ids([*named, *best], without)
    first = _distinct(request, plans, site, named=sum(plan in named for plan in plans))
    measured: dict[int, list[LearnedRun]] = {}
    for run, plan in runs:
        at = _index_of_plan(request, site, run, plan, first)
        if at == len(first):
            first.append(plan)
        measured.setdefault(at, []).append(run)
    seconds, features = _priced_plans(request, first, site)
    return Question(
        request=request,
        site=site,
        plans=tuple(first),
        measured_by={i: tuple(runs) for i, runs in measured.items()},
        seconds=seconds,
        site_seconds=_site_seconds(request, first),
        features=features,
    )


def _runnable_plan(request: PlanRequest, plan: ParallelPlan) -> ParallelPlan:
    """A named plan, where it can run.  Raises RequestError."""
    _, rules = prepared(request)
    if reasons := illegal(request, plan, rules):
        raise RequestError(from_reasons(reasons))
    priced = report(cost_model(request), request, plan)
    if not priced.fits:
        raise RequestError(from_reasons([memory_reason(priced)]))
    return plan


def _without_ids(plans: Sequence[ParallelPlan], without: Collection[str]) -> list[ParallelPlan]:
    """The plans without those of the given ids.  Raises RequestError where an id matches none."""
    if not without:
        return list(plans)
    starts = {"pl_" + text.removeprefix("pl_"): text for text in without}
    names = [plan_id(plan) for plan in plans]
    for start, text in starts.items():
        if not any(name.startswith(start) for name in names):
            raise refuse("/skip", "unknown_name", f"no candidate is called {shown(text)}", text)
    return [
        plan for plan, name in zip(plans, names, strict=True) if not name.startswith(tuple(starts))
    ]


def _priced_plans(
    request: PlanRequest, plans: Sequence[ParallelPlan], site: Site
) -> tuple[Array, tuple[ErrorFeatures, ...]]:
    """Seconds of plans without the site's runs, and the error features of these estimates."""
    if not plans:
        return np.zeros(0), ()
    model, rows = request.model, Plans.from_rows(plans)
    estimates = pricing.cost_model(request, site.unlearned).evaluate(rows)
    shares = shares_of(model, request.training, rows, estimates.time_parts_s)
    accelerator = request.cluster.groups[0].accelerator
    family = profile_for(accelerator).family
    features = tuple(
        ErrorFeatures(
            tuple(row),
            groups_of(
                family,
                accelerator.id,
                plan.runtime,
                site.source,
                model.hidden_size,
                model.num_layers,
            ),
            model.moe is not None,
            model.hidden_size,
        )
        for row, plan in zip(shares.tolist(), plans, strict=True)
    )
    return estimates.iteration_time_s, features


def _site_seconds(request: PlanRequest, plans: Sequence[ParallelPlan]) -> Array:
    """Seconds of plans with the site's corrections."""
    if not plans:
        return np.zeros(0)
    return cost_model(request).evaluate(Plans.from_rows(plans)).iteration_time_s


def _distinct(
    request: PlanRequest, plans: Sequence[ParallelPlan], site: Site, named: int
) -> list[ParallelPlan]:
    """The first MAX_CANDIDATES plans that the cost model tells apart; the first `named` stay."""
    seconds, features = _priced_plans(request, plans, site)
    shares = np.array([f.shares for f in features])
    chosen: list[int] = []
    for i in range(len(plans)):
        differs = np.abs(shares[chosen] - shares[i]).sum(1) > _SAME
        differs |= np.abs(np.log(seconds[chosen] / seconds[i])) > _SAME_TIME
        if i < named or bool(differs.all()):
            chosen.append(i)
        if len(chosen) == MAX_CANDIDATES + named:
            break
    return [plans[i] for i in chosen]


def _key(request: PlanRequest) -> list[Any]:
    """The model, accelerators and training of a request; only runs with the same key measure it."""
    groups = [
        (group.accelerator.id, group.nodes, group.accelerators_per_node)
        for group in request.cluster.groups
    ]
    training = request.training.model_dump(exclude={"tokens"})
    return [request.model.model_dump(exclude={"name"}), groups, training]


def _index_of_plan(
    request: PlanRequest,
    site: Site,
    run: LearnedRun,
    plan: ParallelPlan,
    plans: Sequence[ParallelPlan],
) -> int:
    """The index of the plan that a run measured; the length of the list if there is none.

    Fields that its log leaves open are not compared, nor are fields without effect that no flag
    states.
    """
    is_open = {text.split(":")[0].removeprefix("plan.") for text in run.left_open}
    fields = plan.model_dump(exclude=is_open)
    same = [i for i, p in enumerate(plans) if p.model_dump(exclude=is_open) == fields]
    if same:
        return same[0]
    split = plan.model_dump(include=_SPLIT)
    candidates = [i for i, p in enumerate(plans) if p.model_dump(include=_SPLIT) == split]
    seconds, _ = _priced_plans(request, [plan, *(plans[i] for i in candidates)], site)
    equal = np.abs(np.log(seconds[1:] / seconds[0])) < _EQUAL
    return next((i for i, is_equal in zip(candidates, equal, strict=True) if is_equal), len(plans))


def tune(question: Question, budget: Budget) -> TuneAnswer:
    """The results so far, and the next run or the reason to stop."""
    advice = advised(question.belief, question.measured)
    best = min(question.measured, key=lambda i: question.measured[i], default=None)
    ending = _ending(question, advice, budget)
    candidates = _candidates(question, advice)
    following = None
    if ending is None:
        assert advice.next is not None
        following = _next(question, advice, advice.next)
        cost = question.gpu_hours + following.gpu_hours
        if budget.gpu_hours is not None and cost > budget.gpu_hours:
            text = (
                f"another run may take {following.gpu_hours:.3g} GPU-hours: with the "
                f"{question.gpu_hours:.3g} spent, more than {budget.gpu_hours:g}"
            )
            following, ending = None, Ending(code="gpu_hours", text=text)
    return TuneAnswer(
        request=question.request.document(),
        version=__version__,
        site=question.site.name,
        framework=question.request.search.framework or "",
        candidates=candidates,
        runs=len(question.runs),
        other_runs=len(question.site.runs) - len(question.runs),
        gpu_hours=question.gpu_hours,
        best=None if best is None else plan_id(question.plans[best]),
        chance_faster=advice.chance,
        next=following,
        ending=ending,
    )


def _candidates(question: Question, advice: Advice) -> tuple[Candidate, ...]:
    belief, deviation = question.belief, question.belief.deviation
    expected = np.exp(belief.mean)
    low, high = (np.exp(belief.mean + side * _DEVIATIONS_80 * deviation) for side in (-1, 1))
    order = np.lexsort((expected, -advice.chances))
    return tuple(
        Candidate(
            id=plan_id(question.plans[i]),
            plan=question.plans[i],
            estimated_s=float(question.site_seconds[i]),
            expected_s=float(expected[i]),
            low_s=float(low[i]),
            high_s=float(high[i]),
            chance_best=float(advice.chances[i]),
            gain=float(advice.gains[i]),
            measured_s=question.measured.get(i),
            runs=len(question.measured_by.get(i, ())),
        )
        for i in order.tolist()
    )


def _ending(question: Question, advice: Advice, budget: Budget) -> Ending | None:
    """The reason to stop: no further run is worth its cost, or the limit is reached."""
    faster = f"a plan more than {WORTH:.0%} faster than the best measured one"
    if advice.next is None:
        return Ending(code="all_measured", text="every candidate is measured")
    if advice.chance < UNLIKELY:
        text = f"the chance of {faster} is {advice.chance:.1%}, under {UNLIKELY:.0%}"
        return Ending(code="rule", text=text)
    if budget.runs is not None and len(question.runs) >= budget.runs:
        text = f"{len(question.runs)} of {budget.runs} runs are spent"
        chance = f"; the chance of {faster} is still {advice.chance:.0%}" if question.runs else ""
        return Ending(code="runs", text=text + chance)
    return None


def _next(question: Question, advice: Advice, at: int) -> NextRun:
    belief = question.belief
    slow_s = exp(float(belief.mean[at] + _DEVIATIONS_95 * belief.deviation[at]))
    limit_s = 60.0 * ceil((START_S + ITERATIONS * slow_s) / 60.0)
    if not question.measured:
        reason = "expected to be the fastest; nothing is measured yet"
    else:
        sooner = float(np.exp(belief.mean[at]) / min(question.measured.values()) - 1.0)
        spread = belief.deviation[at] * _DEVIATIONS_80
        gap = f"{abs(sooner):.1%} {'slower' if sooner > 0 else 'faster'}"
        reason = (
            f"expected {gap} than the best measured, ±{spread:.1%}: a "
            f"run of it saves {advice.gains[at]:.2%} of the time on average, the most of all"
        )
    return NextRun(
        id=plan_id(question.plans[at]),
        why=reason,
        iterations=ITERATIONS,
        time_limit_s=limit_s,
        gpu_hours=limit_s * question.request.cluster.accelerators / HOUR_S,
    )
