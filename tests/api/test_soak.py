"""Half an hour of mixed calls and jobs while everything below them breaks, one after the other.

Servers and their processes are killed, the database is frozen and started again, a disk is full and
read-only, and a service of an earlier version works beside until half of the time is over. Then
clocks jump, too: the earlier version keeps its leases by the database's clock.
`pytest -n 0 -s -m exhaustive tests/api/test_soak.py`; PLANNER_SOAK_MINUTES=5 for a shorter one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from planner.running.jobs.disk_space import FULL
from tests.api.test_drawn_questions import explosive
from tests.api.test_earlier_releases import Release
from tests.api.test_jobs_cut_off import fill, watch
from tests.api.test_slow_databases import frozen
from tests.benchmarks.test_service_load import SMALL, mixed, resident_bytes, statuses_of
from tests.fixtures.job_server import OVER, SWEEP, Place, Server, eventually
from tests.fixtures.jumping_clock import JUMPS_S, JumpingClock
from tests.fixtures.postgres import Postgres, own_postgres

__all__ = ["own_postgres"]

MINUTES = float(os.environ.get("PLANNER_SOAK_MINUTES", "30"))
CALLERS = int(os.environ.get("PLANNER_SOAK_CALLERS", "64"))
EARLIER = "20600a91"  # of other steps; its newest migration is 0003
AWAY_S = 10.0  # that a database is frozen or stopped, or a disk full
EVERY_S = float(os.environ.get("PLANNER_SOAK_EVERY_S", "25"))  # something breaks
BUDGET_S, MEMORY_MIB = 5.0, 1024
OVER_S = 2.0  # of a core that a question may take beyond its budget
_BREAK_S = 25.0  # after something broke, in which a call may go unanswered
_DISK = 'mount -t tmpfs -o size=64m tmpfs "$0" && exec "$@"'


class Soak:
    """What was asked, answered and begun."""

    def __init__(
        self, place: Place, postgres: Postgres, clocks: list[JumpingClock], release: Release
    ) -> None:
        self.place, self.postgres, self.release = place, postgres, release
        self.clocks = clocks  # of the database and of each server
        postgres.folder.chmod(0o755)  # the socket is for those with a disk of their own, too
        self.old = release.serve(place)  # it would not start on the tables of a newer one
        disk = ("unshare", "-rm", "sh", "-c", _DISK, str(place.folder))
        self.commands = [(*disk, *clock.command) for clock in clocks[1:]]
        self.servers = [place.serve(*command) for command in self.commands]
        self.addresses = [str(server.http.base_url).rstrip("/") for server in self.servers]
        self.documented = statuses_of(self.servers[0].http.get("/openapi.json").json())
        self.ends = time.monotonic() + 60 * MINUTES
        self.broken_until = 0.0
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.resident: list[int] = []
        self.cut_short = 0
        self.jobs: dict[str, list[int]] = {}
        self.asked_jobs = self.asked = self.cut_off = self.refused = 0
        self.broken: Counter[str] = Counter()
        self.lost: list[str] = []
        self.wrong: list[str] = []

    async def caller(self, number: int, client: httpx.AsyncClient) -> None:
        """Ask one thing after the other, of either server."""
        draw, asked = random.Random(number), mixed(number, 10**9)
        while time.monotonic() < self.ends:
            kind = draw.random()
            if number == 0:
                await self.job(client, draw)
                await asyncio.sleep(2.0)
            elif kind < 0.02:
                path, question = explosive(draw)
                target = f"/v1/{path}?cpu_s={BUDGET_S}&memory_mib={MEMORY_MIB}"
                await self.call(client, draw, "POST", target, json.dumps(question).encode())
            elif kind < 0.045:
                plan = SMALL | {"search": {"top_k": draw.randint(1, 1000)}}
                body = json.dumps(plan).encode()
                await self.call(client, draw, "POST", f"/v1/plans?cpu_s={BUDGET_S}", body)
            else:
                head, _, body = next(asked).partition(b"\r\n\r\n")
                first, *rest = head.decode(errors="replace").split("\r\n")
                method, target, _ = first.split(" ", 2)
                headers = dict(line.split(": ", 1) for line in rest[1:])
                await self.call(client, draw, method, target, body, headers)

    async def call(
        self,
        client: httpx.AsyncClient,
        draw: random.Random,
        method: str,
        target: str,
        body: bytes,
        headers: dict[str, str] | None = None,
        address: str = "",
    ) -> httpx.Response | None:
        """One call; a wrong answer is noted.  None: no server was there."""
        began = time.monotonic()
        headers = headers or {"content-type": "application/json"}
        headers.pop("content-length", None)
        address = address or draw.choice(self.addresses)
        self.asked += 1
        try:
            answer = await client.request(method, address + target, content=body, headers=headers)
        except httpx.TransportError as error:
            self.unanswered(began, f"{method} {target}: {error!r}")
            await asyncio.sleep(0.2)
            return None
        if answer.status_code == 500:  # its process was killed
            self.unanswered(began, f"{method} {target}: {answer.text}")
            return None
        self.seconds.append(time.monotonic() - began)
        self.statuses[answer.status_code] += 1
        path = target.partition("?")[0]
        allowed = self.documented.get((method, "/".join(path.split("/")[:3])), {404, 405})
        if answer.status_code not in allowed:
            self.wrong.append(f"{method} {target}: {answer.status_code} {answer.text[:300]}")
        elif "cpu_s=" in target and b'"spent":{' in answer.content:
            spent = answer.json()["spent"]
            self.cut_short += 1
            if spent["bound"] == "cpu_s" and spent["used"] > spent["allowed"] + OVER_S:
                self.wrong.append(f"{method} {target}: {spent}")
        elif answer.status_code == 503:
            self.refused += 1
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
        return answer

    def unanswered(self, began: float, told: str) -> None:
        """Count a call that broke off, which is fine only where something was just broken."""
        self.cut_off += 1
        if began > self.broken_until and time.monotonic() > self.broken_until:
            self.lost.append(told)

    async def job(self, client: httpx.AsyncClient, draw: random.Random) -> None:
        """Begin a sweep of two questions, under a key: it is asked again until it is begun."""
        batches = [64 * draw.randint(1, 1000), 64 * draw.randint(1001, 2000)]
        asked = SWEEP | {"axes": {"training.global_batch_size": batches}}
        key = {"content-type": "application/json", "idempotency-key": uuid.uuid4().hex}
        body = json.dumps(asked).encode()
        self.asked_jobs += 1
        while True:
            answer = await self.call(client, draw, "POST", "/v1/sweeps", body, dict(key))
            if answer is not None and answer.status_code in (200, 202):
                self.jobs[answer.json()["id"]] = batches
                return
            await asyncio.sleep(0.5)

    async def breaker(self) -> None:
        """Break one thing after the other."""
        draw = random.Random(0)
        breaks = [
            self.fill_disk, self.kill_process, self.freeze, self.kill_server, self.lock_disk,
            self.restart_database, self.kill_process, self.kill_server,
        ]  # fmt: skip
        number = 0
        while (left := self.ends - time.monotonic()) > 2 * EVERY_S:
            await asyncio.sleep(min(EVERY_S, left))
            self.resident.append(resident_bytes(self.place))
            broken = breaks[number % len(breaks)]
            self.broken_until = time.monotonic() + AWAY_S + _BREAK_S
            await asyncio.to_thread(broken, draw.randrange(2), draw)
            self.broken_until = time.monotonic() + _BREAK_S
            self.broken[broken.__name__] += 1
            number += 1
            if left < 30 * MINUTES and self.old.process.poll() is None:
                await asyncio.to_thread(self.old.stop)
                breaks = [one for other in breaks for one in (self.jump_clock, other)]

    def kill_server(self, which: int, _: random.Random) -> None:
        """It is started again at once."""
        self.servers[which].kill()
        self.servers[which] = self.place.serve(*self.commands[which], at=self.addresses[which])

    def kill_process(self, _: int, draw: random.Random) -> None:
        """One that computes, runs a step or starts others; an earlier version fails the step."""
        own = {server.process.pid for server in self.servers}
        with suppress(OSError):  # it has ended
            others = [
                pid for pid in sorted(set(self.place.processes()) - own)
                if Path(f"/proc/{pid}/cwd").readlink() != self.release.folder
            ]  # fmt: skip
            os.kill(draw.choice(others), signal.SIGKILL)

    def freeze(self, _: int, __: random.Random) -> None:
        """The database answers nobody for a while."""
        with frozen(self.postgres):
            time.sleep(AWAY_S)

    def restart_database(self, _: int, __: random.Random) -> None:
        """It is away for a while."""
        self.postgres.stop()
        time.sleep(AWAY_S)
        self.postgres.start(*self.clocks[0].command)

    def jump_clock(self, _: int, draw: random.Random) -> None:
        """The clock of the database or of a server is wrong for a while."""
        clock = draw.choice(self.clocks)
        clock.jump(draw.choice(JUMPS_S))
        time.sleep(AWAY_S)
        clock.jump(0)

    def fill_disk(self, which: int, _: random.Random) -> None:
        """The data folder of a server is full for a while."""
        ballast = Path(f"/proc/{self.servers[which].process.pid}/root{self.place.folder}/ballast")
        fill(ballast)
        time.sleep(AWAY_S)
        ballast.unlink()

    def lock_disk(self, which: int, _: random.Random) -> None:
        """It can only be read for a while."""
        for mode in ("ro", "rw"):
            subprocess.run(
                ["nsenter", "-t", str(self.servers[which].process.pid), "-U", "-m",
                 "--preserve-credentials", "mount", "-o", f"remount,{mode}", self.place.folder],
                check=True,
            )  # fmt: skip
            time.sleep(AWAY_S if mode == "ro" else 0.0)

    def table(self, ends: dict[str, dict[str, Any]], listed: set[str], twice: set[str]) -> str:
        """What was asked, and what came of it."""
        done = {id for id, job in ends.items() if job.get("state") == "succeeded"}
        rows = {
            "calls": (
                self.asked, len(self.seconds) - self.refused, self.refused, self.cut_off,
                len(self.lost), 0, len(self.wrong),
            ),
            "jobs": (
                self.asked_jobs, len(done), sum(map(no_disk, ends.values())),
                self.asked_jobs - len(self.jobs),
                sum(not no_disk(job) for id, job in ends.items() if id not in done),
                len(listed - set(self.jobs)) + len(twice),
                sum(not right(job, self.jobs[id]) for id, job in ends.items() if id in done),
            ),
        }  # fmt: skip
        names = ("asked", "answered", "refused", "cut off", "lost", "doubled", "wrong")
        lines = ["".join(f"{word:>10}" for word in ("", *names))]
        lines += ["".join(f"{word:>10}" for word in (name, *row)) for name, row in rows.items()]
        return "\n".join(lines)

    async def run(self) -> None:
        """All of it."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with (
            httpx.AsyncClient(timeout=300, limits=limits) as client,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self.breaker())
            for number in range(CALLERS):
                tasks.create_task(self.caller(number, client))


@pytest.fixture
def clocks(own_postgres: Postgres, tmp_path: Path) -> list[JumpingClock]:
    own = [tmp_path / "first", tmp_path / "second"]
    for folder in own:
        folder.mkdir()
    return [JumpingClock(folder) for folder in (own_postgres.folder, *own)]


@pytest.fixture
def place(own_postgres: Postgres, clocks: list[JumpingClock], tmp_path: Path) -> Iterator[Place]:
    own_postgres.stop()
    own_postgres.start(*clocks[0].command)
    (tmp_path / "data").mkdir()
    place = Place(
        tmp_path / "data", own_postgres.database(), max_queued_jobs=10_000, sweep_step_questions=1,
        max_concurrency=2, job_lease_s=10, max_job_attempts=100,
    )  # fmt: skip
    yield place
    place.clear()


@pytest.mark.exhaustive
def test_soak(
    place: Place, own_postgres: Postgres, clocks: list[JumpingClock], tmp_path: Path
) -> None:
    twice: set[str] = set()
    over = threading.Event()
    watching = threading.Thread(target=watch, args=(place, twice, over))
    watching.start()
    try:
        soak = Soak(place, own_postgres, clocks, Release(EARLIER, tmp_path / "release"))
        asyncio.run(soak.run())
        ordered = sorted(soak.seconds)
        print(
            f"\n{dict(soak.statuses)}; broken {dict(soak.broken)}; "
            f"{soak.cut_short} questions stopped at their budget; median "
            f"{statistics.median(ordered):.3f} s, 95 % {ordered[int(0.95 * len(ordered))]:.3f} s, "
            f"longest {ordered[-1]:.1f} s; MiB before each break "
            f"{[one >> 20 for one in soak.resident]}"
        )
        ends = dict[str, dict[str, Any]]()
        for id in soak.jobs:
            ends[id] = eventually(lambda id=id: ended(soak.servers, id), f"the end of {id}")
        listed = all_jobs(soak.servers[0])
        print(soak.table(ends, listed, twice))
        assert not soak.wrong, f"{len(soak.wrong)}: {soak.wrong[:20]}"
        assert not soak.lost, f"{len(soak.lost)}: {soak.lost[:20]}"
        others = [job for job in ends.values() if job["state"] != "succeeded" and not no_disk(job)]
        assert not others, (len(others), [job["error"] for job in others[:3]])
        wrong = [
            job["result"]["sweep"]["rows"] for id, job in ends.items()
            if job["state"] == "succeeded" and not right(job, soak.jobs[id])
        ]  # fmt: skip
        assert not wrong, (len(wrong), wrong[:3])
        assert listed == set(soak.jobs), "a job is doubled or lost"
        assert twice == set()
        assert soak.cut_short > MINUTES, "questions shall be drawn that their budget stops"
        half = len(soak.resident) // 2
        if half > 20:
            before, after = soak.resident[:half], soak.resident[half:]
            assert statistics.median(after) <= 1.05 * statistics.median(before), soak.resident
    finally:
        over.set()
        watching.join()


def right(job: dict[str, Any], batches: list[int]) -> bool:
    """Whether a sweep has an answer for each of its batches."""
    rows = job["result"]["sweep"]["rows"]
    asked = [row["training.global_batch_size"] for row in rows]
    return asked == batches and {row["outcome"] for row in rows} == {"fits"}


def no_disk(job: dict[str, Any]) -> bool:
    """Whether a job failed because the disk of its server was full or read-only, and says so."""
    error = job["error"] or {"type": "", "detail": ""}
    reasons = tuple(os.strerror(number) for number in FULL)
    return error["type"] == "/problems/cannot-write" and error["detail"].endswith(reasons)


def all_jobs(server: Server) -> set[str]:
    """The ids of all jobs that the service lists."""
    found, after = set[str](), ""
    while True:
        page = server.http.get(f"/v1/jobs?limit=100{after}").json()
        found |= {one["id"] for one in page["rows"]}
        if not page.get("next"):
            return found
        after = f"&cursor={page['next']}"


def ended(servers: list[Server], id: str) -> dict[str, Any] | None:
    """A job once it is over, by either server."""
    for server in servers:
        with suppress(httpx.TransportError):
            answer = server.http.get(f"/v1/sweeps/{id}")
            assert answer.status_code in (200, 503), answer.text
            now: dict[str, Any] = answer.json()
            if now.get("state") in OVER:
                return now
    return None
