"""Jobs that a server of another version of the steps has left."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from planner.running.doctor.checks import _jobs
from planner.running.jobs.engine import Engine
from planner.running.jobs.settings import JobSettings
from planner.running.store import Store
from planner.running.store.jobs import JobEvent
from tests.fixtures.job_server import SWEEP, Place, eventually

pytestmark = pytest.mark.slow
OLD_SERVER = "host-1-0a1b2c3d"  # as earlier releases name it, without a version


def _begun_by_another_version(folder: Path, state: str) -> None:
    """Make what DBOS has of a job that of a server whose steps are others."""
    with closing(sqlite3.connect(folder / "jobs.sqlite")) as database, database:
        changed = database.execute(
            "UPDATE workflow_status SET application_version = '1', status = ?", (state,)
        )
        assert changed.rowcount == 1


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    store = Store.open()
    yield store
    store.close()


def test_a_job_of_another_version_is_queued_again(store: Store, tmp_path: Path) -> None:
    job, _ = store.jobs.create("sweeps", SWEEP, most_waiting=1)
    assert store.jobs_without_server() == 1
    assert _jobs(None)[:2] == ("warn", "1 wait, and no server that runs jobs is alive")
    settings = JobSettings(run_nice=0)
    engine = Engine(store, None, settings)
    engine.start()
    eventually(store.jobs.unfinished, "DBOS has it")
    assert store.jobs_without_server() == 0
    engine.stop()
    _begun_by_another_version(tmp_path, "PENDING")
    engine = Engine(store, None, settings)
    engine.start()

    def notes() -> list[JobEvent]:
        return [one for one in store.jobs.events(job.id) if "another version" in str(one.data)]

    assert len(eventually(notes, "its new beginning", 30)) == 1
    engine.stop()


@pytest.mark.exhaustive
@pytest.mark.parametrize("state", ["PENDING", "ENQUEUED"])
def test_an_upgrade_begins_jobs_again(
    tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "data")
    try:
        old = place.serve()
        job = old.start("sweeps", SWEEP)
        old.until(job, state="running")
        old.kill()
        _begun_by_another_version(place.folder, state)

        monkeypatch.setenv("PLANNER_DATA_DIR", str(place.folder))
        store = Store.open()
        eventually(store.jobs_without_server, "the end of its lease")
        answers_only = place.serve(max_runs=0)
        assert answers_only.http.get("/readyz").json()["jobs_without_server"] == 1
        answers_only.stop()

        # Another server of that version may be at work: until its lease ends, it keeps the job.
        store.servers.join(OLD_SERVER, 4.0)
        until = time.time() + 4.0
        new = place.serve()
        assert new.end(job)["state"] == "succeeded"
        assert time.time() > until
        notes = [line for line in new.log_of(job) if "another version of the service" in line]
        assert len(notes) == 1
        assert new.http.get("/readyz").json()["jobs_without_server"] == 0
        store.close()
    finally:
        place.clear()
