"""Sites: what measured runs of a cluster teach."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel

from api.access.keys import SAFE
from api.dependencies import Files, Searches, share_sites
from api.log import audit
from api.negotiation import JSON
from api.openapi.schema import request_body
from api.openapi.site_schema import SITE_EXAMPLES
from api.problems import Refused, declare
from cost_models.calibrations import PROFILE_NAME
from planner.sites.learn_answer import LearnAnswer
from planner.sites.posted_runs import answer_of, posted_runs
from planner.uncertainty import site_storage as storage
from planner.uncertainty.site import Site
from planner.uncertainty.site_corrections import SiteAnswer


async def _shared(request: Request) -> AsyncIterator[None]:
    """What other servers learned before a call; what this one learned after it."""
    await share_sites(request)
    yield
    if request.method not in SAFE:
        await share_sites(request)


router = APIRouter(
    prefix="/sites", tags=["sites"], dependencies=[Depends(_shared, scope="function")]
)
Name = Annotated[str, Path(pattern=PROFILE_NAME)]


class SiteEntry(BaseModel):
    """A site; learned_at: its latest run; problem: what is wrong with a file of it."""

    name: str
    runs: int = 0
    learned_at: datetime | None = None
    calibrated_at: str | None = None
    problem: str | None = None


class SiteList(BaseModel):
    """All sites by name."""

    rows: tuple[SiteEntry, ...]


@router.get("")
def sites() -> SiteList:
    """The sites that are kept."""
    return SiteList(rows=tuple(_entry(name, one) for name, one in storage.everything()))


def _entry(name: str, site: Site | str) -> SiteEntry:
    if isinstance(site, str):
        return SiteEntry(name=name, problem=site)
    last = max((run.learned_at for run in site.runs), default=None)
    return SiteEntry(
        name=name, runs=len(site.runs), learned_at=last, calibrated_at=site.calibrated_at
    )


@router.get("/{name}", response_model=SiteAnswer, responses=declare(404, 422, 503))
async def site(name: Name, searches: Searches) -> Response:
    """What a site learned, what it cannot tell yet, and how far off it is."""
    _check(name)
    return Response(await searches.answer(answer_of, name), media_type=JSON)


@router.post(
    "/{name}/runs",
    response_model=LearnAnswer,
    responses=declare(400, 408, 413, 415, 422, 503),
    openapi_extra=request_body(SITE_EXAMPLES, "LessonRequest"),
)
async def learn(request: Request, name: Name, document: Files, searches: Searches) -> Response:
    """What a training log says; kept with the site only where `keep` is true."""
    audit(request, "learn", name)
    return Response(await searches.answer(posted_runs, document, name), media_type=JSON)


@router.delete("/{name}", status_code=204, responses=declare(404, 422))
def forget_site(request: Request, name: Name) -> None:
    """Forget a site with its calibration and all of its runs."""
    _check(name)
    audit(request, "forget", name)
    storage.forget(name)


def _check(name: str) -> None:
    """Raise Refused where there is no such site."""
    if name not in storage.names():
        raise Refused("not-found", "no site has this name")
