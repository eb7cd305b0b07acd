"""Databases that are lost, damaged or full: what the service says, and what becomes of its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.running.doctor.checks import _database, _job_database
from planner.running.store import Store, Unavailable
from tests.fixtures.job_server import ENDLESS, Place, eventually

RUNNER = "planner.running.jobs.step_worker"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "data")
    yield place
    place.clear()


def lose(place: Place) -> None:
    for path in place.folder.glob("jobs.sqlite*"):
        path.unlink()


@pytest.mark.exhaustive
def test_jobs_begin_anew_where_their_database_is_lost(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(place.folder))
    server = place.serve()
    job = server.start("sweeps", ENDLESS)
    eventually(lambda: place.runs(RUNNER), "its process")
    lose(place)  # under the server, which begins another life
    eventually(lambda: server.said().count("is requeued") == 1, "the reconciliation")
    server.until(job, state="running")
    server.kill()
    lose(place)
    (place.folder / "jobs.sqlite").write_bytes(b"not a database, but long enough" * 100)
    server = place.serve()
    eventually(lambda: server.http.get("/readyz").status_code == 503, "word of it", 60)
    state, _, advice = _job_database(None)
    assert (state, "move" in str(advice)) == ("fail", True)
    lose(place)
    eventually(lambda: server.http.get("/readyz").status_code == 200, "readiness")
    eventually(lambda: place.runs(RUNNER), "its process")
    server.http.post(job["links"]["cancel"])
    assert server.end(job)["state"] == "cancelled"


def test_readiness_needs_the_very_file(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/planner.sqlite")
    store.servers.check_writable()
    assert store.servers.alive(60) == set()
    (tmp_path / "planner.sqlite").rename(tmp_path / "moved.sqlite")
    with pytest.raises(Unavailable, match="removed"):
        store.servers.check_writable()
    store.close()


@pytest.mark.parametrize("emptied", [False, True])
def test_a_lost_database_is_not_taken_as_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emptied: bool
) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    Store.open().close()
    (tmp_path / "jobs.sqlite").write_bytes(b"of DBOS")
    Store.open().close()
    for path in tmp_path.glob("planner.sqlite*"):
        path.unlink()
    if emptied:
        (tmp_path / "planner.sqlite").touch()
    with pytest.raises(Unavailable, match="is missing or empty, and there were jobs"):
        Store.open()
    state, found, _ = _database(None)
    assert (state, "missing or empty" in found) == ("fail", True)
    (tmp_path / "jobs.sqlite").unlink()
    Store.open().close()
