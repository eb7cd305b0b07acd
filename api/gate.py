"""A gate before the searches: so many at one time, and a 503 for whoever waits too long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, Semaphore, fail_after, to_thread

from api.problems import RETRY_AFTER_S, Refused

T = TypeVar("T")


class Gate:
    """Lets `places` pieces of work run in threads of their own; others wait up to `wait_s`."""

    def __init__(self, places: int, wait_s: float) -> None:
        self.places = Semaphore(places)
        self.threads = CapacityLimiter(places)
        self.wait_s = wait_s

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns.  Raises a 503 when no place is free in time."""
        try:
            with fail_after(self.wait_s):
                await self.places.acquire()
        except TimeoutError:
            raise Refused(
                "queue-full",
                f"all {self.threads.total_tokens} searches at one time are taken; try again",
                {"Retry-After": str(RETRY_AFTER_S)},
            ) from None
        try:
            return await to_thread.run_sync(work, limiter=self.threads)
        finally:
            self.places.release()
