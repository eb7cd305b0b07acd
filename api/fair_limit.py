"""The limit on concurrent work: the next free place goes to the caller that holds the fewest."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import anyio

from api.problems import RETRY_AFTER_S, Refused


class FairLimit:
    """A number of places for concurrent work; a caller waits up to `wait_s` for one.

    shared: callers are told apart, and no caller gets all places, so that one is left for others.
    """

    def __init__(self, places: int, wait_s: float, shared: bool) -> None:
        self.places, self.wait_s = places, wait_s
        self._max_per_caller = max(1, places - 1) if shared else places
        self._taken: Counter[str] = Counter()
        self._waiting: dict[int, tuple[str, anyio.Event]] = {}
        self._numbers = count()

    @property
    def taken(self) -> int:
        """The number of places in use."""
        return self._taken.total()

    @property
    def waiting(self) -> int:
        """The number of callers that wait for a place."""
        return len(self._waiting)

    @asynccontextmanager
    async def place(self, caller: str) -> AsyncIterator[None]:
        """Hold a place for this caller.  Raises Refused if none becomes free in time."""
        number, turn = next(self._numbers), anyio.Event()
        self._waiting[number] = caller, turn
        self._assign()
        try:
            if not turn.is_set():
                with anyio.fail_after(self.wait_s):
                    await turn.wait()
        except BaseException as error:
            self._waiting.pop(number, None)
            if turn.is_set():  # the place came just after the timeout
                self._release(caller)
            if not isinstance(error, TimeoutError):
                raise
            detail = f"all {self.places} places are in use; try again"
            raise Refused("queue-full", detail, {"Retry-After": str(RETRY_AFTER_S)}) from None
        try:
            yield
        finally:
            self._release(caller)

    def _release(self, caller: str) -> None:
        self._taken[caller] -= 1
        self._taken += Counter()  # drop callers that hold none
        self._assign()

    def _assign(self) -> None:
        """Assign free places to waiting callers, first to those that hold the fewest."""
        while self.taken < self.places:
            ready = [
                (self._taken[caller], number)
                for number, (caller, _) in self._waiting.items()
                if self._taken[caller] < self._max_per_caller
            ]
            if not ready:
                return
            caller, turn = self._waiting.pop(min(ready)[1])
            self._taken[caller] += 1
            turn.set()
