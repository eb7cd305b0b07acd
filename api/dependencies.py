"""FastAPI dependencies of the routes: the document in the body, and the pool that computes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from starlette.exceptions import HTTPException

from api.budget import Budget
from api.pool import Pool
from api.problems import Refused
from api.settings import Settings
from api.store_threads import in_store, store_of
from planner.documents.field_selection import Fields
from planner.documents.loading import MAX_STRING, parse_json
from planner.evidence.uncertainty.asker import CallerIdentity
from planner.running.store import Unavailable

T = TypeVar("T")
_NAMES_A_SITE = re.compile(rb'"(site|profile)"\s*:')


async def read_document(request: Request) -> Any:
    """The JSON value in the body, within the limit on its size."""
    return await _read_json(request, MAX_STRING)


async def read_files(request: Request) -> Any:
    """The JSON body of a call, in which a string may be a whole file."""
    return await _read_json(request, _settings(request).max_body_bytes)


async def share_sites(request: Request) -> None:
    """Synchronise profiles and sites with the other servers, and look up which the caller may read.

    If the store is not available, callers with names see none.
    """
    with suppress(Unavailable):
        await in_store(_share_sites, request)


def _share_sites(request: Request) -> None:
    store, key = store_of(request), request.state.key
    if _settings(request).tells_apart:
        hidden = frozenset[str]() if key.may("admin") else store.sites.hidden_from(key.name)
        request.state.asker = CallerIdentity(key.name, hidden)
    store.shared_files.sync()


async def _read_json(request: Request, longest: int) -> Any:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise HTTPException(415, "the body must be application/json")
    limit = _settings(request).max_body_bytes
    too_large = HTTPException(413, f"the body has more than {limit} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > limit):
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(_settings(request).max_body_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_large
    except TimeoutError:
        raise Refused("timeout", "the body did not arrive in time") from None
    if _NAMES_A_SITE.search(body):
        await share_sites(request)
    try:
        return parse_json(bytes(body), longest)
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}"
        raise HTTPException(400, f"the body is not JSON: {error.msg} ({position})") from None
    except UnicodeDecodeError:
        raise HTTPException(400, "the body is not UTF-8 text") from None


CpuSeconds = Annotated[
    float | None, Query(gt=0, le=86_400, description="seconds of a core; else the service's bound")
]
Memory = Annotated[int | None, Query(ge=64, le=1 << 22, description="MiB; else the service's")]
Count = Annotated[
    int | None, Query(ge=1, le=10**12, description="plans priced by a search; else the service's")
]


async def stated(
    request: Request, cpu_s: CpuSeconds = None, memory_mib: Memory = None, candidates: Count = None
) -> Budget:
    """The budget that a call states, within the bounds of the service."""
    limit = most(request)
    return Budget(
        cpu_s=min(cpu_s or limit.cpu_s, limit.cpu_s),
        memory_bytes=min((memory_mib or 0) << 20 or limit.memory_bytes, limit.memory_bytes),
        candidates=min(candidates or limit.candidates, limit.candidates),
        wall_s=limit.wall_s,
        build_models=limit.build_models,
    )


def most(request: Request) -> Budget:
    """The budget of a call that states none."""
    settings = _settings(request)
    return Budget(
        settings.max_question_cpu_s,
        settings.max_question_mib << 20,
        settings.max_question_plans,
        settings.max_question_s,
        bool(settings.build_models),
    )


async def wanted_fields(
    fields: Annotated[
        str,
        Query(
            max_length=2_000,
            description="parts of the answer, separated by commas, such as "
            "`estimate.iteration_time_s,estimate.memory.peak_bytes`; else all of it",
        ),
    ] = "",
) -> Fields:
    """The fields of the answer that a call names."""
    return tuple(name for name in fields.split(",") if name)


class CallPool:
    """A pool as one call uses it: for its caller, within its budget."""

    def __init__(self, request: Request, pool: str, budget: Budget) -> None:
        """pool: its name in the state of the application."""
        self._request, self._budget = request, budget
        self._pool: Pool = getattr(request.app.state, pool)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of `work`; `state.spent`: the limit it reached.  Raises as Pool.run does."""
        state = self._request.state
        budget = replace(self._budget, asker=state.asker)
        content, state.spent = await self._pool.run(state.caller, budget, work, *arguments)
        return content


def _call_pool(pool: str) -> Callable[..., Awaitable[CallPool]]:
    async def call_pool(request: Request, budget: Annotated[Budget, Depends(stated)]) -> CallPool:
        return CallPool(request, pool, budget)

    return call_pool


def check_owner(request: Request, owner: str | None) -> None:
    """Raise Refused if the caller may not change what another caller made."""
    if not request.state.key.may_change(owner):
        raise Refused("forbidden", "it belongs to another caller")


def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


Body = Annotated[Any, Depends(read_document)]
Files = Annotated[Any, Depends(read_files)]
Stated = Annotated[Budget, Depends(stated)]
WantedFields = Annotated[Fields, Depends(wanted_fields)]
# The pools: searches and short computations; estimates have one of their own (api/batches.py).
Searches = Annotated[CallPool, Depends(_call_pool("searches"))]
Brief = Annotated[CallPool, Depends(_call_pool("brief"))]
