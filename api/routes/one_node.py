"""A plan checked on one node of its own cluster: the script, and what came back."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from api.dependencies import Body, Files
from api.negotiation import JSON
from api.openapi.examples import ESTIMATE_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.request_parsing.parser import parse_request
from planner.validate.one_node import OneNode, judged, one_node
from planner.validate.report import ValidationReport

router = APIRouter(prefix="/one-node", tags=["validations"])


@router.post(
    "",
    response_model=OneNode,
    responses=declare(400, 408, 413, 415, 422),
    openapi_extra=request_body(ESTIMATE_EXAMPLES),
)
async def one_node_script(document: Body) -> Response:
    """The script that trains the request's `plan`, scaled to one node of its cluster."""
    return Response(await run_in_threadpool(_script, document), media_type=JSON)


def _script(document: Any) -> str:
    return one_node(parse_request(document, need_plan=True)).model_dump_json()


@router.post(
    "/results",
    response_model=ValidationReport,
    responses=declare(400, 408, 413, 415, 422),
    openapi_extra=request_body({}, "NodeResults"),
)
async def one_node_report(document: Files) -> Response:
    """What its ranks measured, compared with the estimate."""
    return Response(await run_in_threadpool(_results, document), media_type=JSON)


def _results(document: Any) -> str:
    return judged(document).model_dump_json()
