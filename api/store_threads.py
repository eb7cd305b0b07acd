"""Calls of the store in threads of their own: a slow database delays only the calls that use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar
from fastapi import Request

from planner.running.store import Store, Unavailable

P = ParamSpec("P")
R = TypeVar("R")
_THREADS = 16  # twice the connections that there are
_FOLLOWERS_THREADS = 4
_ANSWER_S = 15.0
_limiter: RunVar[CapacityLimiter] = RunVar("store threads")
_followers: RunVar[CapacityLimiter] = RunVar("store threads of followers")


def store_of(request: Request) -> Store:
    """The store of the service that a call came to."""
    store: Store = request.app.state.store
    return store


async def in_store(call: Callable[..., R], *asked: object) -> R:
    """The result of a call of the store.  Raises Unavailable if it takes too long."""
    return await _run(_of(_limiter, _THREADS), call, *asked)


async def while_following(call: Callable[..., R], *asked: object) -> R:
    """The same for who asks again and again, and may be hundreds: nobody else waits for them."""
    return await _run(_of(_followers, _FOLLOWERS_THREADS), call, *asked)


def _of(kept: RunVar[CapacityLimiter], threads: int) -> CapacityLimiter:
    try:
        return kept.get()
    except LookupError:
        kept.set(limiter := CapacityLimiter(threads))
        return limiter


async def _run(limiter: CapacityLimiter, call: Callable[..., R], *asked: object) -> R:
    try:
        with fail_after(_ANSWER_S):
            return await to_thread.run_sync(call, *asked, abandon_on_cancel=True, limiter=limiter)
    except TimeoutError:
        raise Unavailable("the database did not answer in time") from None


def storing(route: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """A route, or what one depends on, that asks the store."""

    @wraps(route)
    async def asked(*args: P.args, **named: P.kwargs) -> R:
        return await in_store(partial(route, *args, **named))

    return asked
