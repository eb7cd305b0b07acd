"""The fastest plans that fit."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from api.dependencies import Body, Searches
from api.problems import declare
from api.schema import PLAN_EXAMPLES, request_body
from planner import mixed, solve
from planner.answer import PlanAnswer
from planner.documents import parse_request
from planner.mixed.answer import MixedAnswer

router = APIRouter(prefix="/plans", tags=["plans"])


@router.post(
    "",
    response_model=PlanAnswer | MixedAnswer,
    responses=declare(400, 413, 415, 422, 503),
    openapi_extra=request_body(PLAN_EXAMPLES),
)
async def plan(document: Body, searches: Searches) -> Response:
    """Search; that nothing fits is an answer too, with `best` null and the nearest miss.

    Where nodes differ, the ways to use them, the fastest first.
    """
    request = await run_in_threadpool(lambda: parse_request(document, mixed=True))
    differ = len(request.cluster.groups) > 1
    find = mixed.find if differ else solve.find
    answer = await searches.run(lambda: find(request).model_dump_json())
    return Response(answer, media_type="application/json")
