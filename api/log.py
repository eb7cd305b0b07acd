"""Logging of every call: its id, one line of JSON, and the headers of every response."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable
from random import getrandbits

import structlog
from fastapi import Request
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import Processor

from api.pool_worker import error_location
from api.problem_types import TYPES
from api.problems import MEDIA_TYPE, respond
from api.route_templates import Addresses
from planner.documents.problems import internal_document

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "object-src 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_CLIENT_LEFT = 499  # for the log alone
PROCESSORS: list[Processor] = [
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.JSONRenderer(),
]
_log = structlog.wrap_logger(structlog.WriteLogger(sys.stderr), processors=PROCESSORS)
# (method, route template, status, seconds): told of every call.
Observer = Callable[[str, str, int, float], None]


class RequestLog:
    """Logs method, path, status and time of every call; never a body, a query or a key.

    A caller's own X-Request-ID is kept where it is short and plain.  What the application does not
    answer is a fault of ours: logged by the lines it passed, and answered with its id alone.
    """

    def __init__(self, app: ASGIApp, addresses: Addresses, observe: Observer) -> None:
        self.app = app
        self.addresses = addresses
        self.observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = Headers(scope=scope).get("x-request-id", "")
        call = request_id if _REQUEST_ID.match(request_id) else new_id()
        scope.setdefault("state", {})["request_id"] = call
        started, status, fault = time.perf_counter(), 0, ""

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message.setdefault("headers", [])
                names_sent = {name for name, _ in headers}
                headers += [header for header in _RAW_HEADERS if header[0] not in names_sent]
                headers.append((b"x-request-id", call.encode()))
                if spent := scope["state"].get("spent"):
                    headers.append((b"planner-spent", f"{spent.bound}={spent.allowed:g}".encode()))
            await send(message)

        try:
            await self.app(scope, receive, send_noting)
        except ClientDisconnect:
            status = _CLIENT_LEFT
        except Exception as error:
            fault = error_location(error)
            if status:  # too late for another answer
                raise
            await respond(Request(scope), internal_document())(scope, receive, send_noting)
        finally:
            seconds = time.perf_counter() - started
            route, _ = self.addresses.find(scope["path"])
            self.observe(scope["method"], route or "none", status, seconds)
            _log.log(
                40 if fault else 20,
                "call",
                method=scope["method"],
                path=scope["path"],
                status=status,
                duration_s=round(seconds, 6),
                request_id=call,
                **_caller(scope),
                **({"fault": fault} if fault else {}),
            )


def new_id() -> str:
    """An id of a call: no secret, so it need not come from the system's own source."""
    return f"{getrandbits(128):032x}"


def refused(slug: str, detail: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and problem document for what is no call yet, such as a bad request line; logged."""
    kind, call = TYPES[slug], new_id()
    document = {
        "type": f"/problems/{slug}", "title": kind.title, "status": kind.status,
        "detail": detail, "instance": "", "request_id": call,
    }  # fmt: skip
    _log.info("refused", status=kind.status, detail=detail, request_id=call)
    body = json.dumps(document).encode()
    headers = [
        (b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"), (b"x-request-id", call.encode()), *_RAW_HEADERS,
    ]  # fmt: skip
    return headers, body


def _caller(scope: Scope) -> dict[str, str]:
    """The name of the key of a call, where it has one."""
    key = scope["state"].get("key")
    return {"caller": key.name} if key and key.name else {}


def audit(request: Request, action: str, subject: str) -> None:
    """Log who changed what."""
    _log.info(
        "audit", action=action, subject=subject, request_id=request.state.request_id,
        **_caller(request.scope),
    )  # fmt: skip


class JsonHandler(logging.Handler):
    """What libraries have to say, as far as their loggers let it through, as lines like these."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        error = record.exc_info[1] if record.exc_info else None
        fault = {"fault": error_location(error)} if error else {}
        _log.log(record.levelno, record.getMessage(), logger=record.name, **fault)
