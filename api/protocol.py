"""HTTP/1.1 as the service speaks it: bounded in time and size, its errors problem documents."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.log import refused
from api.problem_types import TYPES
from api.problems import RETRY_AFTER_S

MAX_HEADER_BYTES = 32_768
_HEADER_TIMEOUT_S = 10.0  # for the headers of a request to arrive
_LONG_BYTES = 1 << 16
_READ_TIMEOUT_S = 20.0  # for a client that reads nothing of its response


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP/1.1 that closes connections whose headers don't arrive in time.

    It also closes those whose client stops reading the response, and answers what is no HTTP, comes
    too slowly or is one connection too many with a problem document.
    """

    limit_concurrency: int | None = None  # uvicorn's own refusal is no problem document
    _header_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None
    _has_begun = False  # to send headers

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.limit_concurrency = None

    def connection_made(self, transport: Any) -> None:
        """A client has connected: start the timer of its first headers."""
        self._close_an_idle_connection_at_the_limit()
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]
        self._start_header_timer()

    def pause_writing(self) -> None:
        """The client does not read: start the timer of its reading."""
        super().pause_writing()
        self._read_timer = self.loop.call_later(_READ_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again: stop the timer of its reading."""
        self._stop_read_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Time the headers alone; the body has a limit of its own (PLANNER_MAX_BODY_S)."""
        self._has_begun = True
        super().data_received(data)
        if not self._is_idle():
            self._stop_header_timer()
        elif self._header_timer is None:  # as a rule headers come as one piece, and need none
            self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: stop both timers."""
        self._stop_header_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def _close_an_idle_connection_at_the_limit(self) -> None:
        others: set[Any] = self.connections
        if self.config.limit_concurrency and len(others) >= self.config.limit_concurrency - 1:
            idle = next((connection for connection in others if connection._is_idle()), None)
            if idle is not None:
                idle.transport.abort()
                others.discard(idle)
            else:
                self.app = _all_connections_busy

    def _is_idle(self) -> bool:
        """Whether no request is being answered on this connection."""
        return self.cycle is None or self.cycle.response_complete

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(_HEADER_TIMEOUT_S, self._close)

    def _close(self) -> None:
        if self._has_begun and self._is_idle():
            self._refuse("timeout", "the headers did not arrive in time")
        self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP; called where h11 refused it."""
        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", 400) == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            self._refuse("headers-too-large", f"more than {MAX_HEADER_BYTES} bytes of headers")
        else:
            self._refuse("malformed", msg)
        self.transport.close()

    def _refuse(self, slug: str, detail: str) -> None:
        headers, body = refused(slug, detail)
        status = TYPES[slug].status
        reason = HTTPStatus(status).phrase.encode()
        head = h11.Response(status_code=status, headers=headers, reason=reason)
        with suppress(h11.LocalProtocolError):  # an answer has begun
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


class _Joined:
    """A transport that sends what is written in one turn of the event loop at once.

    The head and the body of an answer are two writes: each would cost a system call here and wake
    the caller.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it soon; what is long at once, so that the transport can tell that it is full."""
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)
        if len(data) > _LONG_BYTES:
            self._send()

    def close(self) -> None:
        """Close the connection once all is sent."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._transport.write(b"".join(parts))


async def _all_connections_busy(scope: Scope, receive: Receive, send: Send) -> None:
    headers, body = refused("queue-full", "all connections are in use; try again")
    headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
    status = TYPES["queue-full"].status
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
