"""Calls of the store in threads of their own: a slow database delays only the calls that use it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from math import inf
from typing import ParamSpec, TypeVar

from anyio import CancelScope, CapacityLimiter, fail_after, to_thread
from anyio.lowlevel import RunVar
from fastapi import Request

from planner.running.store import Store, Unavailable

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_THREADS = 16  # twice the connections that there are
_FOLLOWERS_THREADS = 4
_ANSWER_S = 15.0
_LAST_ANSWER_S = 3.0  # for the sign of life of a database whose service is stopped


@dataclass
class _Waiting:
    """Calls that wait for the database: how long each may, and all of now."""

    answer_s: float = _ANSWER_S
    scopes: set[CancelScope] = field(default_factory=set)

    def give_up(self) -> None:
        """Have no call wait any more."""
        self.answer_s = 0.0
        for scope in self.scopes:
            scope.deadline = -inf


_calls: RunVar[_Waiting] = RunVar("calls that wait for the database")
_limiter: RunVar[CapacityLimiter] = RunVar("store threads")
_followers: RunVar[CapacityLimiter] = RunVar("store threads of followers")


def store_of(request: Request) -> Store:
    """The store of the service that a call came to."""
    store: Store = request.app.state.store
    return store


async def in_store(call: Callable[..., R], *args: object) -> R:
    """The result of a call of the store.  Raises Unavailable if it takes too long."""
    return await _run(_lazy(_limiter, lambda: CapacityLimiter(_THREADS)), call, *args)


async def while_following(call: Callable[..., R], *args: object) -> R:
    """As `in_store`, for callers that ask again and again: nobody else waits for these."""
    return await _run(_lazy(_followers, lambda: CapacityLimiter(_FOLLOWERS_THREADS)), call, *args)


async def answers_at_the_end(store: Store) -> bool:
    """Whether the database still answers a service that is stopped; else no call waits for it."""
    if has_given_up():
        return False
    try:
        with fail_after(_LAST_ANSWER_S):
            await to_thread.run_sync(
                store.database.ping, abandon_on_cancel=True, limiter=CapacityLimiter(1)
            )
    except (TimeoutError, Unavailable):
        _lazy(_calls, _Waiting).give_up()
        return False
    return True


def has_given_up() -> bool:
    """Whether the service no longer waits for its database."""
    return not _lazy(_calls, _Waiting).answer_s


def _lazy(variable: RunVar[T], make: Callable[[], T]) -> T:
    """What the event loop keeps, made where it is needed first."""
    try:
        return variable.get()
    except LookupError:
        variable.set(new := make())
        return new


async def _run(limiter: CapacityLimiter, call: Callable[..., R], *args: object) -> R:
    calls = _lazy(_calls, _Waiting)
    try:
        with fail_after(calls.answer_s) as scope:
            calls.scopes.add(scope)
            try:
                return await to_thread.run_sync(
                    call, *args, abandon_on_cancel=True, limiter=limiter
                )
            finally:
                calls.scopes.discard(scope)
    except TimeoutError:
        raise Unavailable("the database did not answer in time") from None


def storing(route: Callable[P, R]) -> Callable[P, Awaitable[R]]:
    """A route, or what one depends on, that asks the store."""

    @wraps(route)
    async def stored_call(*args: P.args, **named: P.kwargs) -> R:
        return await in_store(partial(route, *args, **named))

    return stored_call
