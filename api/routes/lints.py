"""What is wrong with a launch script, and what would be faster."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from api.dependencies import Brief, Files
from api.openapi.examples import LINT_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.lint.findings import LintAnswer
from planner.lint.lint import lint as linted
from planner.lint.request import parse_lint

router = APIRouter(prefix="/lints", tags=["lints"])


@router.post(
    "",
    response_model=LintAnswer,
    responses=declare(400, 408, 413, 415, 422, 503),
    openapi_extra=request_body(LINT_EXAMPLES, "LintRequest"),
)
async def lint(document: Files, brief: Brief) -> Response:
    """Read the files of a launch, none of which is run; findings are an answer, not a problem."""
    asked = await run_in_threadpool(parse_lint, document)
    cluster = asked.named_cluster
    answer = await brief.answer(linted, asked.files, cluster, asked.framework, asked.given)
    return Response(answer, media_type="application/json")
