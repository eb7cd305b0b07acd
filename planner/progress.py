"""How far long work is, for whoever waits for it, and a way to stop it.

Whoever waits opens `watched`; the work calls `step` between its parts and knows no reader by name:

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
    """So much of the work is done; best: what a search would answer if it ended here.

    Of a sizing, the rows that are known.
    """

    done: int
    total: int
    best: dict[str, Any] | None = None


class Stopped(Exception):
    """Nobody wants the answer any more."""


class NothingYet(Exception):
    """A search that was told to stop before it had found a plan that fits."""


def ignore(step: Step) -> None:
    """Discard a step: the default where nothing shows progress."""


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
    """Report progress.  Raises Stopped where the answer is no longer wanted."""
    watch = _watch.get()
    if watch.stopped():
        raise Stopped
    if watch.show is not ignore:
        watch.show(Step(done, total, best() if best else None))


class Parts:
    """Reports several searches as one: a fixed total, and the best result of all of them."""

    EACH = 1000  # steps of a part, however many it says itself

    def __init__(self, count: int, lowest: str) -> None:
        """lowest: of two bests the one with less of it is told."""
        self._watch, self._total, self._lowest = current(), count * self.EACH, lowest
        self._begun = 0
        self._best: dict[str, Any] | None = None

    @contextmanager
    def part(self) -> Iterator[None]:
        """What runs inside is the next of them."""
        shows = self._watch.show is not ignore
        with watched(replace(self._watch, show=self._show if shows else ignore)):
            yield
        self._begun += self.EACH
        self._watch.show(Step(self._begun, self._total, self._best))

    def _show(self, step: Step) -> None:
        found = [best for best in (self._best, step.best) if best is not None]
        self._best = min(found, key=lambda best: best[self._lowest], default=None)
        done = self._begun + self.EACH * step.done // max(step.total, 1)
        self._watch.show(Step(min(done, self._begun + self.EACH), self._total, self._best))
