"""The files that launch a plan."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import negotiation
from api.dependencies import Body, Brief, Searches
from api.openapi.examples import PLAN_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.answers.emission import emit, zipped
from planner.frameworks.base import Bundle
from planner.frameworks.launchers import LAUNCHERS
from planner.request_parsing.parser import parse_request

router = APIRouter(prefix="/bundles", tags=["bundles"])
Launcher = Annotated[str | None, Query(max_length=64, description=f"one of {', '.join(LAUNCHERS)}")]


@router.post(
    "",
    response_model=Bundle,
    responses={
        **declare(400, 408, 413, 415, 422, 503),
        200: {"content": {negotiation.ZIP: {"schema": {"type": "string", "format": "binary"}}}},
    },
    openapi_extra=request_body(PLAN_EXAMPLES),
)
async def bundle(
    document: Body, request: Request, searches: Searches, brief: Brief, launcher: Launcher = None
) -> Response:
    """Files for `search.framework`, of the request's `plan` or else of the best one.

    With `Accept: application/zip` as an archive.
    """
    asked = await run_in_threadpool(parse_request, document)
    made = await (brief if asked.plan else searches).run(emit, asked, launcher)
    if (
        negotiation.preferred_media_type(request, negotiation.JSON, negotiation.ZIP)
        == negotiation.JSON
    ):
        return Response(made.model_dump_json(), media_type=negotiation.JSON)
    named = {"Content-Disposition": f'attachment; filename="{made.framework}.zip"'}
    return Response(zipped(made), media_type=negotiation.ZIP, headers=named)
