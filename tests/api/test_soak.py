"""Half an hour of mixed calls, jobs, killed servers and a database that goes away twice.

`pytest -n 0 -s -m exhaustive tests/api/test_soak.py`; PLANNER_SOAK_MINUTES=5 for a shorter one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.api.test_drawn_questions import explosive
from tests.api.test_jobs_cut_off import watch
from tests.benchmarks.test_service_load import SMALL, mixed, resident_bytes, statuses_of
from tests.fixtures.job_server import OVER, SWEEP, Place, Server, eventually
from tests.fixtures.postgres import Postgres, postgres

__all__ = ["postgres"]

MINUTES = float(os.environ.get("PLANNER_SOAK_MINUTES", "30"))
CALLERS = 64
AWAY_S = 10.0  # that the database is stopped for
BUDGET_S, MEMORY_MIB = 5.0, 1024
OVER_S = 2.0  # of a core that a question may take beyond its budget
_BREAK_S = 20.0  # after a kill or a stop, in which a call may go unanswered


class Soak:
    """What was asked, answered and begun."""

    def __init__(self, place: Place, postgres: Postgres) -> None:
        self.place, self.postgres = place, postgres
        self.servers = [place.serve(), place.serve()]
        self.addresses = [str(server.http.base_url).rstrip("/") for server in self.servers]
        self.documented = statuses_of(self.servers[0].http.get("/openapi.json").json())
        self.ends = time.monotonic() + 60 * MINUTES
        self.broken_until = 0.0
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.resident: list[int] = []
        self.cut_short = 0
        self.jobs: set[str] = set()
        self.wrong: list[str] = []

    async def caller(self, number: int, client: httpx.AsyncClient) -> None:
        """Ask one thing after the other, of either server."""
        draw, asked = random.Random(number), mixed(number, 10**9)
        while time.monotonic() < self.ends:
            kind = draw.random()
            if number == 0:
                await self.job(client, draw)
                await asyncio.sleep(2.0)
            elif kind < 0.005:
                path, question = explosive(draw)
                target = f"/v1/{path}?cpu_s={BUDGET_S}&memory_mib={MEMORY_MIB}"
                await self.call(client, draw, "POST", target, json.dumps(question).encode())
            elif kind < 0.03:
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
    ) -> httpx.Response | None:
        """One call; a wrong answer is noted.  None: no server was there."""
        began = time.monotonic()
        headers = headers or {"content-type": "application/json"}
        headers.pop("content-length", None)
        address = draw.choice(self.addresses)
        try:
            answer = await client.request(method, address + target, content=body, headers=headers)
        except httpx.TransportError as error:
            if began > self.broken_until and time.monotonic() > self.broken_until:
                self.wrong.append(f"{method} {target}: {error!r}")
            await asyncio.sleep(0.2)
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
            await asyncio.sleep(float(answer.headers.get("retry-after", 1)))
        return answer

    async def job(self, client: httpx.AsyncClient, draw: random.Random) -> None:
        """Begin a sweep of two questions."""
        batches = [64 * draw.randint(1, 1000), 64 * draw.randint(1001, 2000)]
        asked = SWEEP | {"axes": {"training.global_batch_size": batches}}
        body = json.dumps(asked).encode()
        answer = await self.call(client, draw, "POST", "/v1/sweeps", body)
        if answer is not None and answer.status_code == 202:
            self.jobs.add(answer.json()["id"])

    async def breaker(self) -> None:
        """Kill one server each minute; stop the database after a third and after two thirds."""
        stops = [self.ends - 60 * MINUTES * part for part in (2 / 3, 1 / 3)]
        kills = 0
        while (left := self.ends - time.monotonic()) > 70:
            await asyncio.sleep(min(60.0, left))
            self.resident.append(resident_bytes(self.place))
            which = kills % 2
            kills += 1
            self.broken_until = time.monotonic() + _BREAK_S
            await asyncio.to_thread(self.servers[which].kill)
            address = self.addresses[which]
            self.servers[which] = await asyncio.to_thread(self.place.serve, at=address)
            if stops and time.monotonic() > stops[0]:
                stops.pop(0)
                self.broken_until = time.monotonic() + AWAY_S + _BREAK_S
                await asyncio.to_thread(self.postgres.stop)
                await asyncio.sleep(AWAY_S)
                await asyncio.to_thread(self.postgres.start)

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
def place(postgres: Postgres, tmp_path: Path) -> Iterator[Place]:
    place = Place(
        tmp_path / "data", postgres.database(), max_queued_jobs=10_000, sweep_step_questions=1,
        max_concurrency=2, job_lease_s=10, max_job_attempts=100,
    )  # fmt: skip
    yield place
    place.clear()


@pytest.mark.exhaustive
def test_soak(place: Place, postgres: Postgres) -> None:
    twice: set[str] = set()
    over = threading.Event()
    watching = threading.Thread(target=watch, args=(place, twice, over))
    watching.start()
    try:
        soak = Soak(place, postgres)
        asyncio.run(soak.run())
        ordered = sorted(soak.seconds)
        print(
            f"\n{len(ordered)} calls, {dict(soak.statuses)}, {len(soak.jobs)} jobs, "
            f"{soak.cut_short} questions stopped at their budget; median "
            f"{statistics.median(ordered):.3f} s, 95 % {ordered[int(0.95 * len(ordered))]:.3f} s, "
            f"longest {ordered[-1]:.1f} s; MiB before each kill "
            f"{[one >> 20 for one in soak.resident]}"
        )
        assert not soak.wrong, f"{len(soak.wrong)}: {soak.wrong[:20]}"
        ends = dict[str, str]()
        for id in soak.jobs:
            ends[id] = eventually(lambda id=id: ended(soak.servers, id), f"the end of {id}")
        assert set(ends.values()) <= {"succeeded"}, Counter(ends.values())
        assert twice == set()
        assert soak.cut_short > MINUTES, "questions shall be drawn that their budget stops"
        half = len(soak.resident) // 2
        if half > 4:
            before, after = soak.resident[:half], soak.resident[half:]
            assert statistics.median(after) <= 1.05 * statistics.median(before), soak.resident
    finally:
        over.set()
        watching.join()


def ended(servers: list[Server], id: str) -> str | None:
    """The state of a job that is over, by either server."""
    for server in servers:
        with suppress(httpx.TransportError):
            answer = server.http.get(f"/v1/sweeps/{id}")
            assert answer.status_code in (200, 503), answer.text
            now: Any = answer.json()
            if now.get("state") in OVER:
                return str(now["state"])
    return None
