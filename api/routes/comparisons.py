"""Two plans, or all schedules, side by side."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.dependencies import Body, Brief
from api.openapi.examples import COMPARISON_EXAMPLES, SCHEDULE_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.answers.two_plans import SideBySide, side_by_side
from planner.pipelines.all_schedules import ComparisonAnswer
from planner.pipelines.plan_timeline import read_schedules
from planner.request_parsing.two_requests import parse_both

router = APIRouter(tags=["comparisons"])


@router.post(
    "/comparisons",
    response_model=SideBySide,
    responses=declare(400, 408, 413, 415, 422),
    openapi_extra=request_body(COMPARISON_EXAMPLES, "ComparisonOfPlans"),
)
def comparison(document: Body) -> Response:
    """Every value of two requests with a plan, of what is asked and what comes of it."""
    answer = side_by_side(*parse_both(document))
    return Response(answer.model_dump_json(), media_type="application/json")


@router.post(
    "/schedule-comparisons",
    response_model=ComparisonAnswer,
    responses=declare(400, 408, 413, 415, 422, 503),
    openapi_extra=request_body(SCHEDULE_EXAMPLES, "ScheduleComparisonRequest"),
)
async def schedule_comparison(document: Body, brief: Brief) -> Response:
    """Every pipeline schedule on one pipeline: of a request's plan, or with given times."""
    answer = await brief.answer(read_schedules, document)
    return Response(answer, media_type="application/json")
