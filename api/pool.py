"""Pools of worker processes, so that the process that serves HTTP never computes itself."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any, Generic, NamedTuple, TypeVar

from anyio import CancelScope, get_cancelled_exc_class, move_on_after, to_thread, wait_readable

from api.budget import Bounds, Budget, OverBudget, Spent, TooLate, cpu_s, process_use
from api.fair_limit import FairLimit
from api.fork_server import CONTEXT
from api.pool_worker import Fault, serve
from api.spans import span
from planner.progress import current
from planner.questions.question import Question

T = TypeVar("T")
Worker = Callable[[Connection, int, bool], None]

_STOP_S = 0.5  # time until a process that does not stop is killed
_POLL_S = 0.2  # time between two looks at what a process uses


class Answered(NamedTuple, Generic[T]):
    """What work returned; spent: the bound at which a search ended early."""

    content: T
    spent: Spent | None = None


def _question(arguments: tuple[Any, ...]) -> list[str]:
    return [argument.name for argument in arguments[:1] if isinstance(argument, Question)]


class Pool:
    """Runs each piece of work in a process of its own, as many at a time as there are places.

    Processes start when they are needed, and stay.  worker: what each of them runs; nice, warm: see
    api.pool_worker.serve.
    """

    def __init__(
        self, limit: FairLimit, worker: Worker = serve, nice: int = 0, warm: bool = False
    ) -> None:
        self.limit = limit
        self._start = worker, nice, warm
        self._idle: list[Process] = []

    async def run(
        self, caller: str, budget: Budget, work: Callable[..., T], *arguments: Any
    ) -> Answered[T]:
        """What `work` returns: a function with a name of its own, as it is run elsewhere.

        Its steps are shown to whoever watches here; it is stopped when this is cancelled.
        Raises what it raises, Refused where no place is free in time, OverBudget and TooLate.
        """
        async with self.process(caller) as process:
            name = " ".join([f"{work.__module__}.{work.__name__}", *_question(arguments)])
            with span("compute", name):
                return await process.run(work, arguments, budget)

    @property
    def waiting(self) -> int:
        """The number of callers that wait."""
        return self.limit.waiting

    @asynccontextmanager
    async def process(self, caller: str) -> AsyncIterator[Process]:
        """A process for this caller alone.  Raises Refused where no place is free in time."""
        async with AsyncExitStack() as stack:
            with span("queue"):
                await stack.enter_async_context(self.limit.place(caller))
            process = self._idle_process() or await self._started()
            try:
                yield process
            finally:
                if process.alive:
                    self._idle.append(process)

    async def start(self) -> None:
        """Start a process before the first work arrives."""
        self._idle.append(await self._started())

    async def _started(self) -> Process:
        return await to_thread.run_sync(Process, *self._start)

    def _idle_process(self) -> Process | None:
        """An idle process; those that have died are removed."""
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


class Process:
    """One process and the connection to it."""

    def __init__(self, worker: Worker, nice: int, warm: bool) -> None:
        self.connection, worker_end = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=worker, args=(worker_end, nice, warm), daemon=True)
        self.process.start()
        worker_end.close()
        assert self.process.pid is not None
        self.pid, self.alive = self.process.pid, True

    async def run(
        self, work: Callable[..., T], arguments: tuple[Any, ...], budget: Budget
    ) -> Answered[T]:
        """What the work returns, from the other process.  Raises OverBudget and TooLate."""
        watch, best = current(), None
        bounds, looked = Bounds(budget, cpu_s(self.pid)), time.monotonic()
        too_late = looked + budget.wall_s
        try:
            self.connection.send((work, arguments, budget))
            while True:
                message = None
                with move_on_after(_POLL_S):
                    message = await self._receive()
                if message is not None:
                    if message[0] != "step":
                        break
                    best = message[1].best or best
                    watch.show(message[1])
                if time.monotonic() - looked >= _POLL_S:
                    looked = time.monotonic()
                    if looked > too_late:
                        self.end()
                        raise TooLate((_question(arguments) or [work.__name__])[0], budget.wall_s)
                    if spent := bounds.spent(*process_use(self.pid)):
                        self.end()
                        raise OverBudget(spent, best)
        except get_cancelled_exc_class():
            with CancelScope(shield=True):
                await self._stop()
            raise
        except (EOFError, OSError):
            self.end()
            raise Fault("a worker process died") from None
        kind, content = message
        if kind == "error":
            raise content
        return Answered(*content)

    async def _receive(self) -> tuple[str, Any]:
        await wait_readable(self.connection.fileno())
        return self.connection.recv()  # type: ignore[no-any-return]

    async def _stop(self) -> None:
        """Ask it to stop, and wait until it has stopped."""
        try:
            self.connection.send(None)
            with move_on_after(_STOP_S) as stopping:
                while (await self._receive())[0] == "step":
                    pass
            if stopping.cancelled_caught:
                self.end()
        except (EOFError, OSError):
            self.end()

    def end(self) -> None:
        """Kill it, whatever it is doing."""
        self.alive = False
        self.connection.close()
        self.process.kill()
        self.process.join()
