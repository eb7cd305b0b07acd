"""How the answer moves with each input."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import results
from api.dependencies import Body, Searches
from api.openapi.examples import SENSITIVITY_EXAMPLES
from api.openapi.schema import NOT_CHANGED, STREAMED, request_body
from api.problems import declare
from planner.sensitivities import analysis

router = APIRouter(prefix="/sensitivities", tags=["sensitivities"])


@router.post(
    "",
    response_model=results.KeptSensitivity,
    responses={**declare(400, 408, 413, 415, 422, 503), **NOT_CHANGED, **STREAMED},
    openapi_extra=request_body(SENSITIVITY_EXAMPLES, "SensitivityRequest"),
)
async def sensitivity(document: Body, request: Request, searches: Searches) -> Response:
    """Change each input, with the plan held and planned again; where the best plan changes."""
    asked = await run_in_threadpool(analysis.parse_sensitivity, document)
    return await results.answer(
        request,
        searches,
        "sensitivities",
        asked.document(),
        analysis.sensitivity,
        asked.request,
        asked.sensitivity,
    )


@router.get(
    "/{id}",
    response_model=results.KeptSensitivity,
    responses={**declare(404, 422, 503), **NOT_CHANGED},
)
async def kept_sensitivity(id: results.Id, request: Request) -> Response:
    """An answer again, as long as it is kept."""
    return await results.stored_answer(request, "sensitivities", id)
