"""Jobs whose servers end, whose database goes away, whose disk is full."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.job_server import (
    ENDLESS,
    LEASE_S,
    OVER,
    SWEEP,
    TINY,
    TWO_RANKS,
    Place,
    Server,
    eventually,
)
from tests.fixtures.postgres import Postgres, postgres

pytestmark = pytest.mark.slow

__all__ = ["postgres"]
WORKER = "planner.running.validate.ranks.worker"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "data")
    yield place
    place.clear()


def begun(server: Server, job: dict[str, Any], words: str) -> bool:
    return any(line.startswith(words) for line in server.log_of(job))


@pytest.mark.exhaustive
def test_a_server_killed_in_each_phase_of_a_validation(place: Place) -> None:
    training = TINY["training"] | {"precision": "fp32"}  # whose timed run shows gradients, too
    asked = TINY | {"training": training, "validation": {"steps": 2, "check_numerics": True}}
    server = place.serve(max_runs=0)
    job = server.start("validations", asked)
    server.kill()
    for phase in ("reference", "run"):
        server = place.serve()
        server.until(job, state="running", phase=phase)
        eventually(lambda: place.runs(WORKER), f"ranks of {phase}")
        server.kill()
        eventually(lambda: not place.runs(), f"the end of {phase}")
    server = place.serve()
    eventually(lambda s=server: begun(s, job, "report: begun"), "the end of the run")
    server.kill()
    server = place.serve()
    done = server.end(job)
    assert done["state"] == "succeeded", done["error"]
    assert done["result"]["report"]["gradient_max_relative_error"] < 1e-4
    ended = Counter(line.split(" in ")[0] for line in server.log_of(job) if " in " in line)
    assert ended["prepare: done"] == ended["reference: done"] == ended["run: done"] == 1
    starts = Counter(line.split(":")[0] for line in server.log_of(job) if "begun" in line)
    assert starts["reference"] == starts["run"] == 2
    assert len(list((place.folder / "validations").glob("*.json"))) == 1
    assert server.stop() in (0, -15)
    eventually(lambda: not place.processes(), "the end of all its processes")


# Kind, document, how many processes of which module it runs, in which phase.
LONG = [
    ("sweeps", ENDLESS, 1, "planner.running.jobs.step_worker", "ask"),
    ("validations", TWO_RANKS | {"validation": {"steps": 1000}}, 2, WORKER, "run"),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "asked", "count", "module", "phase"), LONG)
def test_a_server_that_is_stopped_hands_over_and_one_that_is_cut_off_too_often_tells(
    place: Place, kind: str, asked: dict[str, Any], count: int, module: str, phase: str
) -> None:
    def running() -> bool:
        return len(place.runs(module)) >= count

    server = place.serve(max_job_attempts=1)
    job = server.start(kind, asked)
    eventually(running, "its processes")
    server.stop()
    eventually(lambda: not place.processes(), "the end of all its processes")
    server = place.serve(max_runs=0)
    assert server.job(job)["state"] == "queued"
    server.stop()
    server = place.serve(max_job_attempts=1)
    eventually(running, "its processes again")
    server.kill()
    server = place.serve(max_job_attempts=1)
    done = server.end(job)
    assert done["state"] == "failed"
    assert done["error"]["type"] == "/problems/cut-off"
    assert f"ended 1 times in the phase '{phase}'" in done["error"]["detail"]


@pytest.mark.exhaustive
def test_postgresql_stopped_and_started_under_way(postgres: Postgres, tmp_path: Path) -> None:
    place = Place(tmp_path / "data", postgres.database())
    try:
        server = place.serve()
        job = server.start("validations", TINY | {"validation": {"steps": 1000}})
        eventually(lambda: place.runs(WORKER), "its rank")
        postgres.stop()
        try:
            answer = server.http.get(job["links"]["self"])
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
            assert server.http.get("/healthz").status_code == 200
            # Without its lease it may not run, whatever it knows of the others.
            eventually(lambda: not place.runs(WORKER), "the end of its rank", 3 * LEASE_S)
        finally:
            postgres.start()
        eventually(lambda: server.http.get(job["links"]["self"]).status_code == 200, "an answer")
        eventually(lambda: place.runs(WORKER), "its rank again")
        server.http.post(job["links"]["cancel"])
        assert server.end(job)["state"] == "cancelled"
        assert server.log_of(job).count(f"run: begun on {socket.gethostname()}") == 2
        assert "postgres@" not in server.said()
        server.stop()
        eventually(lambda: not place.processes(), "the end of all its processes")
    finally:
        place.clear()


def small_disk(folder: Path) -> tuple[str, ...]:
    """A command that runs another one with a small disk of its own at a folder."""
    folder.mkdir()
    script = 'mount -t tmpfs -o size=4m tmpfs "$0" && exec "$@"'
    return ("unshare", "-rm", "sh", "-c", script, str(folder))


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "asked", "count", "module", "phase"), LONG)
def test_a_full_disk(
    place: Place, kind: str, asked: dict[str, Any], count: int, module: str, phase: str
) -> None:
    server = place.serve(*small_disk(place.folder))
    first = server.start("sweeps", SWEEP)
    assert server.end(first)["state"] == "succeeded"
    # Its disk is seen through the process: no other has it.
    disk = Path(f"/proc/{server.process.pid}/root{place.folder}")
    job = server.start(kind, asked)

    def begun() -> bool:
        now = server.job(job)
        assert now["state"] not in OVER, now["error"]
        return len(place.runs(module)) >= count

    eventually(begun, "its processes")
    ballast = disk / "ballast"
    fill(ballast)
    answer = server.http.post("/v1/sweeps", json=SWEEP)
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
    assert server.http.get("/healthz").status_code == 200
    assert server.http.get("/readyz").status_code == 503
    assert server.http.get(first["links"]["self"]).status_code == 200
    ballast.unlink()
    server.http.post(job["links"]["cancel"])
    assert server.end(job)["state"] in ("cancelled", "failed")
    eventually(lambda: not place.runs(), "the end of its processes")
    last = server.start("sweeps", SWEEP)
    assert server.end(last)["state"] == "succeeded"


def remount(server: Server, folder: Path, mode: str) -> None:
    """Have a server's own disk be read only ("ro"), or written again ("rw")."""
    within = ["nsenter", "-t", str(server.process.pid), "-U", "-m", "--preserve-credentials"]
    subprocess.run([*within, "mount", "-o", f"remount,{mode}", str(folder)], check=True)


# A validation that goes on has shown what is to be shown; its run is long.
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("way", "to_its_end"),
    [
        ("full", False),
        ("read only", True),
        ("full", True),
    ],
)
def test_a_job_waits_for_space(
    postgres: Postgres, tmp_path: Path, way: str, to_its_end: bool
) -> None:
    postgres.folder.chmod(0o755)  # its socket is for a server in a space of its own, too
    place = Place(tmp_path / "data", postgres.database())
    try:
        server = place.serve(*small_disk(place.folder))
        ballast = Path(f"/proc/{server.process.pid}/root{place.folder}/ballast")
        fill(ballast) if way == "full" else remount(server, place.folder, "ro")
        asked = ("validations", TINY) if way == "full" else ("sweeps", SWEEP)
        job = server.start(*asked)
        eventually(lambda: "waits for space" in str(server.log_of(job)), "that it waits", 120)
        assert server.job(job)["state"] == "running"
        ballast.unlink() if way == "full" else remount(server, place.folder, "rw")
        if not to_its_end:
            eventually(lambda: begun(server, job, "prepare: done"), "that it goes on")
            server.http.post(job["links"]["cancel"])
        done = server.end(job)
        assert done["state"] == ("succeeded" if to_its_end else "cancelled"), done["error"]
    finally:
        place.clear()


@pytest.mark.exhaustive
def test_a_job_that_waits_for_space_is_cancelled(postgres: Postgres, tmp_path: Path) -> None:
    postgres.folder.chmod(0o755)
    place = Place(tmp_path / "data", postgres.database())
    try:
        server = place.serve(*small_disk(place.folder))
        remount(server, place.folder, "ro")
        job = server.start("sweeps", SWEEP)
        eventually(lambda: "waits for space" in str(server.log_of(job)), "that it waits", 120)
        server.http.post(job["links"]["cancel"])
        assert server.end(job)["state"] == "cancelled"
    finally:
        place.clear()


@pytest.mark.exhaustive
def test_a_server_that_hangs_has_nothing_running_when_another_goes_on(
    postgres: Postgres, tmp_path: Path
) -> None:
    place = Place(tmp_path / "data", postgres.database())
    try:
        hangs = place.serve()
        job = hangs.start("validations", TINY | {"validation": {"steps": 1000}})
        eventually(lambda: place.runs(WORKER), "its rank")
        hangs.process.send_signal(signal.SIGSTOP)
        eventually(
            lambda: not place.runs("planner.running.jobs.step_worker"), "the end", 4 * LEASE_S
        )
        assert place.runs(WORKER) == []
        other = place.serve()
        eventually(lambda: place.runs(WORKER), "its rank again")
        hangs.process.send_signal(signal.SIGCONT)
        assert hangs.end(hangs.start("sweeps", SWEEP))["state"] == "succeeded"
        assert other.job(job)["state"] == "running"
        assert hangs.http.post(job["links"]["cancel"]).json()["state"] == "cancelling"
        assert other.end(job)["state"] == "cancelled"
        assert sum("run: begun" in line for line in other.log_of(job)) == 2
        assert place.runs() == []
    finally:
        place.clear()


def watch(place: Place, twice: set[str], over: threading.Event) -> None:
    """Note jobs of which two runs live at one time."""
    while not over.is_set():
        jobs: Counter[str] = Counter()
        runs = place.runs("planner.running.jobs.step_worker")
        for pid in runs:
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in runs:  # what it starts has its command at first
                continue
            # A process that is ending has an empty environment.
            for folder in (one for one in environment if one.startswith(b"TMPDIR=")):
                jobs[Path(os.fsdecode(folder)).parent.name] += 1
        twice |= {job for job, runs in jobs.items() if runs > 1}
        time.sleep(0.02)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [200])
def test_two_servers_share_jobs_and_one_is_killed(
    postgres: Postgres, tmp_path: Path, count: int
) -> None:
    place = Place(
        tmp_path / "data", postgres.database(), max_queued_jobs=count, sweep_step_questions=1,
        job_lease_s=10,
    )  # fmt: skip
    twice: set[str] = set()
    over = threading.Event()
    watching = threading.Thread(target=watch, args=(place, twice, over))
    watching.start()
    try:
        servers = [place.serve(), place.serve()]
        asked = SWEEP | {"axes": {"training.global_batch_size": [64, 128]}}
        jobs = [servers[i % 2].start("sweeps", asked) for i in range(count)]
        both = servers[1]

        def finished(least: int) -> bool:
            states = [both.job(job)["state"] for job in jobs[:least]]
            return all(state in OVER for state in states)

        eventually(lambda: finished(count // 10), "some jobs", 600)
        servers[0].kill()
        for job in jobs:
            done = eventually(
                lambda job=job: (now := both.job(job))["state"] in OVER and now, "all jobs", 900
            )
            assert done["state"] == "succeeded", done["error"]
            ended = [line for line in both.log_of(job) if ": done in" in line]
            assert len(ended) == 2, both.log_of(job)
        repeated = [job for job in jobs if len(both.log_of(job)) > 4]
        assert len(repeated) <= 1  # what the killed one was at
        assert twice == set()
        both.stop()
        eventually(lambda: not place.processes(), "the end of all its processes")
    finally:
        over.set()
        watching.join()
        place.clear()
