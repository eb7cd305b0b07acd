"""Calls of a service over HTTP: what is sent, what comes back, and what went wrong instead."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, TypedDict, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pydantic import BaseModel, TypeAdapter, ValidationError

from planner.client import refusals
from planner.client.events import Event, events
from planner.documents.problems import refuse, shown
from planner.progress import Step, current, ignore, step

T = TypeVar("T")
Document = Mapping[str, Any]
KEY, KEY_FILE = "PLANNER_API_KEY", "PLANNER_API_KEY_FILE"
_JSON, _EVENTS = "application/json", "text/event-stream"
_STORED_FIELDS = ("id", "cached", "links", "spent")  # metadata of a stored answer


class Budget(TypedDict, total=False):
    """Bounds of one question, within those of the service: seconds of a core, MiB, plans priced."""

    cpu_s: float | None
    memory_mib: int | None
    candidates: int | None


@dataclass(frozen=True)
class AnswerHeaders:
    """Metadata of a stored answer: its id, whether it was stored before, and links to follow.

    spent: the bound at which its search ended early, with what to limit; None: it did not.
    """

    id: str
    cached: bool
    links: Mapping[str, str]
    spent: Mapping[str, Any] | None


class _Problem(BaseModel):
    status: int


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: the key would go along."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Calls:
    """One service: its address, the key, and the calls that the operations are made of.

    kept: what the latest kept answer has besides the answer itself.  best: what the latest search
    with progress has found so far: `plan`, `iteration_time_s`, `peak_bytes`.
    """

    def __init__(self, url: str, key: str | None = None, timeout_s: float = 900.0) -> None:
        """url: such as http://localhost:8000.  timeout_s: of silence.  Raises RequestError."""
        self.url, self.timeout_s = _checked_url(url), timeout_s
        self.kept: AnswerHeaders | None = None
        self.best: Document | None = None
        self._key = None if key is None else _checked_key(key)
        self._opener = build_opener(_NoRedirect)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def ask(
        self,
        kind: type[T] | TypeAdapter[T],
        method: str,
        path: str,
        document: Document | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str | None] | None = None,
        streams: bool = False,
    ) -> T:
        """The answer of an operation.

        streams: its progress may come before it, for whoever watches (planner.progress).
        Raises RequestError as the planner itself does, ServiceError where there is no answer.
        """
        watched = streams and current().show is not ignore
        accept = f"{_EVENTS}, {_JSON}" if watched else _JSON
        sent = self._request(method, path, document, query, {"Accept": accept, **(headers or {})})
        with self._open(sent) as response:
            if response.headers.get_content_type() == _EVENTS:
                content = self._last_document(response)
            else:
                content = self._content(response)
        return self.read_answer(kind, content)

    def do(
        self, method: str, path: str, *, headers: Mapping[str, str | None] | None = None
    ) -> None:
        """An operation without an answer.  Raises as `ask` does."""
        with self._open(self._request(method, path, None, None, headers or {})):
            return

    def text(self, path: str) -> str:
        """A plain text.  Raises ServiceError."""
        with self._open(self._request("GET", path, None, None, {})) as response:
            return self._content(response).decode("utf-8", "replace")

    def follow(
        self, path: str, *, headers: Mapping[str, str | None] | None = None
    ) -> Iterator[Event]:
        """Events as they come.  Raises ServiceError."""
        sent = self._request("GET", path, None, None, {"Accept": _EVENTS, **(headers or {})})
        with self._open(sent) as response:
            yield from self._events(response)

    def _request(
        self,
        method: str,
        path: str,
        document: Document | None,
        query: Mapping[str, Any] | None,
        headers: Mapping[str, str | None],
    ) -> Request:
        parameters = {name: value for name, value in (query or {}).items() if value is not None}
        address = f"{self.url}{path}" + (f"?{urlencode(parameters)}" if parameters else "")
        body = None if document is None else json.dumps(document).encode()
        sent = Request(address, body, method=method)
        defaults = {"Accept-Encoding": "gzip", "User-Agent": "parallel-planner"}
        if body is not None:
            defaults["Content-Type"] = _JSON
        if self._key is not None:
            defaults["Authorization"] = f"Bearer {self._key}"
        for name, value in {**defaults, **headers}.items():
            if value is not None:
                sent.add_header(name, value)
        return sent

    def _open(self, sent: Request) -> HTTPResponse:
        try:
            response: HTTPResponse = self._opener.open(sent, timeout=self.timeout_s)
            return response
        except HTTPError as error:
            content, after = self._content(error), error.headers.get("Retry-After")
            raise self._refusal(error.code, content, after) from None
        except (OSError, HTTPException) as error:
            raise refusals.unreachable(self.url, error) from None

    def _content(self, response: HTTPResponse | HTTPError) -> bytes:
        try:
            content = response.read()
            packed = response.headers.get("Content-Encoding") == "gzip"
            return gzip.decompress(content) if packed else content
        except (OSError, EOFError, zlib.error, HTTPException) as error:
            raise refusals.unreachable(self.url, error) from None

    def _events(self, response: HTTPResponse) -> Iterator[Event]:
        try:
            yield from events(response)
        except (OSError, HTTPException) as error:
            raise refusals.unreachable(self.url, error) from None

    def _last_document(self, response: HTTPResponse) -> bytes:
        """The document of the last event of a stream; its progress is told to whoever watches."""
        for event in self._events(response):
            if event.name == "done":
                return event.data
            if event.name == "problem":
                raise self._refusal(self.read_answer(_Problem, event.data).status, event.data)
            latest = self.read_answer(Step, event.data)
            self.best = latest.best
            step(latest.done, latest.total)
            if current().enough():
                raise KeyboardInterrupt  # the service ends a search whose caller leaves
        raise refusals.unreachable(self.url, EOFError("the connection was closed"))

    def _refusal(self, status: int, content: bytes, after: str | None = None) -> Exception:
        keyed = self._key is not None
        return refusals.refusal(self.url, status, after, content, keyed, self._version)

    def read_answer(self, kind: type[T] | TypeAdapter[T], content: bytes) -> T:
        """The answer in a JSON document.  Raises ServiceError."""
        try:
            document = json.loads(content)
            if isinstance(document, dict) and document.keys() >= {*_STORED_FIELDS}:
                self.kept = AnswerHeaders(**{name: document.pop(name) for name in _STORED_FIELDS})
                content = json.dumps(document).encode()
            adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
            return adapter.validate_json(content)
        except (ValueError, ValidationError) as error:
            raise refusals.unreadable(self.url, error, self._version) from None

    def _version(self) -> str | None:
        """The version of the service; None where it does not say."""
        try:
            sent = Request(f"{self.url}/healthz")
            with self._opener.open(sent, timeout=min(self.timeout_s, 10.0)) as response:
                version = json.loads(response.read())["version"]
        except (OSError, HTTPException, ValueError, KeyError, TypeError):
            return None
        return str(shown(str(version)))


def part(text: str) -> str:
    """A part of a path."""
    return quote(text, safe="")


def key_of_environment() -> str | None:
    """The key in $PLANNER_API_KEY, or in the file that $PLANNER_API_KEY_FILE names."""
    if key := os.environ.get(KEY, "").strip():
        return key
    if not (path := os.environ.get(KEY_FILE)):
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise refuse("/key", "usage", f"{KEY_FILE}: cannot read {shown(path)!r}: {why}") from None


def _checked_key(key: str) -> str:
    if not key or not key.isascii() or not key.isprintable():
        detail = f"the key ({KEY}, {KEY_FILE}) must be printable ASCII on one line"
        raise refuse("/key", "usage", detail)
    return key


def _checked_url(url: str) -> str:
    """The address of a service without a / at its end.  Raises RequestError."""
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not url.isascii() or not url.isprintable() or " " in url:
        detail = f"must be such as http://localhost:8000, got {shown(url)!r}"
        raise refuse("/server", "bad_url", detail)
    if "@" in parts.netloc:
        detail = f"has a name or a key in it, which others can see: set {KEY} instead"
        raise refuse("/server", "bad_url", detail)
    if parts.query or parts.fragment:
        raise refuse("/server", "bad_url", "has a ? or a #, which no address of a service has")
    return url.rstrip("/")
