"""HEAD wherever there is GET, and OPTIONS that says what an address takes."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Methods:
    """Answers HEAD as GET without its body, and OPTIONS itself."""

    def __init__(self, app: ASGIApp, routes: FastAPI) -> None:
        self.app = app
        self.routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http" or scope["method"] not in ("HEAD", "OPTIONS"):
            await self.app(scope, receive, send)
            return
        if scope["method"] == "OPTIONS":
            allowed = allowed_methods(self.routes, scope)
            if allowed:
                headers = [(b"allow", allowed.encode())]
                await send({"type": "http.response.start", "status": 204, "headers": headers})
                await send({"type": "http.response.body"})
                return

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        head = scope["method"] == "HEAD"
        scope["method"] = "GET" if head else "OPTIONS"
        await self.app(scope, receive, headed if head else send)


def allowed_methods(app: FastAPI, scope: Scope) -> str:
    """The methods of every route at an address; empty where there is none."""
    methods: set[str] = set()
    for route in app.routes:
        if route.matches(scope)[0] != Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    if "GET" in methods:
        methods.add("HEAD")
    return ", ".join(sorted(methods | {"OPTIONS"})) if methods else ""
