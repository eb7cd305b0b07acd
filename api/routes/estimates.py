"""Time and memory of one plan."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api import results, work
from api.dependencies import Body, Estimates
from api.problems import declare
from api.schema import ESTIMATE_EXAMPLES, NOT_CHANGED, request_body
from planner.documents.answer import EstimateAnswer

router = APIRouter(prefix="/estimates", tags=["estimates"])


@router.post(
    "",
    response_model=EstimateAnswer,
    responses={**declare(400, 408, 413, 415, 422, 503), **NOT_CHANGED},
    openapi_extra=request_body(ESTIMATE_EXAMPLES),
)
async def estimate(document: Body, request: Request, estimates: Estimates) -> Response:
    """Estimate the request's `plan`; `dp` may be left out, it follows from the others."""
    known = request.headers.get("if-none-match", "")
    id, answer = await estimates.run(work.estimate, document, known)
    headers = {"ETag": results.etag(id)}
    if answer is None:
        return Response(status_code=304, headers=headers)
    return Response(answer, media_type="application/json", headers=headers)
