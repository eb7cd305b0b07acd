"""Several processes on one port."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.fixtures.job_server import SWEEP, Place, eventually

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "data", workers=2)
    yield place
    place.clear()


def test_workers_share_a_port_a_store_and_the_jobs(place: Place) -> None:
    server = place.serve()
    base = str(server.http.base_url)

    def workers() -> list[int]:
        # The forked processes of the pools have another command.
        return [pid for pid in place.processes("planner.cli\0serve") if pid != server.process.pid]

    eventually(lambda: httpx.get(f"{base}/readyz", timeout=60).status_code == 200, "readiness")
    job = server.start("sweeps", SWEEP)
    assert server.end(job)["state"] == "succeeded"
    for _ in range(12):  # each on a connection of its own
        assert httpx.get(f"{base}/v1/info", timeout=60).status_code == 200
    pattern = r'planner_http_requests_total\{.*route="/v1/info".*status="200"\} ([0-9.]+)'
    counted = [
        sum(map(float, re.findall(pattern, httpx.get(f"{base}/metrics").text))) for _ in range(3)
    ]
    assert min(counted) == 12  # of both, whichever is asked
    first, second = workers()
    place_of_death = Path(f"/proc/{first}")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: len(workers()) == 2 and not place_of_death.exists(), "another worker")
    assert second in workers()
    eventually(lambda: httpx.get(f"{base}/readyz", timeout=60).status_code == 200, "readiness")
    server.stop()
    eventually(lambda: not place.processes(), "the end of all")
