"""HEAD for every GET, and OPTIONS with the methods of an address."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.route_templates import Addresses


class Methods:
    """Answers HEAD as GET without its body, and OPTIONS itself."""

    def __init__(self, app: ASGIApp, addresses: Addresses) -> None:
        self.app = app
        self.addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        method = scope["method"] if scope["type"] == "http" else ""
        if method == "HEAD":
            await self.app({**scope, "method": "GET"}, receive, _Headed(send).send)
            return
        allowed = self.addresses.allowed(scope["path"]) if method == "OPTIONS" else ""
        if not allowed:
            await self.app(scope, receive, send)
            return
        headers = [(b"allow", allowed.encode())]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body"})


class _Headed:
    """Sends the head of an answer alone."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)
