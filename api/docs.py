"""Pages for people who call the service: its description to try out, guides, kinds of problems."""

from __future__ import annotations

import re
from html import escape
from string import Template

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from api.guides import guide_html, guides, pictures
from api.problem_types import TYPES, ProblemType
from api.problems import Refused
from api.web_files import send_page
from cost_models.package_files import text

_PAGE = Template(text("api", "page.html"))


def install(app: FastAPI) -> None:
    """Serve /docs with the guides below it, /problems and a page of each problem."""
    for path, page in (
        ("/docs", _docs), ("/docs/guides", _guides), ("/docs/{name:path}.svg", _picture),
        ("/docs/{name:path}", _guide), ("/problems", _problems), ("/problems/{slug}", _problem),
    ):  # fmt: skip
        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/problems/{slug}/{kind}", _kind, methods=["GET"], include_in_schema=False)


async def _docs(request: Request) -> Response:
    return send_page(request, "docs.html")


async def _guides() -> Response:
    return await _guide("index")


async def _guide(name: str) -> Response:
    if name not in guides():
        raise Refused("not-found", "no such guide; GET /docs/guides lists them")
    return _page(guides()[name], "../" * (name.count("/") + 1), guide_html(name), "guide")


async def _picture(name: str) -> Response:
    if name not in pictures():
        raise Refused("not-found", "no such picture; GET /docs/guides lists the guides")
    return Response(pictures()[name], media_type="image/svg+xml")


async def _problems() -> Response:
    entries = "\n".join(
        f'<dt><a href="problems/{slug}">{slug}</a> · {kind.status}</dt>'
        f"<dd>{escape(kind.title)}</dd>"
        for slug, kind in TYPES.items()
    )
    about = "Errors that the service returns (RFC 9457), by type."
    return _page("Problems", "", f'<h1>Problems</h1><p class="muted">{about}</p><dl>{entries}</dl>')


async def _problem(slug: str) -> Response:
    kind = _type(slug)
    return _page(kind.title, "../", _problem_page(slug, kind))


async def _kind(slug: str, kind: str) -> Response:
    """A problem of several kinds has one page."""
    _type(slug)
    return RedirectResponse(f"../{slug}")


def _type(slug: str) -> ProblemType:
    kind = TYPES.get(slug)
    if kind is None:
        raise Refused("not-found", "no such problem; GET /problems lists them")
    return kind


def _problem_page(slug: str, kind: ProblemType) -> str:
    return (
        f"<h1>{escape(kind.title)}</h1>"
        f'<p class="muted"><code>/problems/{slug}</code> · status {kind.status}</p>'
        f"<p>{_text(kind.meaning)}</p><p>{_text(kind.remedy)}</p>"
    )


def _text(markdown: str) -> str:
    """A paragraph; what stands between backticks is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(markdown))


def _page(title: str, root: str, body: str, kind: str = "problem") -> Response:
    return HTMLResponse(
        _PAGE.substitute(title=escape(title), root=root or "./", body=body, kind=kind)
    )
