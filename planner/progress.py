"""How far long work is, for whoever waits for it, and a way to stop it.

Whoever waits opens `watched`; the work says `step` between its parts and knows nobody by name:

    >>> seen = []
    >>> with watched(Watch(show=seen.append)):
    ...     step(1, 3)
    >>> seen
    [Step(done=1, total=3, best=None)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Step:
    """So much of the work is done; best: what a search would answer if it ended here."""

    done: int
    total: int
    best: dict[str, Any] | None = None


class Stopped(Exception):
    """Nobody wants the answer any more."""


def ignore(step: Step) -> None:
    """Show it to nobody."""


@dataclass(frozen=True)
class Watch:
    """show: is told each step.  stopped: whether the work shall end; asked at each step.

    enough: whether a search shall go no further and answer with what it has.
    """

    show: Callable[[Step], None] = ignore
    stopped: Callable[[], bool] = lambda: False
    enough: Callable[[], bool] = lambda: False


_watch: ContextVar[Watch] = ContextVar("watch", default=Watch())  # noqa: B039


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """What runs inside tells this watch of its steps."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def current() -> Watch:
    """Whoever watches what runs here."""
    return _watch.get()


@contextmanager
def within_a_step() -> Iterator[None]:
    """What runs inside is a part of a larger step: it shows nothing, and can still be stopped."""
    with watched(replace(_watch.get(), show=ignore)):
        yield


def step(done: int, total: int, best: Callable[[], dict[str, Any] | None] | None = None) -> None:
    """Say how far the work is.  Raises Stopped where its answer is no longer wanted."""
    watch = _watch.get()
    if watch.stopped():
        raise Stopped
    if watch.show is not ignore:
        watch.show(Step(done, total, best() if best else None))
