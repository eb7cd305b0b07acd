"""A step whose process is killed, as the kernel does where memory ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from planner.running.jobs import engine as engines
from planner.running.jobs.engine import Engine
from planner.running.jobs.settings import JobSettings
from planner.running.store import Store
from tests.fixtures.job_server import ENDLESS, eventually

pytestmark = pytest.mark.slow


def test_a_killed_step_begins_again_while_attempts_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    store = Store.open()
    job, _ = store.jobs.create("sweeps", ENDLESS, most_waiting=1)
    engine = Engine(store, None, JobSettings(run_nice=0, max_job_attempts=2))
    engine.start()
    killed: set[int] = set()

    def step() -> int | None:
        runs = engines._executor._runs if engines._executor else ()
        steps = [run.step_process.process.pid for run in list(runs) if run.step_process]
        return next((pid for pid in steps if pid not in killed), None)

    for _ in range(2):
        pid = eventually(step, "the process of a step", 30)
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
    ended = eventually(lambda: (now := store.jobs.get(job.id)) and now.error and now, "its end", 30)
    assert ended.error["type"] == "/problems/run/crashed"
    assert "killed by signal 9" in ended.error["detail"]
    engine.stop()
    store.close()
