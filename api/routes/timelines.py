"""When each rank of a pipeline does what."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request, Response

from api import negotiation, pool_worker
from api.dependencies import Body, Brief
from api.openapi.examples import TIMELINE_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.pipelines.plan_timeline import read_timeline
from planner.pipelines.timeline import TimelineAnswer

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
    brief: Brief,
    format: Literal["json", "trace"] | None = None,
) -> Response:
    """Run a schedule with the given times of one chunk, or the pipeline of a request's plan.

    With `Accept: application/vnd.chrome-trace+json`, or `format=trace`, as a trace for Perfetto.
    """
    asked = negotiation.preferred_media_type(request, negotiation.JSON, negotiation.TRACE)
    if format is not None:
        asked = {"json": negotiation.JSON, "trace": negotiation.TRACE}[format]
    if asked == negotiation.TRACE:
        return Response(await brief.run(pool_worker.traced, document), media_type=asked)
    return Response(await brief.answer(read_timeline, document), media_type=asked)
