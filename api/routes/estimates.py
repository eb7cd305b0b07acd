"""Time and memory of one plan."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api import results
from api.dependencies import Body
from api.problems import declare
from api.schema import ESTIMATE_EXAMPLES, NOT_CHANGED, request_body
from planner import solve
from planner.answer import EstimateAnswer
from planner.documents import parse_request
from planner.identity import answer_id

router = APIRouter(prefix="/estimates", tags=["estimates"])


@router.post(
    "",
    response_model=EstimateAnswer,
    responses={**declare(400, 408, 413, 415, 422), **NOT_CHANGED},
    openapi_extra=request_body(ESTIMATE_EXAMPLES),
)
def estimate(document: Body, request: Request) -> Response:
    """Estimate the request's `plan`; `dp` may be left out, it follows from the others."""
    asked = parse_request(document, need_plan=True)
    assert asked.plan is not None
    headers = {"ETag": results.etag(id := answer_id("es", asked.document()))}
    if results.is_known(request, id):
        return Response(status_code=304, headers=headers)
    answer = solve.estimate(asked, asked.plan)
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)
