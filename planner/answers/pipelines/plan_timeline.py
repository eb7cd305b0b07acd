"""A request's plan as a pipeline: its timeline, and its schedule beside all others."""

from __future__ import annotations

from typing import Any

from cost_models.plans import ParallelPlan
from cost_models.schedules.simulate import Links, Times
from planner.answers.pipelines.all_schedules import (
    ComparisonAnswer,
    compare_for_plan,
    compare_schedules,
    parse_comparison,
)
from planner.answers.pipelines.timeline import (
    TimelineAnswer,
    parse_timeline,
    timeline,
    timeline_of_plan,
)
from planner.answers.plans.plan_answers import IllegalPlan, illegal
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import cost_model


def read_timeline(document: Any) -> TimelineAnswer:
    """The timeline that a document asks for: of a request's plan, or of a schedule alone.

    Raises RequestError, IllegalPlan.
    """
    if _has_model(document):
        return timeline_of(parse_request(document, need_plan=True))
    return timeline(parse_timeline(document))


def read_schedules(document: Any) -> ComparisonAnswer:
    """All schedules, for a request's plan or for a pipeline without a model.

    Raises RequestError, IllegalPlan.
    """
    if _has_model(document):
        return schedules_of(parse_request(document, need_plan=True))
    return compare_schedules(parse_comparison(document))


def timeline_of(request: PlanRequest) -> TimelineAnswer:
    """The request's plan run step by step.  Raises RequestError, IllegalPlan."""
    plan = request.named_plan
    return timeline_of_plan(request, plan, *_stage_times(request, plan))


def schedules_of(request: PlanRequest) -> ComparisonAnswer:
    """Every schedule with the stage times of the request's plan.  Raises IllegalPlan."""
    plan = request.named_plan
    return compare_for_plan(request, plan, *_stage_times(request, plan))


def _has_model(document: Any) -> bool:
    return isinstance(document, dict) and "model" in document


def _stage_times(request: PlanRequest, plan: ParallelPlan) -> tuple[Times, Links]:
    """What a plan's ranks take per chunk, and its messages."""
    reasons = illegal(request, plan)
    if reasons:
        raise IllegalPlan(reasons)
    return cost_model(request).stage_times(plan)
