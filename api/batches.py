"""Short questions computed several at a time: those of a caller that wait go to a process together.

One process is told once of all of them, and prices those that are alike as one array.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

from api.budget import Budget, OverBudget, TooLate
from api.fair_limit import FairLimit
from api.pool import Pool, Process, Worker
from api.pool_worker import Fault, serve
from api.spans import span

_MAX_BATCH = 16  # questions in a batch
_MIN_BATCH = 12  # questions that a batch waits for while others of the caller are on their way
_LINGER_S = 0.002  # time that it waits for them
_BATCH_CPU_S = 1.0  # CPU time of a batch; past it each question is computed alone


@dataclass
class _Pending:
    question: Any
    answer: asyncio.Future[Any]


@dataclass
class _Queue:
    """What one caller waits for within one budget; alone: what was too long for a batch.

    servers: tasks that have it computed; busy: those of them that wait for a process's answer.
    """

    waiting: deque[_Pending] = field(default_factory=deque)
    alone: deque[_Pending] = field(default_factory=deque)
    servers: int = 0
    busy: int = 0

    async def linger(self) -> None:
        """Wait for a few more: with answers to others on their way, more questions are as well.

        Whoever asks one question at a time waits for nobody.
        """
        if self.busy and not self.alone and len(self.waiting) < _MIN_BATCH:
            await asyncio.sleep(_LINGER_S)

    def taken(self) -> list[_Pending]:
        """The next batch: a fair part of all that wait; less those that nobody wants any more."""
        if self.alone:
            batch = [self.alone.popleft()]
        else:
            share = min(_MAX_BATCH, -(-len(self.waiting) // max(1, self.servers - self.busy)))
            batch = [self.waiting.popleft() for _ in range(share)]
        return [pending for pending in batch if not pending.answer.cancelled()]

    def fail(self, error: Exception) -> None:
        """Answer all that wait with this error."""
        for queue in (self.waiting, self.alone):
            while queue:
                _fail(queue.popleft(), error)


class Batches(Pool):
    """A pool for short questions of one kind.

    work: what a process computes a batch with: for each question ("answer", content) or ("error",
    error).
    """

    def __init__(
        self,
        limit: FairLimit,
        work: Callable[[list[Any]], list[tuple[str, Any]]],
        worker: Worker = serve,
    ) -> None:
        super().__init__(limit, worker)
        self._work = work
        self._queues: dict[tuple[str, Budget], _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """The number of questions that wait."""
        return sum(len(queue.waiting) + len(queue.alone) for queue in self._queues.values())

    async def ask(self, caller: str, budget: Budget, question: Any) -> Any:
        """The content of the answer.  Raises as Pool.run does."""
        loop = asyncio.get_running_loop()
        pending = _Pending(question, loop.create_future())
        queue = self._queues.setdefault((caller, budget), _Queue())
        queue.waiting.append(pending)
        if queue.servers < self.limit.places:
            queue.servers += 1
            # In a context of its own: it goes on after this call, for others.
            task = loop.create_task(self._serve(caller, budget, queue), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with span("compute", self._work.__name__):
            return await pending.answer

    async def _serve(self, caller: str, budget: Budget, queue: _Queue) -> None:
        """Compute what this caller waits for, until nothing does."""
        try:
            while queue.waiting or queue.alone:
                async with self.process(caller) as process:
                    await queue.linger()
                    if batch := queue.taken():
                        queue.busy += 1
                        try:
                            await self._compute(process, batch, budget, queue)
                        finally:
                            queue.busy -= 1
        except Exception as error:  # no place, or no process
            queue.fail(error)
        finally:
            queue.servers -= 1
            if not queue.servers:
                self._queues.pop((caller, budget), None)

    async def _compute(
        self, process: Process, batch: list[_Pending], budget: Budget, queue: _Queue
    ) -> None:
        if len(batch) > 1:
            budget = replace(budget, cpu_s=min(budget.cpu_s, _BATCH_CPU_S))
        questions = [pending.question for pending in batch]
        running = asyncio.ensure_future(process.run(self._work, (questions,), budget))

        def stop(_: object) -> None:
            if all(pending.answer.cancelled() for pending in batch):
                running.cancel()

        for pending in batch:
            pending.answer.add_done_callback(stop)
        await asyncio.wait([running])
        if running.cancelled():
            return
        error = running.exception()
        if error is None:
            for pending, (kind, content) in zip(batch, running.result().content, strict=True):
                _fail(pending, content) if kind == "error" else _answer(pending, content)
        elif len(batch) > 1 and isinstance(error, OverBudget | TooLate | Fault):
            queue.alone += batch
        else:
            for pending in batch:
                _fail(pending, error)


def _answer(pending: _Pending, content: Any) -> None:
    if not pending.answer.done():
        pending.answer.set_result(content)


def _fail(pending: _Pending, error: BaseException) -> None:
    if not pending.answer.done():
        pending.answer.set_exception(error)
