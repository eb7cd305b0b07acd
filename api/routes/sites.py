"""Sites: what measured runs of a cluster teach."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from api import work
from api.access.keys import SAFE
from api.dependencies import Brief, Searches, share_sites
from api.log import audit
from api.negotiation import JSON
from api.problems import Refused, declare
from api.routes import questions
from cost_models.calibrations import PROFILE_NAME
from planner.documents.service import SiteList
from planner.evidence.uncertainty.site_corrections import SiteAnswer
from planner.questions.registry import LEARN


async def _shared(request: Request) -> AsyncIterator[None]:
    """What other servers learned before a call; what this one learned after it."""
    await share_sites(request)
    if request.method == "POST":
        audit(request, "learn", request.path_params["name"])
    yield
    if request.method not in SAFE:
        await share_sites(request)


router = APIRouter(
    prefix="/sites", tags=["sites"], dependencies=[Depends(_shared, scope="function")]
)
_NONE = "no site has this name"
Name = Annotated[str, Path(pattern=PROFILE_NAME)]


@router.get("", response_model=SiteList, responses=declare(422, 503))
async def sites(brief: Brief) -> Response:
    """The sites that are kept."""
    return Response(await brief.run(work.site_list), media_type=JSON)


@router.get("/{name}", response_model=SiteAnswer, responses=declare(404, 422, 503))
async def site(name: Name, searches: Searches) -> Response:
    """What a site learned, what it cannot tell yet, and how far off it is."""
    found = await searches.run(work.site_answer, name)
    if found is None:
        raise Refused("not-found", _NONE)
    return Response(found, media_type=JSON)


@router.delete("/{name}", status_code=204, responses=declare(404, 422, 503))
async def forget_site(request: Request, name: Name, brief: Brief) -> None:
    """Forget a site with its calibration and all of its runs."""
    audit(request, "forget", name)
    if not await brief.run(work.forget_site, name):
        raise Refused("not-found", _NONE)


questions.add(router, LEARN)
