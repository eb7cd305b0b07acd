"""Worker processes end with whoever started them: nobody else would end what they compute."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2 as httpx
import pytest

from api.budget import own_cpu_s
from tests.api.test_budgets import HOPELESS
from tests.fixtures.job_server import Place, eventually

pytestmark = pytest.mark.exhaustive


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "data").mkdir()
    place = Place(tmp_path / "data", max_runs=0)
    yield place
    place.clear()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("killed", ["fork server", "service"])
def test_a_worker_ends_with_its_fork_server_and_its_service(place: Place, killed: str) -> None:
    server = place.serve()

    def ask() -> None:
        with suppress(httpx.TransportError):  # the service is killed
            assert server.http.post("/v1/plans", json=HOPELESS).status_code == 500

    asking = threading.Thread(target=ask)
    asking.start()
    worker = eventually(lambda: busy(place), "a worker that computes")
    os.kill(parent(worker) if killed == "fork server" else server.process.pid, signal.SIGKILL)
    eventually(lambda: worker not in place.processes(), "its end", patience_s=5)
    asking.join()


def busy(place: Place) -> int | None:
    """A process of the pools that computes."""
    for pid in place.processes("forkserver"):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in map(int, children):
            if own_cpu_s(child) > 1.0:
                return child
    return None


def parent(pid: int) -> int:
    """The process that started it."""
    # What proc_pid_stat(5) has after the name.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
