"""The clocks of servers and of their database jump while jobs run: nothing is lost or doubled."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_jobs_cut_off import watch
from tests.fixtures.job_server import LEASE_S, SWEEP, TINY, Place, Server
from tests.fixtures.jumping_clock import JUMPS_S, JumpingClock
from tests.fixtures.postgres import Postgres, own_postgres

__all__ = ["own_postgres"]
pytestmark = pytest.mark.exhaustive
SEARCHED = 30
SEARCHES = {
    "base": {name: value for name, value in SWEEP["base"].items() if name != "plan"},
    "axes": {"training.global_batch_size": [*range(64, 64 * (SEARCHED + 1), 64)]},
}
# Ranks that train for longer than all jumps take.
RUN = TINY | {
    "plan": TINY["plan"] | {"dp": 2}, "training": {"seq_length": 16, "global_batch_size": 256},
    "validation": {"steps": 1_000},
}  # fmt: skip


@pytest.fixture(params=["sqlite", "postgresql"])
def clocks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, JumpingClock]]:
    """The URL of a database, and its clock."""
    if request.param == "sqlite":
        yield "", JumpingClock(tmp_path)
        return
    server: Postgres = request.getfixturevalue("own_postgres")
    clock = JumpingClock(server.folder)
    server.stop()
    server.start(*clock.command)
    yield server.database(), clock


def test_nothing_is_lost_or_doubled(clocks: tuple[str, JumpingClock], tmp_path: Path) -> None:
    url, clock = clocks
    (tmp_path / "data").mkdir()
    place = Place(tmp_path / "data", url, sweep_step_questions=1, max_run_s=1_800)
    # SQLite has the clocks of those who write to it.
    commands = [(), ()] if url else [clock.command, ()]
    twice: set[str] = set()
    over = threading.Event()
    watching = threading.Thread(target=watch, args=(place, twice, over))
    watching.start()
    try:
        servers = [place.serve(*command) for command in commands]
        key = {"idempotency-key": "once"}
        sweep = servers[0].start("sweeps", SEARCHES, **key)
        run = servers[0].start("validations", RUN)
        servers[0].until(run, state="running", phase="run")
        for jump_s in JUMPS_S:
            for ahead_s in (jump_s, 0):
                clock.jump(ahead_s)
                again = servers[0].http.post("/v1/sweeps", json=SEARCHES, headers=key)
                assert again.json()["id"] == sweep["id"]
                time.sleep(2 * LEASE_S)
                assert servers[0].http.get("/readyz").status_code == 200
                assert servers[0].job(run)["state"] == "running", servers[0].job(run)["error"]
        servers[0].http.post(run["links"]["cancel"])
        assert servers[0].end(run)["state"] == "cancelled"
        done = servers[0].end(sweep)
        assert done["state"] == "succeeded", done["error"]
        assert set(begun(servers[0], run).values()) == {1}
        assert begun(servers[0], sweep) == {"ask": SEARCHED}
        assert done["finished_at"] >= done["started_at"] >= done["created_at"]
        assert twice == set()
    finally:
        over.set()
        watching.join()
        place.clear()


def begun(server: Server, job: dict[str, Any]) -> Counter[str]:
    """How many times a step of each phase was begun."""
    return Counter(line.partition(":")[0] for line in server.log_of(job) if ": begun on" in line)
