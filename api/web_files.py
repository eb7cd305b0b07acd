"""The page: the files of web/, kept compressed, each at /web/, and index.html at /.

The OpenAPI document, from which the page makes its forms, is sent in the same way.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

WEB = Path(__file__).parent.parent / "web"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",
}
# A file of lib/ has its version in its path, so it never changes; others are asked for again.
_IMMUTABLE = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"
# The style element that Observable Plot puts into each chart, with the class name "plot".
_PLOT_STYLE = "'sha256-+TfQir1nvDucAdvE6XUQBt4ayUjpAWkbw2kCdSfekHM='"


@dataclass(frozen=True)
class Page:
    """A file as it is sent."""

    body: bytes
    compressed: bytes
    etag: str
    media_type: str
    cache_control: str


def install(app: FastAPI) -> None:
    """Serve the page."""
    app.add_api_route("/", _index, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/web/{path:path}", _file, methods=["GET", "HEAD"], include_in_schema=False)
    app.add_api_route("/openapi.json", _openapi, methods=["GET"], include_in_schema=False)


def content_security_policy() -> str:
    """What the page may load: its own files, its import map and the style of its charts."""
    return (
        f"default-src 'self'; script-src 'self' {_import_map_hash()}; "
        f"style-src 'self' {_PLOT_STYLE}; img-src 'self' data: blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


async def _index(request: Request) -> Response:
    response = send_page(request, "index.html")
    response.headers["Content-Security-Policy"] = content_security_policy()
    return response


async def _file(request: Request, path: str) -> Response:
    return send_page(request, path)


async def _openapi(request: Request) -> Response:
    app = request.app
    return send_json(request, "openapi", lambda: json.dumps(app.openapi(), separators=(",", ":")))


def send_json(request: Request, name: str, made: Callable[[], str]) -> Response:
    """A document that stays as it is while the service runs, made at its first call."""
    state, key = request.app.state, f"{name}_page"
    if not hasattr(state, key):
        setattr(state, key, _prepared(made().encode(), "application/json", _REVALIDATE))
    return _send(request, getattr(state, key))


def send_page(request: Request, path: str) -> Response:
    """One file of web/, compressed where the caller takes that; a 404 where there is none."""
    file = _paths().get(path)
    if file is None:
        raise HTTPException(404, f"no page /web/{quote(path)}")
    return _send(request, _page(file, file.stat().st_mtime_ns))


def _send(request: Request, page: Page) -> Response:
    headers = {"ETag": page.etag, "Cache-Control": page.cache_control, "Vary": "Accept-Encoding"}
    if page.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(page.compressed, headers=headers, media_type=page.media_type)
    return Response(page.body, headers=headers, media_type=page.media_type)


@cache
def _paths() -> dict[str, Path]:
    """Every file of the page by its path: nothing else can be asked for."""
    return {
        file.relative_to(WEB).as_posix(): file
        for file in sorted(WEB.rglob("*"))
        if file.is_file() and file.suffix in MEDIA_TYPES
    }


@cache
def _page(file: Path, changed_ns: int) -> Page:
    """A file as it is sent, read once for each of its versions."""
    cache_control = _IMMUTABLE if (WEB / "lib") in file.parents else _REVALIDATE
    return _prepared(file.read_bytes(), MEDIA_TYPES[file.suffix], cache_control)


def _prepared(body: bytes, media_type: str, cache_control: str) -> Page:
    return Page(
        body=body,
        compressed=gzip.compress(body, 9, mtime=0),
        etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        media_type=media_type,
        cache_control=cache_control,
    )


@cache
def _import_map_hash() -> str:
    """The import map is the one script that must stand in the document itself."""
    document = (WEB / "index.html").read_text(encoding="utf-8")
    match = re.search(r'<script type="importmap">(.*?)</script>', document, re.DOTALL)
    assert match is not None
    digest = hashlib.sha256(match[1].encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
