"""Progress of long calls as events, and the end of their work when the caller disconnects.

A POST whose `Accept` names text/event-stream is answered with events, while the same route does
the same work: `progress` (done, total and, of a search, the best so far), then `done` with the
very document of the plain answer, or `problem`.  What is refused before there was any progress is
refused as ever, with its status.  Routes know nothing of this: the work tells planner.progress.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import anyio
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner.documents.problems import internal_document
from planner.progress import Step, Stopped, Watch, ignore, watched

EVENTS = "text/event-stream"
_MIN_INTERVAL_S = 0.1  # least time between two events of progress
_WATCH_AFTER_S = 0.2  # a call that ends sooner is not watched for the end of its caller


def event(name: str, document: bytes) -> bytes:
    """One event of a stream; the document is JSON on one line."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), document)


class Waiting:
    """Runs the application within reach of its caller."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one call."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body_is_read, has_left = anyio.Event(), threading.Event()
        answered = False
        failure: Exception | None = None

        async def received() -> Message:
            message = await receive()
            if not message.get("more_body"):
                body_is_read.set()
            return message

        async def sent(message: Message) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        async def notice_leaving() -> None:
            await body_is_read.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            if not answered:
                has_left.set()
                reach.cancel()

        loop, watcher = asyncio.get_running_loop(), None

        def watch_the_caller() -> None:
            nonlocal watcher
            watcher = loop.create_task(notice_leaving())

        streams = EVENTS in Headers(scope=scope).get("accept", "")
        stream = _Stream(sent, scope["path"]) if streams else None
        watch = Watch(stream.show if stream else ignore, has_left.is_set)
        reach = anyio.CancelScope()

        async def run() -> None:
            nonlocal failure
            later = loop.call_later(_WATCH_AFTER_S, watch_the_caller)
            try:
                with reach, watched(watch):
                    await self.app(scope, received, stream.answer if stream else sent)
            except Exception as error:
                failure = error
            finally:
                later.cancel()
                if watcher:
                    watcher.cancel()

        await (stream.compute(run) if stream else run())
        if has_left.is_set() and (failure is None or isinstance(failure, Stopped)):
            raise ClientDisconnect
        if failure:
            if stream:
                await stream.fail()
            raise failure


class _Stream:
    """Sends steps as they come, and the answer of the route as the last event."""

    def __init__(self, send: Send, path: str) -> None:
        self._send, self._path = send, path
        self._loop = asyncio.get_running_loop()
        self._sending = anyio.Lock()
        self._started = False
        self._latest: Step | None = None
        self._news = anyio.Event()
        self._head: Message = {}
        self._body = bytearray()

    def show(self, step: Step) -> None:
        """Take a step from whatever thread works."""
        self._loop.call_soon_threadsafe(self._note, step)

    def _note(self, step: Step) -> None:
        self._latest = step
        self._news.set()

    async def compute(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work, and send its steps meanwhile."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            await work()
            tasks.cancel_scope.cancel()

    async def _run(self) -> None:
        """Send the latest step, again and again."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            assert self._latest is not None
            await self._event("progress", json.dumps(asdict(self._latest)).encode())
            await anyio.sleep(_MIN_INTERVAL_S)

    async def answer(self, message: Message) -> None:
        """Take what the route sends."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        self._body += message.get("body", b"")
        if message.get("more_body"):
            return
        fine = self._head["status"] == 200
        if fine or self._started:
            await self._event("done" if fine else "problem", bytes(self._body), last=True)
        else:
            await self._send(self._head)
            await self._send({"type": "http.response.body", "body": bytes(self._body)})

    async def fail(self) -> None:
        """Tell of a fault of ours, where events have been sent already."""
        if self._started:
            document = internal_document() | {"instance": self._path}
            await self._event("problem", json.dumps(document).encode(), last=True)

    async def _event(self, name: str, document: bytes, last: bool = False) -> None:
        async with self._sending:
            if not self._started:
                self._started = True
                headers = [
                    (b"content-type", EVENTS.encode()),
                    (b"cache-control", b"no-store"),
                    (b"x-accel-buffering", b"no"),  # a proxy shall pass events on at once
                ]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            body = event(name, document)
            await self._send({"type": "http.response.body", "body": body, "more_body": not last})
