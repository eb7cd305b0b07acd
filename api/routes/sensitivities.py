"""How the answer moves with each input."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from api.dependencies import Body, Searches
from api.problems import declare
from api.schema import SENSITIVITY_EXAMPLES, request_body
from planner.sensitivities.analysis import parse_sensitivity, sensitivity
from planner.sensitivities.document import SensitivityAnswer

router = APIRouter(prefix="/sensitivities", tags=["sensitivities"])


@router.post(
    "",
    response_model=SensitivityAnswer,
    responses=declare(400, 413, 415, 422, 503),
    openapi_extra=request_body(SENSITIVITY_EXAMPLES, "SensitivityRequest"),
)
async def sensitivities(document: Body, searches: Searches) -> Response:
    """Change each input, with the plan held and planned again; where the best plan changes."""
    asked = await run_in_threadpool(parse_sensitivity, document)
    answer = await searches.run(
        lambda: sensitivity(asked.request, asked.sensitivity).model_dump_json()
    )
    return Response(answer, media_type="application/json")
