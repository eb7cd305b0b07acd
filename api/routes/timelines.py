"""When each rank of a pipeline does what."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response

from api import negotiation
from api.dependencies import Body, Searches
from api.problems import declare
from api.schema import TIMELINE_EXAMPLES, request_body
from planner.drawing.trace import trace
from planner.pipelines import read_timeline
from planner.timeline import TimelineAnswer

router = APIRouter(prefix="/timelines", tags=["timelines"])


@router.post(
    "",
    response_model=TimelineAnswer,
    responses={
        **declare(400, 408, 413, 415, 422, 503),
        200: {"content": {negotiation.TRACE: {"schema": {"type": "object"}}}},
    },
    openapi_extra=request_body(TIMELINE_EXAMPLES, "TimelineOrRequest"),
)
async def timeline(
    document: Body,
    request: Request,
    searches: Searches,
    format: Literal["json", "trace"] | None = None,
) -> Response:
    """Run a schedule with the given times of one chunk, or the pipeline of a request's plan.

    With `Accept: application/vnd.chrome-trace+json`, or `format=trace`, as a trace for Perfetto.
    """
    asked = negotiation.wanted(request, negotiation.JSON, negotiation.TRACE)
    if format is not None:
        asked = {"json": negotiation.JSON, "trace": negotiation.TRACE}[format]

    def answer() -> str:
        found = read_timeline(document)
        return trace(found) if asked == negotiation.TRACE else found.model_dump_json()

    return Response(await searches.run(answer), media_type=asked)
