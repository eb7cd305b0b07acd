"""Upgrades from what was released: services of this repository's history leave jobs to today's.

They run with the packages that are installed here.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.running.jobs.other_versions import STEPS_VERSION
from tests.api.test_jobs_cut_off import watch
from tests.fixtures.job_server import SWEEP, TINY, Place, Server, eventually
from tests.fixtures.postgres import Postgres, postgres

__all__ = ["postgres"]
pytestmark = pytest.mark.exhaustive
ROOT = Path(__file__).parents[2]
# Commit, and the version of its steps; their newest migrations are 0001 and 0003.
FIRST = pytest.param("9e6cbeaf", "1", id="0.2.0 of 22 November 2026")
LATER = pytest.param("20600a91", "2", id="0.2.0 of 27 November 2026")
DATABASES = ["sqlite", "postgresql"]


class Release:
    """The code of a commit, whose service can be started."""

    def __init__(self, commit: str, folder: Path) -> None:
        done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
        if done.returncode:
            pytest.skip(f"this checkout's history does not have {commit}: git fetch --unshallow")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
        self.folder = folder

    def serve(self, place: Place, **settings: Any) -> Server:
        own = ("env", "-C", str(self.folder), f"PYTHONPATH={self.folder}")
        return place.serve(*own, **settings)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Iterator[Place]:
    url = ""
    if database == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        url = server.database()
    (tmp_path / "data").mkdir()
    place = Place(tmp_path / "data", url, sweep_step_questions=1)
    yield place
    place.clear()


def sweep(*batches: int) -> dict[str, Any]:
    """Questions of which each is a search, so that a step takes a second."""
    base = {name: value for name, value in SWEEP["base"].items() if name != "plan"}
    return {"base": base, "axes": {"training.global_batch_size": [*batches]}}


# What a job is asked.
DONE = sweep(64)
RUNNING = sweep(*range(128, 704, 64))
WAITING = sweep(1024, 2048)
RUN = {"model": TINY["model"], "cluster": "local", "training": TINY["training"], "plan": {}}


def steps(server: Server, job: dict[str, Any]) -> list[str]:
    """The steps of a job that have ended."""
    return [line for line in server.log_of(job) if ": done in" in line]


def found(answer: dict[str, Any]) -> Any:
    """What a sweep found, without how long that took."""
    rows = answer["result"]["sweep"]["rows"]
    return [{name: value for name, value in row.items() if not name.endswith("_s")} for row in rows]


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("ends", ["stop", "kill"])
@pytest.mark.parametrize(("commit", "version"), [FIRST, LATER])
def test_nothing_is_lost_doubled_or_wrong(
    place: Place, tmp_path: Path, commit: str, version: str, ends: str
) -> None:
    release = Release(commit, tmp_path / "release")
    old = release.serve(place)
    done = old.end(old.start("sweeps", DONE))
    assert done["state"] == "succeeded", done["error"]
    saved = old.http.put("/v1/saved-plans/mine", json={"request": RUNNING["base"]})
    assert saved.status_code == 201
    kept = old.http.post("/v1/plans", json=DONE["base"]).json()
    running = old.start("sweeps", RUNNING)
    eventually(lambda: steps(old, running), "its first step")
    waiting = [old.start("sweeps", WAITING), old.start("validations", RUN)]
    cancelled = old.start("sweeps", WAITING)
    old.http.post(cancelled["links"]["cancel"])
    assert old.end(cancelled)["state"] == "cancelled"
    assert len(steps(old, running)) < len(RUNNING["axes"]["training.global_batch_size"])
    getattr(old, ends)()

    twice: set[str] = set()
    over = threading.Event()
    watching = threading.Thread(target=watch, args=(place, twice, over))
    watching.start()
    try:
        new = place.serve()
        every = [done, running, *waiting, cancelled]
        after = [new.end(job) for job in every]
        listed = new.http.get("/v1/jobs?limit=100").json()["rows"]
        assert {one["id"] for one in listed} == {one["id"] for one in every}
        states = ["succeeded"] * 4 + ["cancelled"]
        assert [one["state"] for one in after] == states, [one["error"] for one in after]
        assert {**after[0], "links": 0} == {**done, "links": 0} | {"owner": None}
        again = [new.end(new.start("sweeps", asked)) for asked in (RUNNING, WAITING)]
        assert [found(one) for one in after[1:3]] == [found(one) for one in again]
        assert after[3]["result"]["report"]["verdict"] in ("within", "outside")
        assert len(list((place.folder / "validations").glob("*.json"))) == 1
        assert new.http.get("/v1/saved-plans/mine").json()["request"] == RUNNING["base"]
        assert new.http.get(kept["links"]["self"]).json()["best"] == kept["best"]
        noted = [line for line in new.log_of(running) if "another version of the service" in line]
        assert len(noted) == (version != STEPS_VERSION)
        assert twice == set()
        assert new.http.get("/readyz").json()["jobs_without_server"] == 0
    finally:
        over.set()
        watching.join()


@pytest.mark.parametrize("database", ["postgresql"])
@pytest.mark.parametrize(("commit", "version"), [FIRST, LATER])
def test_both_serve_side_by_side(place: Place, tmp_path: Path, commit: str, version: str) -> None:
    """As several servers are upgraded: a new one starts beside an old one, which then ends."""
    release = Release(commit, tmp_path / "release")
    old = release.serve(place)
    jobs = [old.start("sweeps", RUNNING)]
    eventually(lambda: steps(old, jobs[0]), "its first step")
    new = place.serve()
    eventually(lambda: new.http.get("/readyz").status_code == 200, "readiness")
    jobs += [server.start("sweeps", WAITING) for server in (old, new, old, new)]
    assert old.http.get("/readyz").status_code == 200
    assert old.job(jobs[2])["id"] == jobs[2]["id"]
    old.stop()
    ends = [new.end(job) for job in jobs]
    assert {one["state"] for one in ends} == {"succeeded"}, [one["error"] for one in ends]
    same = [found(one) for one in ends[1:]]
    assert same == [same[0]] * 4
    assert len(found(ends[0])) == len(RUNNING["axes"]["training.global_batch_size"])
