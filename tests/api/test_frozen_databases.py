"""The end of a service whose PostgreSQL stands still, and what its next start goes on with."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.api.test_slow_databases import frozen
from tests.fixtures.job_server import ENDLESS, Place, Server, eventually
from tests.fixtures.postgres import Postgres, postgres

__all__ = ["postgres"]
pytestmark = pytest.mark.exhaustive
RUNNER = "planner.running.jobs.step_worker"
END_S = 10.0
# A search of minutes, which needs no database until it has an answer.
SEARCH: dict[str, Any] = {
    "model": "gpt3-175b",
    "cluster": "128x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 1536},
    "search": {"open": ["rank_order", "recompute_layers"]},
}


@pytest.fixture
def place(postgres: Postgres, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "data", postgres.database(), sweep_step_questions=1)
    yield place
    place.clear()


def finished_steps(server: Server, job: dict[str, Any]) -> int:
    return sum(": done in" in line for line in server.log_of(job))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_service_ends_soon(
    place: Place, postgres: Postgres, number: signal.Signals, workers: int
) -> None:
    server = place.serve(workers=workers)
    job = server.start("sweeps", ENDLESS)
    eventually(lambda: finished_steps(server, job) > 1, "its first steps")
    base = str(server.http.base_url)

    def asked(method: str, path: str, document: Any) -> int:
        try:
            return httpx.request(method, base + path, json=document, timeout=60).status_code
        except httpx.TransportError:
            return 0

    with ThreadPoolExecutor(8) as callers, frozen(postgres):
        saved = [
            callers.submit(asked, "PUT", f"/v1/saved-plans/{n}", {"request": {}}) for n in "abc"
        ]
        searched = callers.submit(asked, "POST", "/v1/plans", SEARCH)
        time.sleep(1.0)
        began = time.monotonic()
        server.process.send_signal(number)
        server.process.wait(60)
        ended_s = time.monotonic() - began
        eventually(lambda: not place.processes(), "the end of all its processes", 60)
        gone_s = time.monotonic() - began
        statuses = [one.result() for one in (*saved, searched)]
    print(f"\nended after {ended_s:.1f} s, the last process after {gone_s:.1f} s, {statuses}")
    assert gone_s < END_S
    assert statuses[:3] == [503] * 3
    server = place.serve()
    before = finished_steps(server, job)
    assert before > 1
    eventually(lambda: finished_steps(server, job) > before, "its next step")
    assert server.job(job)["state"] == "running"
    assert len(place.runs(RUNNER)) <= 1  # a moment lies between the processes of two steps
    eventually(lambda: len(place.runs(RUNNER)) == 1, "the process of its step")
    numbers = [line.split(" in ")[0] for line in server.log_of(job) if ": done in" in line]
    # Each step once, but for what was under way.
    begun = sum(": begun on" in line for line in server.log_of(job))
    assert begun - len(numbers) <= 2
    server.http.post(job["links"]["cancel"])
    assert server.end(job)["state"] == "cancelled"
