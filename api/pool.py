"""Processes that compute, so that the one that serves always has time for the next call."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any, TypeVar

from anyio import (
    CancelScope,
    Semaphore,
    fail_after,
    get_cancelled_exc_class,
    move_on_after,
    to_thread,
    wait_readable,
)
from pydantic import BaseModel

from api import work as children
from api.problems import RETRY_AFTER_S, Refused
from planner.progress import current, ignore

T = TypeVar("T")

# Forked from one process that has imported everything and runs nothing else.
_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload([children.__name__])
_STOP_S = 10.0  # until a process that does not stop is killed


class Pool:
    """Runs up to `places` pieces of work at a time, each in a process; others wait up to `wait_s`.

    Processes start when they are needed, and stay.  patience, warm: see api.work.serve.
    """

    def __init__(self, places: int, wait_s: float, patience: int = 0, warm: bool = False) -> None:
        self.places, self.wait_s = places, wait_s
        self._free = Semaphore(places)
        self._start = patience, warm
        self._idle: list[_Process] = []

    async def answer(self, find: Callable[..., BaseModel], *asked: Any) -> bytes:
        """What `find` finds, as JSON; see run."""
        return await self.run(children.dumped, find, *asked)

    async def run(self, work: Callable[..., T], *asked: Any) -> T:
        """What `work` returns: a function with a name of its own, as it is run elsewhere.

        Its steps are shown to whoever watches here; it is stopped when this is cancelled.
        Raises what it raises, and Refused where no place is free in time.
        """
        try:
            with fail_after(self.wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise Refused(
                "queue-full",
                f"all {self.places} places are taken; try again",
                {"Retry-After": str(RETRY_AFTER_S)},
            ) from None
        try:
            process = self._living() or await self._started()
            try:
                return await process.run(work, asked)
            finally:
                if process.alive:
                    self._idle.append(process)
        finally:
            self._free.release()

    async def start(self) -> None:
        """Have a process ready for the first work."""
        self._idle.append(await self._started())

    async def _started(self) -> _Process:
        return await to_thread.run_sync(_Process, *self._start)

    def _living(self) -> _Process | None:
        """One that waits for work; those that died meanwhile are done with."""
        while self._idle:
            process = self._idle.pop()
            if process.process.is_alive():
                return process
            process.end()
        return None

    def close(self) -> None:
        """End all processes; none works any more."""
        while self._idle:
            self._idle.pop().end()


class _Process:
    """One process and the connection to it."""

    def __init__(self, patience: int, warm: bool) -> None:
        self.connection, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(
            target=children.serve, args=(theirs, patience, warm), daemon=True
        )
        self.process.start()
        theirs.close()
        self.alive = True

    async def run(self, work: Callable[..., T], asked: tuple[Any, ...]) -> T:
        """What the work returns, from the other process."""
        watch = current()
        try:
            self.connection.send((work, asked, watch.show is not ignore))
            while True:
                kind, content = await self._received()
                if kind != "step":
                    break
                watch.show(content)
        except get_cancelled_exc_class():
            with CancelScope(shield=True):
                await self._stop()
            raise
        except (EOFError, OSError):
            self.end()
            raise children.Fault("a process that computes died") from None
        if kind == "error":
            raise content
        return content  # type: ignore[no-any-return]

    async def _received(self) -> tuple[str, Any]:
        await wait_readable(self.connection.fileno())
        return self.connection.recv()  # type: ignore[no-any-return]

    async def _stop(self) -> None:
        """Tell it to stop, and wait until it has."""
        try:
            self.connection.send(None)
            with move_on_after(_STOP_S) as patience:
                while (await self._received())[0] == "step":
                    pass
            if patience.cancelled_caught:
                self.end()
        except (EOFError, OSError):
            self.end()

    def end(self) -> None:
        """End it, whatever it does."""
        self.alive = False
        self.connection.close()
        self.process.kill()
        self.process.join()
