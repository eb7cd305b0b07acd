"""The sensitivity analysis: how each input moves the answer, and where the best plan changes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.training_cost import usd_per_million_tokens
from planner.answers.plans.emission import NothingFits
from planner.answers.plans.explain import reports
from planner.answers.plans.plan_answers import IllegalPlan, illegal
from planner.answers.sensitivities.documents import (
    InputSensitivity,
    Measure,
    Outcome,
    PlanChange,
    Point,
    SensitivityAnswer,
    SensitivityRequest,
    SensitivitySpec,
)
from planner.answers.sensitivities.format import input_words
from planner.answers.sensitivities.inputs import Input, Variant, changed, held_in, inputs_of
from planner.answers.sensitivities.ranges import Range
from planner.answers.sensitivities.replan import Replanner
from planner.documents.answer import ProfileInfo
from planner.documents.plan_report import Note, PlanReport
from planner.documents.problems import (
    Gathered,
    Problem,
    RequestError,
    nearest,
    problem,
    refuse,
    shown,
)
from planner.documents.request import PlanRequest
from planner.documents.typed_values import plain_object, validate
from planner.inputs.requests.parser import parse_request
from planner.progress import step
from planner.search.exhaustive import cost_model
from planner.version import __version__

PART = "sensitivity"
# Changes of plan listed per input on each side of the base.
MOST_CHANGES = 3
# Limit on the plans priced by the searches of one analysis: a minute or two on one core.
MOST_COSTED = 100_000_000

MEASURES: dict[str, Measure] = {
    "tokens_per_s": "time per token",
    "cost": "cost per token",
    "memory_headroom": "peak memory",
}


def parse_sensitivity(document: Any) -> SensitivityRequest:
    """The request in a document that also has the part `sensitivity`.  Raises RequestError."""
    rest = plain_object(document)
    asked, problems = rest.pop(PART, None), Gathered()
    spec = SensitivitySpec() if asked is None else problems.of(lambda: parse_spec(asked))
    request = problems.of(lambda: parse_request(rest))
    if spec is None or request is None:
        raise RequestError(problems)
    return SensitivityRequest(request=request, sensitivity=spec)


def parse_spec(value: Any) -> SensitivitySpec:
    """The spec in the part `sensitivity` of a document.

    Raises RequestError with pointers that begin with /sensitivity.
    """
    return validate(f"/{PART}", plain_object(value, f"/{PART}"), SensitivitySpec)


def sensitivity(request: PlanRequest, spec: SensitivitySpec) -> SensitivityAnswer:
    """How each input moves the measure that belongs to the request's objective.

    Raises RequestError (NothingFits if no plan fits), SpaceTooLarge, IllegalPlan.
    """
    began = time.perf_counter()
    chosen, left_out = _chosen(request, spec)
    _check(request)
    step(0, 0)  # the number of values is known only after the first search
    ends = (*spec.factors, 1.0)
    planner = Replanner(request, max(max(ends), 1 / min(ends)))
    if planner.best is None:
        raise NothingFits("nothing fits; `planner plan` says why")
    held = request.plan or planner.best
    study = _Study(request, spec, planner, held)
    ranges = {one.name: Range(request, one, held, spec.factors, spec.resolution) for one in chosen}
    _refuse_long_searches(planner, chosen, ranges)
    # A value that needs a search counts twice, since locating changes of plan takes as long again.
    weights = {one.name: 2 if one.reach == "all" else 1 for one in chosen}
    total = sum(weights[name] * len(own.sampled()) for name, own in ranges.items())
    found, done = [], 0
    for one in chosen:
        own, points = ranges[one.name], list[Point]()
        for factor in own.sampled():
            step(done + len(points), total)
            points.append(study.point(one, own, factor))
        step(done + len(points), total)
        found.append(study.input(one, own, points))
        done += weights[one.name] * len(points)
    step(done, total)
    found.sort(key=_largest_change, reverse=True)
    return SensitivityAnswer.of(
        study,
        request=request.document() | {PART: spec.model_dump(mode="json")},
        version=__version__,
        profile=ProfileInfo.of(planner.model.context.profile, measured={}),
        held=study.held_report,
        best=study.best_report,
        inputs=tuple(found),
        left_out=tuple(left_out),
        searches=planner.searches,
        time_s=time.perf_counter() - began,
    )


def _check(request: PlanRequest) -> None:
    """Refuse a plan that cannot run, and the objective cost without a price."""
    if request.plan is not None and (reasons := illegal(request, request.plan)):
        raise IllegalPlan(reasons)
    price = request.cluster.groups[0].price_usd_per_accelerator_hour
    if request.search.objective == "cost" and not price:
        at = "/cluster/price_usd_per_accelerator_hour"
        raise refuse(at, "missing", "the objective is the cost, and no price is known")


def _chosen(request: PlanRequest, spec: SensitivitySpec) -> tuple[list[Input], list[Note]]:
    """The inputs asked for, and notes on those that do not apply."""
    known, idle = dict[str, Input](), dict[str, str]()
    for one in inputs_of(request):
        if isinstance(one, Input):
            known[one.name] = one
        else:
            idle[one[0]] = one[1]
    if not spec.inputs:
        return list(known.values()), [Note(code=name, text=why) for name, why in idle.items()]
    problems = []
    for i, name in enumerate(spec.inputs):
        pointer = f"/{PART}/inputs/{i}"
        if name in idle:
            detail = f"{name} does not apply: {idle[name]}"
            problems.append(problem(pointer, "not_applicable", detail))
        elif name not in known:
            problems.append(_unknown(pointer, name, [*known, *idle]))
    if problems:
        raise RequestError(problems)
    return [known[name] for name in dict.fromkeys(spec.inputs)], []


def _unknown(pointer: str, name: str, known: list[str]) -> Problem:
    part = name.strip().lower().replace("-", "_").replace(" ", "_")
    close = [one for one in known if part and part in one] or nearest(part, known)
    detail, nearby = f"no input {shown(name)!r}", tuple(close)[:4]
    return problem(pointer, "unknown_name", detail, name, allowed=known, did_you_mean=nearby)


def _refuse_long_searches(
    planner: Replanner, chosen: list[Input], ranges: Mapping[str, Range]
) -> None:
    """Refuse an analysis whose searches would take too long, before they begin."""
    each = planner.costed
    count = sum(len(ranges[one.name].sampled()) for one in chosen if one.reach == "all")
    if count * each > MOST_COSTED:
        raise refuse(
            f"/{PART}/inputs", "too_much",
            f"{count} searches of {each:,} plans each; at most {MOST_COSTED:,} plans: name fewer "
            "inputs or factors, or limit the search",
        )  # fmt: skip


class _Study:
    """The results at the base, and the changes from them."""

    def __init__(
        self, request: PlanRequest, spec: SensitivitySpec, planner: Replanner, held: ParallelPlan
    ) -> None:
        self.request, self.spec, self.planner, self.held = request, spec, planner, held
        self.measure = MEASURES[request.search.objective]
        assert planner.best is not None
        variant = Variant(request, cost_model(request))
        self.held_report, self.best_report = reports(variant.model, request, [held, planner.best])
        self.base = _outcome(variant, self.held_report)
        self.replanned_base = _outcome(variant, self.best_report)
        self._best: dict[tuple[str, float], ParallelPlan | None] = {}

    def point(self, input_: Input, bounds: Range, factor: float) -> Point:
        """The results of the held plan and of the best plan at one value of an input."""
        variant = changed(self.request, input_, factor)
        plan = self._best_at(input_, bounds, factor)
        held = held_in(variant, self.held)
        reasons = illegal(variant.request, held)
        fixed = None if reasons else _priced(variant, held)
        replanned = None if plan is None else fixed if plan == held else _priced(variant, plan)
        return Point(
            factor=factor,
            value=input_.at(factor),
            fixed=fixed,
            fixed_change=self._change(fixed, self.base),
            reasons=tuple(reasons),
            replanned=replanned,
            replanned_change=self._change(replanned, self.replanned_base),
            plan=plan,
        )

    def input(self, input_: Input, bounds: Range, points: list[Point]) -> InputSensitivity:
        changes, complete = self._changes(input_, bounds, points)
        result = InputSensitivity.of(
            input_,
            elasticity=self._elasticity(input_, bounds),
            points=tuple(points),
            changes=tuple(changes),
            all_changes=complete,
            factors_left_out=tuple(bounds.left_out()),
            words=(),
        )
        return result.model_copy(
            update={"words": tuple(input_words(result, self.measure, self.base))}
        )

    def measured(self, outcome: Outcome) -> float:
        if self.measure == "peak memory":
            return outcome.peak_bytes
        if self.measure == "cost per token":
            assert outcome.usd_per_million_tokens is not None
            return outcome.usd_per_million_tokens
        return 1.0 / outcome.tokens_per_s

    def _change(self, outcome: Outcome | None, base: Outcome) -> float | None:
        return None if outcome is None else self.measured(outcome) / self.measured(base) - 1.0

    def _elasticity(self, input_: Input, bounds: Range) -> float | None:
        """The elasticity, from the nearest values on both sides of the base."""
        ends = []
        for factor in bounds.neighbours():
            variant = changed(self.request, input_, factor)
            held = held_in(variant, self.held)
            if not illegal(variant.request, held):
                ends.append((factor, self.measured(_priced(variant, held))))
        if len(ends) < 2 or ends[0][0] == ends[1][0]:
            return None
        (low, at_low), (high, at_high) = ends
        return math.log(at_high / at_low) / math.log(high / low)

    def _changes(
        self, input_: Input, bounds: Range, points: list[Point]
    ) -> tuple[list[PlanChange], bool]:
        """The changes of the best plan, outward from the base, first down and then up.

        The flag tells whether the list is complete.
        """
        below = [1.0, *(p.factor for p in reversed(points) if p.factor < 1)]
        above = [1.0, *(p.factor for p in points if p.factor > 1)]
        down, all_down = self._one_side(input_, bounds, below)
        up, all_up = self._one_side(input_, bounds, above)
        return [*down, *up], all_down and all_up

    def _one_side(
        self, input_: Input, bounds: Range, outward: list[float]
    ) -> tuple[list[PlanChange], bool]:
        """The changes on one side of the base, each located by bisection between sampled values."""
        found: list[PlanChange] = []
        for near, far in pairwise(outward):
            grid, start = bounds.between(near, far), 0
            while not _same_but_for_dp(
                before := self._best_at(input_, bounds, grid[start]),
                self._best_at(input_, bounds, far),
            ):
                if len(found) == MOST_CHANGES or self.planner.costed > MOST_COSTED:
                    return found, False
                low, high = start, len(grid) - 1
                while high - low > 1:
                    middle = (low + high) // 2
                    if _same_but_for_dp(before, self._best_at(input_, bounds, grid[middle])):
                        low = middle
                    else:
                        high = middle
                found.append(
                    PlanChange(
                        factor_before=grid[low],
                        factor_after=grid[high],
                        value_before=input_.at(grid[low]),
                        value_after=input_.at(grid[high]),
                        before=self._best_at(input_, bounds, grid[low]),
                        after=self._best_at(input_, bounds, grid[high]),
                    )
                )
                start = high
        return found, True

    def _best_at(self, input_: Input, bounds: Range, factor: float) -> ParallelPlan | None:
        key = input_.name, factor
        if key not in self._best:
            side = [f for f in bounds.sampled() if (f > 1) == (factor > 1)]
            furthest = max(side, key=lambda f: abs(math.log(f)), default=factor)
            variant = changed(self.request, input_, factor)
            self._best[key] = self.planner.best_at(variant, input_, factor, furthest)
        return self._best[key]


def _same_but_for_dp(plan: ParallelPlan | None, other: ParallelPlan | None) -> bool:
    """Whether two plans are the same but for dp, which follows from the cluster's size."""
    if plan is None or other is None:
        return plan is other
    return plan.model_copy(update={"dp": other.dp}) == other


def _priced(variant: Variant, plan: ParallelPlan) -> Outcome:
    (report,) = reports(variant.model, variant.request, [plan], simulated=False)
    return _outcome(variant, report)


def _outcome(variant: Variant, report: PlanReport) -> Outcome:
    return Outcome.of(
        report,
        usd_per_million_tokens=usd_per_million_tokens(variant.request.cluster, report.tokens_per_s),
        peak_bytes=report.memory.peak_bytes,
    )


def _largest_change(sensitivity: InputSensitivity) -> float:
    """The largest change of the measure by an input, up or down, as ln of the ratio."""
    fixed = [p.fixed_change for p in sensitivity.points if p.fixed is None or p.fixed.fits]
    changes = [*fixed, *(p.replanned_change for p in sensitivity.points)]
    return max((abs(math.log1p(c)) for c in changes if c is not None), default=0.0)
