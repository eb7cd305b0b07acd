"""Why not this plan."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from api.dependencies import Body, Searches
from api.openapi.examples import ESTIMATE_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.answers import plan_answers
from planner.documents.answer import WhyAnswer
from planner.request_parsing.parser import parse_request

router = APIRouter(prefix="/explanations", tags=["explanations"])


@router.post(
    "",
    response_model=WhyAnswer,
    responses=declare(400, 408, 413, 415, 422, 503),
    openapi_extra=request_body(ESTIMATE_EXAMPLES),
)
async def explanation(document: Body, searches: Searches) -> Response:
    """What binds the request's plan, the smallest change that fits, and what the best one gains."""
    request = await run_in_threadpool(lambda: parse_request(document, need_plan=True))
    plan = request.plan
    assert plan is not None
    answer = await searches.answer(plan_answers.why, request, plan)
    return Response(answer, media_type="application/json")
