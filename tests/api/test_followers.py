"""Hundreds of followers of jobs hold up nobody else."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import anyio

from api.jobs import events
from api.store_threads import in_store


class SlowJobs:
    """The table of jobs over a database that takes a third of a second to answer."""

    def events(self, id: str, after: int) -> list[Any]:
        """None yet."""
        time.sleep(0.3)
        return []

    def get(self, id: str) -> Any:
        """A job that runs."""
        time.sleep(0.3)
        return SimpleNamespace(state="running")


def test_others_do_not_wait_behind_followers() -> None:
    state = SimpleNamespace(stopping=False)
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state))
    store: Any = SimpleNamespace(jobs=SlowJobs())

    async def follow() -> None:
        async for _ in events(request, store, "sw_1", 0):
            pass

    async def crowd() -> float:
        async with anyio.create_task_group() as tasks:
            for _ in range(200):
                tasks.start_soon(follow)
            await anyio.sleep(0.05)
            began = time.monotonic()
            await in_store(lambda: None)
            waited_s = time.monotonic() - began
            state.stopping = True
            tasks.cancel_scope.cancel()
        return waited_s

    assert anyio.run(crowd) < 0.2
