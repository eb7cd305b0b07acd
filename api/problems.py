"""Every error of the service in one shape: problem documents (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from api.budget import OverBudget, TooLate
from api.problem_types import OF_STATUS, TYPES
from planner.answers.plans.plan_answers import IllegalPlan
from planner.documents.problems import Problem, RequestError, problem, problem_document, problems_of
from planner.frameworks.base import Unsupported
from planner.inputs.requests.models import UnsupportedModel
from planner.running.store import Mismatch, Unavailable
from planner.search.exhaustive import SpaceTooLarge

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
_log = logging.getLogger(__name__)


class ProblemDocument(BaseModel):
    """What the service sends in place of an answer; `type` is the address of a page about it."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str
    errors: tuple[Problem, ...] = ()


class Refused(HTTPException):
    """A call that is refused, with a problem type of TYPES."""

    def __init__(self, slug: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(TYPES[slug].status, detail, headers)
        self.slug = slug


def declare(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of a route, for its OpenAPI entry."""
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


def install(app: FastAPI) -> None:
    """Answer every error of the application with a problem document.

    Faults of ours are answered outside of all this, where calls are logged.
    """
    for kinds, answer in (
        ((RequestError, IllegalPlan, Unsupported, SpaceTooLarge), _request_error),
        ((RequestValidationError,), _parameter_error),
        ((Mismatch, HTTPException), _http_error),
        ((Unavailable,), _unavailable),
        ((OverBudget,), _over_budget),
        ((TooLate,), _too_late),
    ):
        for kind in kinds:
            app.add_exception_handler(kind, answer)


async def _request_error(request: Request, error: Exception) -> JSONResponse:
    document = problem_document(problems_of(error) or ())
    if isinstance(error, UnsupportedModel):
        kind = TYPES["unsupported-model"]
        document |= {"type": "/problems/unsupported-model", "title": kind.title}
    return respond(request, document)


async def _parameter_error(request: Request, error: Exception) -> JSONResponse:
    """A parameter of the address, said like any field of the document."""
    assert isinstance(error, RequestValidationError)
    problems = (
        problem("/" + "/".join(map(str, detail["loc"][1:])), "bad_parameter", _detail_of(detail))
        for detail in error.errors()
    )
    return await _request_error(request, RequestError(problems))


def _detail_of(detail: Mapping[str, Any]) -> str:
    """What is wrong with a parameter of an address."""
    if detail["loc"][-1] == "id" and detail["type"] == "string_pattern_mismatch":
        return "is no id of an answer, which looks like pl_7dcd0a1b2c3d4e5f"
    return str(detail["msg"])


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    # Which machine it is, and why, is for whoever runs the service.
    request.app.state.metrics.store_errors.inc()
    _log.warning("the store is not available: %s", error)
    detail = "the database does not answer, or cannot be written"
    return refuse(request, Refused("unavailable", detail, headers))


async def _over_budget(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, OverBudget)
    kind = TYPES["over-budget"]
    document = {
        "type": "/problems/over-budget", "title": kind.title, "status": kind.status,
        "detail": str(error), "spent": error.spent.document(), "best": error.best,
    }  # fmt: skip
    return respond(request, document)


async def _too_late(request: Request, error: Exception) -> JSONResponse:
    return refuse(request, Refused("too-late", str(error)))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, Mismatch):
        error = Refused("idempotency-mismatch", str(error))
    assert isinstance(error, HTTPException)
    if error.status_code == 405:  # a route knows its own methods alone, not those of its address
        error.headers = {"Allow": request.app.state.addresses.allowed(request.url.path)}
    return refuse(request, error)


def refuse(request: Request, error: HTTPException) -> JSONResponse:
    """The problem document of an error that has a status."""
    slug = error.slug if isinstance(error, Refused) else OF_STATUS.get(error.status_code)
    title = TYPES[slug].title if slug else HTTPStatus(error.status_code).phrase
    document = {
        "type": f"/problems/{slug}" if slug else "about:blank",
        "title": title,
        "status": error.status_code,
        "detail": error.detail,
    }
    return respond(request, document, error.headers)


def respond(
    request: Request, document: dict[str, Any], headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """A problem document with what depends on the call."""
    members = {"instance": request.url.path, "request_id": request.state.request_id}
    return JSONResponse(
        document | members, status_code=document["status"], headers=headers, media_type=MEDIA_TYPE
    )
