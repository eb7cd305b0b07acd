"""Who may do what with a site, where callers have names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from anyio import to_thread
from fastapi import Request

from api.problems import Refused
from api.settings import Settings
from api.store_threads import in_store, store_of
from cost_models.profiles import profiles
from planner.documents.service import Right, SiteRights
from planner.evidence.uncertainty import site_storage as storage
from planner.running.jobs.documents import taught_by
from planner.running.store.jobs import Job

NONE = "no site has this name"


async def check_right(request: Request, name: str, right: Right) -> None:
    """Raise Refused unless the caller has this right to a site; Unavailable without a store."""
    key = request.state.key
    if key.may("admin"):
        return
    rights = await in_store(store_of(request).sites.get, name)
    rights = rights or SiteRights(name=name, owner=None, shared={"*": "read"})
    if not rights.allow(key.name, "read"):
        raise Refused("not-found", NONE)
    if not rights.allow(key.name, right):
        whose = f"belongs to {rights.owner}" if rights.owner else "has no owner"
        raise Refused("forbidden", f"site {name} {whose}: you have no right to {_DOING[right]}")


def visible_jobs(request: Request) -> Callable[[Job], bool]:
    """Which jobs the caller may see: of others none that names a site which it may not read.

    Asks the store.
    """
    settings, key = request.app.state.settings, request.state.key
    if not settings.tells_apart or key.may("admin"):
        return lambda job: True
    rights = store_of(request).sites.all()

    def readable(name: str) -> bool:
        own = rights.get(name)
        return storage.exists(name) if own is None else own.allow(key.name, "read")

    return lambda job: job.owner == key.name or all(map(readable, named_sites(job)))


def named_sites(job: Job) -> set[str]:
    """The sites that a job asks of or teaches, those that are axes of a sweep too."""
    found = {taught_by(job.kind, job.request)}
    left: list[tuple[str, Any]] = [("", job.request)]
    for field, part in left:
        if isinstance(part, dict):
            left += [(name.rpartition(".")[2], value) for name, value in part.items()]
        elif isinstance(part, list):
            left += [(field, value) for value in part]
        elif isinstance(part, str) and field in ("site", "profile"):
            found.add(part.partition("@")[0])
    return {name for name in found if name and name not in profiles()}


@asynccontextmanager
async def site_to_teach(request: Request, name: str) -> AsyncIterator[None]:
    """What runs inside may teach a site; one that it makes is the caller's.  Raises Refused."""
    new = await claim_or_check(request, name)
    try:
        yield
    finally:
        if new and await exists(name):
            await _claim(request, name)  # another call that failed may have given it up
        elif new:
            await in_store(store_of(request).sites.forget, name)


async def claim_or_check(request: Request, name: str) -> bool:
    """Make a site that is not there yet the caller's; whether it was not.

    Raises Refused unless the caller may teach it.
    """
    settings: Settings = request.app.state.settings
    new = settings.tells_apart and not await exists(name)
    if new:
        await _claim(request, name)
    await check_right(request, name, "teach")
    return new


async def _claim(request: Request, name: str) -> None:
    await in_store(store_of(request).sites.claim, name, request.state.key.name)


async def exists(name: str) -> bool:
    """Whether there is a site of this name, whoever may read it."""
    return await to_thread.run_sync(storage.exists, name)


_DOING: dict[Right, str] = {"read": "read it", "teach": "teach it", "own": "share or forget it"}
