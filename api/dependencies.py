"""What routes ask for: the document in the body, and a key that is let in."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.exceptions import HTTPException

from api.gate import Gate
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
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large
    try:
        return parse_json(bytes(body), longest)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise HTTPException(400, f"the body is not JSON: {error.msg} ({where})") from None
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8 text") from None


async def require_key(request: Request) -> None:
    """Refuse a call without a known key, where the service has keys."""
    digests = _settings(request).api_keys_sha256
    if not digests:
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    given = hashlib.sha256(key.encode()).hexdigest()
    # All are compared, each in constant time, so that timing says nothing of the keys.
    matches = [hmac.compare_digest(given, digest) for digest in digests]
    if not any(matches):
        raise HTTPException(401, "a known API key is needed", {"WWW-Authenticate": "Bearer"})


async def search_gate(request: Request) -> Gate:
    """The gate that every search passes."""
    gate: Gate = request.app.state.searches
    return gate


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


Body = Annotated[Any, Depends(read_document)]
Files = Annotated[Any, Depends(read_files)]
Searches = Annotated[Gate, Depends(search_gate)]
