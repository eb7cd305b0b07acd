"""The files that launch a plan."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.concurrency import run_in_threadpool

from api.dependencies import Body, Searches
from api.problems import declare
from api.schema import PLAN_EXAMPLES, request_body
from planner.documents import parse_request
from planner.emission import emit
from planner.frameworks.base import Bundle
from planner.launchers import LAUNCHERS

router = APIRouter(prefix="/bundles", tags=["bundles"])
Launcher = Annotated[str | None, Query(max_length=64, description=f"one of {', '.join(LAUNCHERS)}")]


@router.post(
    "",
    response_model=Bundle,
    responses=declare(400, 413, 415, 422, 503),
    openapi_extra=request_body(PLAN_EXAMPLES),
)
async def bundle(document: Body, searches: Searches, launcher: Launcher = None) -> Response:
    """Files for `search.framework`, of the request's `plan` or else of the best one."""
    request = await run_in_threadpool(parse_request, document)
    answer = await searches.run(lambda: emit(request, launcher).model_dump_json())
    return Response(answer, media_type="application/json")
