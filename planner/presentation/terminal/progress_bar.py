"""Progress on a terminal: a bar on standard error, once the work takes longer than a moment."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from planner.progress import NothingYet, Step, Watch, watched

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 1.0
T = TypeVar("T")


def _progress(label: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (label, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def counted(
    label: str, items: Iterable[T], total: int, done: int = 0, patience_s: float = PATIENCE_S
) -> Iterator[T]:
    """The items, with a bar of how many have come; done: how many there were before."""
    progress = _progress(label)
    task = progress.add_task("", total=total, completed=done)
    began = time.monotonic()
    if not patience_s:
        progress.start()
    try:
        for item in items:
            progress.advance(task)
            if not progress.live.is_started and time.monotonic() - began > patience_s:
                progress.start()
            yield item
    finally:
        progress.stop()


@contextmanager
def bar(label: str, *, best: bool = True) -> Iterator[None]:
    """A bar for the work inside; nothing where no terminal is watching.

    best: Ctrl-C ends a search with the best that it has found; a second one, or one before there is
    any, ends the command.  Otherwise it raises KeyboardInterrupt at once, as everywhere.
    """
    progress = _progress(label)
    task = progress.add_task("", total=None)
    began = time.monotonic()

    def show(step: Step) -> None:
        progress.update(task, completed=step.done, total=step.total or None)
        if not progress.live.is_started and time.monotonic() - began > PATIENCE_S:
            progress.start()

    signals: list[int] = []

    def interrupted(number: int, frame: object) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)

    # Only the main thread may; in others there is nobody to press it.
    handles = best and threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGINT, interrupted) if handles else None
    try:
        with watched(Watch(show, enough=lambda: bool(signals))):
            yield
    except NothingYet:
        raise KeyboardInterrupt from None
    finally:
        if handles:
            signal.signal(signal.SIGINT, previous)
        progress.stop()
