"""A database that is slow or frozen holds up only who needs it."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from api.app import create_app
from api.settings import Settings
from tests.fixtures.postgres import Postgres, postgres
from tests.fixtures.service import listening

pytestmark = pytest.mark.slow

__all__ = ["postgres"]
FREE = ("/healthz", "/metrics", "/v1/catalog/schedules", "/v1/info")
CALLERS = 24
SEARCH = {
    "model": "gpt2",
    "cluster": "1x4xh100-sxm",
    "training": {"seq_length": 1024, "global_batch_size": 64},
}


def held_up(port: int) -> tuple[list[int], float]:
    """Statuses of calls that need the database, and how long others took meanwhile."""
    base = f"http://127.0.0.1:{port}"

    def save(number: int) -> int:
        body = {"request": {}}
        return httpx.put(f"{base}/v1/saved-plans/{number}", json=body, timeout=60).status_code

    with ThreadPoolExecutor(CALLERS) as callers:
        saving = [callers.submit(save, number) for number in range(CALLERS)]
        time.sleep(1.0)
        began = time.monotonic()
        for path in FREE:
            assert httpx.get(base + path, timeout=60).status_code == 200
        took_s = time.monotonic() - began
        assert not any(one.done() for one in saving)
        return [one.result() for one in saving], took_s


@pytest.mark.exhaustive
def test_a_lock_on_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "planner.sqlite"
    with (
        listening(create_app(Settings(database_url=f"sqlite:///{file}"))) as port,
        closing(sqlite3.connect(file, isolation_level=None)) as other,
    ):
        httpx.get(f"http://127.0.0.1:{port}/v1/info")
        other.execute("BEGIN IMMEDIATE")
        statuses, took_s = held_up(port)
    assert statuses == [503] * CALLERS
    assert took_s < 4.5


@contextmanager
def frozen(server: Postgres) -> Iterator[None]:
    """All processes of a server stand still."""
    first = int((server.data / "postmaster.pid").read_text().splitlines()[0])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    processes = [first, *map(int, children)]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.exhaustive
def test_a_frozen_postgresql(postgres: Postgres) -> None:
    with listening(create_app(Settings(database_url=postgres.database()))) as port:
        base = f"http://127.0.0.1:{port}"
        assert httpx.put(f"{base}/v1/saved-plans/a", json={"request": {}}).status_code == 201
        began = time.monotonic()
        with frozen(postgres), ThreadPoolExecutor(1) as beside:
            search = beside.submit(httpx.post, f"{base}/v1/plans", json=SEARCH, timeout=120)
            statuses, took_s = held_up(port)
            assert search.result().status_code == 200  # it cannot be kept
        assert statuses == [503] * CALLERS
        assert took_s < 4.5
        assert time.monotonic() - began < 60.0
        threads = threading.active_count()
        assert httpx.get(f"{base}/v1/saved-plans/a", timeout=60).status_code == 200
        assert threads < 100
