"""Estimates without parameters, by a shorter way."""

from __future__ import annotations

from fastapi import Request, Response
from starlette.routing import Match, Route
from starlette.types import Scope

from api import results
from api.dependencies import most, read_document


class Plain(Route):
    """The route of estimates for calls that need nothing of what FastAPI reads parameters by.

    Estimates are most of all calls, and reading parameters is a good part of what one costs here.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, _plain, methods=["POST"], include_in_schema=False)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is such a call."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return Match.NONE, {}
        return super().matches(scope)


async def _plain(request: Request) -> Response:
    return await results.estimated(request, await read_document(request), most(request), ())
