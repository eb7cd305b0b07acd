"""The speed of the service beside that of a bare echo: `python -m tools.service_speed`.

Starts `planner serve` and a FastAPI application that sends back what it was sent, one after the
other, and asks both over 16 connections; the caller is a process of its own on the same cores.
Prints calls per second, their latency and milliseconds of a core, the ratio to the echo, and the
cores that 10,000 calls a second need.  The exit code is 1 where a bound below is not met.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI

from api.budget import own_cpu_s
from tests.fixtures.load import ask, post

CONNECTIONS = 16
CALLS, FIRST_CALLS = 4000, 400
LEAST_OF_ECHO, LEAST_DIFFERENT_PER_S, MOST_P95_MS = 0.25, 500.0, 30.0
PLANNED_PER_S, PEAK = 10_000, 1.5  # half as much again for peaks
ROOT = Path(__file__).parents[1]


def question(seq_length: int = 8192, batch: int = 1024, tp: int = 4) -> dict[str, Any]:
    """The README's question, about one plan."""
    return {
        "model": "llama-3.1-70b",
        "cluster": "8x8xh100-sxm",
        "training": {"seq_length": seq_length, "global_batch_size": batch},
        "plan": {"tp": tp, "sequence_parallel": True, "pp": 4},
    }


def other_batches() -> Iterator[bytes]:
    """Questions that differ in the batch and the plan."""
    for batch, tp in itertools.product(range(1024, 1 << 20, 256), (2, 4, 8)):
        yield post("/v1/estimates", question(batch=batch, tp=tp))


def different() -> Iterator[bytes]:
    """Questions that differ in the length of sequences too, so that no price is known of any."""
    lengths = itertools.cycle(range(8192, 1 << 20, 512))
    for batch, tp in itertools.product(range(1024, 1 << 20, 256), (2, 4, 8)):
        yield post("/v1/estimates", question(next(lengths), batch, tp))


def echo() -> FastAPI:
    """The bare application."""
    app = FastAPI()

    async def back(document: Annotated[Any, Body()]) -> Any:
        return document

    app.post("/echo")(back)
    return app


SERVICE = [sys.executable, "-m", "planner.cli", "serve", "--port", "0"]
ECHO = [
    sys.executable, "-m", "uvicorn", "tools.service_speed:echo", "--factory", "--port", "0",
    "--no-access-log", "--http", "h11",
]  # fmt: skip


@contextmanager
def started(command: list[str]) -> Iterator[tuple[str, int]]:
    """The address of a server of one's own, and its process."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"PLANNER_DATA_DIR": folder, "PLANNER_WARM_UP": "0", "PLANNER_MAX_RUNS": "0"}
        process = subprocess.Popen(
            command, env={**os.environ, **own}, cwd=ROOT, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            words = itertools.chain.from_iterable(line.split() for line in process.stdout)
            address = next(word for word in words if word.startswith("http://"))
            # What it says later is read too, or it would wait for a reader.
            reader = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
            yield address, process.pid
        finally:
            process.terminate()
            process.wait()
            reader.wait()


def processes(pid: int) -> list[int]:
    """A process and all that it has started."""
    found = [pid]
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += processes(int(child))
    return found


def measured(command: list[str], calls: Callable[[], Iterator[bytes]]) -> dict[str, float]:
    """Calls per second, their latency and milliseconds of a core, of all processes of a server."""
    with started(command) as (address, pid):
        left = calls()
        asyncio.run(ask(address, islice(left, FIRST_CALLS), CONNECTIONS))
        before = {one: own_cpu_s(one) for one in processes(pid)}
        answers = asyncio.run(ask(address, islice(left, CALLS), CONNECTIONS))
        spent_s = {one: own_cpu_s(one) - before.get(one, 0.0) for one in processes(pid)}
    statuses = {status for _, status in answers.statuses}
    assert statuses == {200}, statuses
    each_ms = 1e3 / CALLS
    return answers.figures() | {
        "cpu_ms": each_ms * sum(spent_s.values()),
        "http_cpu_ms": each_ms * spent_s[pid],
    }


def main() -> int:
    """Measure, print and judge."""
    same = post("/v1/estimates", question())
    found = {
        "echo": measured(ECHO, lambda: itertools.repeat(same.replace(b"/v1/estimates", b"/echo"))),
        "same estimate": measured(SERVICE, lambda: itertools.repeat(same)),
        "other batches": measured(SERVICE, other_batches),
        "different estimates": measured(SERVICE, different),
    }
    echo_per_s = found["echo"]["calls_per_s"]
    print(f"{os.cpu_count()} cores, {CONNECTIONS} connections, {CALLS:,} calls of each kind")
    print(f"{'':20}{'calls/s':>9}{'of echo':>9}{'p50 ms':>8}{'p95 ms':>8}{'cpu ms':>8}{'http':>7}")
    for name, own in found.items():
        print(
            f"{name:20}{own['calls_per_s']:>9,.0f}{own['calls_per_s'] / echo_per_s:>9.2f}"
            f"{own['p50_ms']:>8.1f}{own['p95_ms']:>8.1f}{own['cpu_ms']:>8.2f}"
            f"{own['http_cpu_ms']:>7.2f}"
        )
    for name, own in islice(found.items(), 1, None):
        cores = PLANNED_PER_S * own["cpu_ms"] / 1e3
        print(f"{PLANNED_PER_S:,}/s of {name}: {cores:.0f} cores, {PEAK * cores:.0f} at peaks")
    return judged(found)


def judged(found: dict[str, dict[str, float]]) -> int:
    """The exit code by the bounds, each printed with what was measured."""
    echo_per_s, own = found["echo"]["calls_per_s"], found["different estimates"]
    ratio = found["same estimate"]["calls_per_s"] / echo_per_s
    p95_ms = max(own["p95_ms"], found["same estimate"]["p95_ms"])
    bounds = (
        (f"the same estimate: {ratio:.2f} of the echo", f"{LEAST_OF_ECHO}", ratio >= LEAST_OF_ECHO),
        (
            f"different estimates: {own['calls_per_s']:,.0f} a second",
            f"{LEAST_DIFFERENT_PER_S:,.0f}", own["calls_per_s"] >= LEAST_DIFFERENT_PER_S,
        ),
        (f"95th percentile: {p95_ms:.1f} ms", f"{MOST_P95_MS:g}", p95_ms <= MOST_P95_MS),
    )  # fmt: skip
    for said, bound, met in bounds:
        print(f"{'met    ' if met else 'NOT met'} {said} (bound: {bound})")
    return 0 if all(met for *_, met in bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
