"""Sites: what measured runs of a cluster teach, and whose they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from api import work
from api.access.keys import SAFE
from api.access.sites import NONE, check_right, exists, site_to_teach
from api.dependencies import Body, Brief, Searches, share_sites
from api.log import audit
from api.negotiation import JSON
from api.openapi.schema import request_body
from api.problems import Refused, declare
from api.routes import questions
from api.settings import Settings
from api.store_threads import in_store, store_of
from cost_models.calibrations import PROFILE_NAME
from planner.documents.service import SharedSpec, SiteList, SiteRights
from planner.documents.typed_values import plain_object, validate
from planner.evidence.uncertainty.site_corrections import SiteAnswer
from planner.questions.examples import examples
from planner.questions.registry import LEARN


async def _shared(request: Request) -> AsyncIterator[None]:
    """What other servers learned before a call; what this one learned after it."""
    await share_sites(request)
    async with AsyncExitStack() as teaching:
        if request.method == "POST":
            name = request.path_params["name"]
            await teaching.enter_async_context(site_to_teach(request, name))
            audit(request, "learn", name)
        yield
    if request.method not in SAFE:
        await share_sites(request)


router = APIRouter(
    prefix="/sites", tags=["sites"], dependencies=[Depends(_shared, scope="function")]
)
Name = Annotated[str, Path(pattern=PROFILE_NAME)]
Run = Annotated[str, Path(pattern=r"^[0-9a-f]{1,12}$")]


@router.get("", response_model=SiteList, responses=declare(422, 503, 504))
async def sites(request: Request, brief: Brief) -> Response:
    """The sites that the caller may read."""
    settings: Settings = request.app.state.settings
    rights = await in_store(store_of(request).sites.all) if settings.tells_apart else {}
    return Response(await brief.run(work.site_list, rights), media_type=JSON)


@router.get("/{name}", response_model=SiteAnswer, responses=declare(404, 422, 503, 504))
async def site(name: Name, searches: Searches) -> Response:
    """What a site learned, what it cannot tell yet, and how far off it is."""
    content = await searches.run(work.site_answer, name)
    if content is None:
        raise Refused("not-found", NONE)
    return Response(content, media_type=JSON)


@router.delete("/{name}", status_code=204, responses=declare(403, 404, 422, 503, 504))
async def forget_site(request: Request, name: Name, brief: Brief) -> None:
    """Forget a site with its calibration and all of its runs."""
    await check_right(request, name, "own")
    audit(request, "forget", name)
    known = await brief.run(work.forget_site, name)
    await in_store(store_of(request).sites.forget, name)
    if not known:
        raise Refused("not-found", NONE)


@router.delete("/{name}/runs/{run}", status_code=204, responses=declare(403, 404, 422, 503, 504))
async def forget_run(request: Request, name: Name, run: Run, brief: Brief) -> None:
    """Forget one run of a site, by its id or the start of it."""
    await check_right(request, name, "own")
    audit(request, "forget", f"{name}/{run}")
    await brief.run(work.forget_run, name, run)


@router.put(
    "/{name}/rights",
    responses=declare(400, 403, 404, 408, 413, 415, 422, 503),
    openapi_extra=request_body(examples("site_rights"), "SharedSpec"),
)
async def share_site(request: Request, name: Name, document: Body) -> SiteRights:
    """Share a site with the callers that the document names, and with no others."""
    settings: Settings = request.app.state.settings
    if not settings.tells_apart:
        raise Refused("forbidden", "without keys all callers are one, and have every right")
    await check_right(request, name, "own")
    spec = validate("", plain_object(document), SharedSpec)
    if not await exists(name):
        raise Refused("not-found", NONE)
    audit(request, "share", name)
    sites = store_of(request).sites
    await in_store(sites.claim, name, request.state.key.name)
    await in_store(sites.share, name, spec.shared)
    rights = await in_store(sites.get, name)
    assert rights is not None
    return rights


questions.add(router, LEARN)
