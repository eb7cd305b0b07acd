"""Every error of the service in one shape: problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from planner.frameworks.base import Unsupported
from planner.problems import (
    Problem,
    RequestError,
    from_reasons,
    from_space,
    internal_document,
    problem_document,
)
from planner.search import SpaceTooLarge
from planner.solve import IllegalPlan
from planner.store import Mismatch, Unavailable

MEDIA_TYPE = "application/problem+json"


class ProblemDocument(BaseModel):
    """What the service sends in place of an answer."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: tuple[Problem, ...] = ()


_SLUGS = {
    "not-found": 404,
    "not-cancellable": 409,
    "queue-full": 503,
    "idempotency-mismatch": 422,
    "unavailable": 503,
}


class Refused(HTTPException):
    def __init__(self, slug: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(_SLUGS[slug], detail, headers)
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
    """Answer every error of the application with a problem document."""
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(RequestValidationError, _parameter_error)
    app.add_exception_handler(IllegalPlan, _illegal_plan)
    app.add_exception_handler(Unsupported, _illegal_plan)
    app.add_exception_handler(SpaceTooLarge, _space_too_large)
    app.add_exception_handler(Mismatch, _mismatch)
    app.add_exception_handler(Unavailable, _unavailable)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)


async def _request_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    return _respond(request, problem_document(error.problems))


async def _parameter_error(request: Request, error: Exception) -> JSONResponse:
    """A parameter of the address, said like any field of the document."""
    assert isinstance(error, RequestValidationError)
    problems = (
        Problem(
            pointer="/" + "/".join(map(str, found["loc"][1:])), code="bad_parameter",
            detail=found["msg"],
        )
        for found in error.errors()
    )  # fmt: skip
    return await _request_error(request, RequestError(problems))


async def _illegal_plan(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, IllegalPlan | Unsupported)
    return _respond(request, problem_document(from_reasons(error.reasons)))


async def _space_too_large(request: Request, error: Exception) -> JSONResponse:
    return _respond(request, problem_document(from_space(error)))


async def _mismatch(request: Request, error: Exception) -> JSONResponse:
    return await _http_error(request, Refused("idempotency-mismatch", str(error)))


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    return await _http_error(request, Refused("unavailable", str(error), {"Retry-After": "5"}))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    document = {
        "type": f"/problems/{getattr(error, 'slug', phrase.lower().replace(' ', '-'))}",
        "title": phrase,
        "status": error.status_code,
        "detail": error.detail,
    }
    return _respond(request, document, error.headers)


async def _internal_error(request: Request, error: Exception) -> JSONResponse:
    return _respond(request, internal_document())


def _respond(
    request: Request, document: dict[str, Any], headers: Mapping[str, str] | None = None
) -> JSONResponse:
    return JSONResponse(
        document | {"instance": request.url.path},
        status_code=document["status"],
        headers=headers,
        media_type=MEDIA_TYPE,
    )
