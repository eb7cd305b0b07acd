"""Who may do what with a site, where callers have names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import Request

from api.problems import Refused
from api.settings import Settings
from api.store_threads import in_store, store_of
from planner.documents.service import Right, SiteRights
from planner.evidence.uncertainty import site_storage as storage

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
