"""What to rent for a training."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from api.dependencies import Body, Searches
from api.problems import declare
from api.schema import SIZING_EXAMPLES, request_body
from planner.sizing.answer import SizingAnswer
from planner.sizing.compute import size
from planner.sizing.request import parse_sizing

router = APIRouter(prefix="/sizings", tags=["sizings"])


@router.post(
    "",
    response_model=SizingAnswer,
    responses=declare(400, 413, 415, 422, 503),
    openapi_extra=request_body(SIZING_EXAMPLES, "SizingRequest"),
)
async def sizing(document: Body, searches: Searches) -> Response:
    """Search every cluster; that nothing fits, or keeps the limits, is an answer too."""
    asked = await run_in_threadpool(parse_sizing, document)
    answer = await searches.run(lambda: size(asked).model_dump_json())
    return Response(answer, media_type="application/json")
