"""What a launch script says."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from api.dependencies import Brief, Files
from api.openapi.examples import LINT_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.lint.findings import ReadAnswer
from planner.lint.lint import read as said
from planner.lint.request import parse_lint

router = APIRouter(prefix="/reads", tags=["lints"])


@router.post(
    "",
    response_model=ReadAnswer,
    responses=declare(400, 408, 413, 415, 422, 503),
    openapi_extra=request_body(LINT_EXAMPLES, "ReadRequest"),
)
async def read(document: Files, brief: Brief) -> Response:
    """The request that the files of a launch make, none of which is run."""
    return Response(await brief.answer(_read, document), media_type="application/json")


def _read(document: Any) -> ReadAnswer:
    asked = parse_lint(document, need_cluster=False)
    return said(asked.files, asked.cluster, asked.framework, asked.given)
