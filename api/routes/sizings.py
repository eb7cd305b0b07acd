"""What to rent for a training."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import results
from api.dependencies import Body, Searches
from api.openapi.examples import SIZING_EXAMPLES
from api.openapi.schema import NOT_CHANGED, STREAMED, request_body
from api.problems import declare
from planner.sizing.compute import size
from planner.sizing.request import parse_sizing

router = APIRouter(prefix="/sizings", tags=["sizings"])


@router.post(
    "",
    response_model=results.KeptSizing,
    responses={**declare(400, 408, 413, 415, 422, 503), **NOT_CHANGED, **STREAMED},
    openapi_extra=request_body(SIZING_EXAMPLES, "SizingRequest"),
)
async def sizing(document: Body, request: Request, searches: Searches) -> Response:
    """Search every cluster; that nothing fits, or keeps the limits, is an answer too."""
    asked = await run_in_threadpool(parse_sizing, document)
    return await results.answer(request, searches, "sizings", asked.document(), size, asked)


@router.get(
    "/{id}",
    response_model=results.KeptSizing,
    responses={**declare(404, 422, 503), **NOT_CHANGED},
)
async def kept_sizing(id: results.Id, request: Request) -> Response:
    """An answer again, as long as it is kept."""
    return await results.stored_answer(request, "sizings", id)
