"""What routes ask for: the document in the body, and where to compute."""

from __future__ import annotations

import json
from typing import Annotated, Any

from anyio import fail_after
from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from api.pool import Pool
from api.problems import Refused
from api.settings import Settings
from planner.loading import MAX_STRING, parse_json


async def read_document(request: Request) -> Any:
    """The JSON value in the body, within the limit on its size."""
    return await _read(request, MAX_STRING)


async def read_files(request: Request) -> Any:
    """The same, where a string may be a whole file."""
    return await _read(request, _settings(request).max_body_bytes)


async def _read(request: Request, longest: int) -> Any:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise HTTPException(415, "the body must be application/json")
    limit = _settings(request).max_body_bytes
    too_large = HTTPException(413, f"the body has more than {limit} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
        raise too_large
    body = bytearray()
    try:
        with fail_after(_settings(request).max_body_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise Refused("timeout", "the body did not arrive in time") from None
    try:
        return parse_json(bytes(body), longest)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise HTTPException(400, f"the body is not JSON: {error.msg} ({where})") from None
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8 text") from None


async def the_searches(request: Request) -> Pool:
    """Where every search runs."""
    pool: Pool = request.app.state.searches
    return pool


async def the_estimates(request: Request) -> Pool:
    """Where estimates run: they never wait behind a search."""
    pool: Pool = request.app.state.estimates
    return pool


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


Body = Annotated[Any, Depends(read_document)]
Files = Annotated[Any, Depends(read_files)]
Searches = Annotated[Pool, Depends(the_searches)]
Estimates = Annotated[Pool, Depends(the_estimates)]
