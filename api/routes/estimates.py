"""Time and memory of one plan."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from api import results
from api.budget import Budget
from api.dependencies import Body, Stated, WantedFields, most, read_document
from api.field_selection import Fields
from api.openapi.examples import ESTIMATE_EXAMPLES
from api.openapi.schema import NOT_CHANGED, request_body
from api.pool_worker import EstimateRequest
from api.problems import declare
from planner.documents.answer import EstimateAnswer

router = APIRouter(prefix="/estimates", tags=["estimates"])


@router.post(
    "",
    response_model=EstimateAnswer,
    responses={**declare(400, 408, 413, 415, 422, 503), **NOT_CHANGED},
    openapi_extra=request_body(ESTIMATE_EXAMPLES),
)
async def estimate(
    document: Body, request: Request, budget: Stated, fields: WantedFields
) -> Response:
    """Estimate the request's `plan`; `dp` may be left out, it follows from the others."""
    return await _estimated(request, document, budget, fields)


class Plain(Route):
    """The same for calls without parameters, which need nothing of what FastAPI reads them by.

    Estimates are most of all calls, and reading parameters is a good part of what one costs here.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, _plain, methods=["POST"], include_in_schema=False)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is such a call."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return Match.NONE, {}
        return super().matches(scope)


async def _plain(request: Request) -> Response:
    return await _estimated(request, await read_document(request), most(request), ())


async def _estimated(request: Request, document: Any, budget: Budget, fields: Fields) -> Response:
    known = request.headers.get("if-none-match", "")
    estimates = request.app.state.estimates
    question = EstimateRequest(document, known, fields)
    id, content = await estimates.one(request.state.caller, budget, question)
    headers = {"ETag": results.etag(id)}
    if content is None:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/json", headers=headers)
