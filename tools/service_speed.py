"""The speed of the service beside that of a bare echo: `python -m tools.service_speed`.

Starts `planner serve` and a FastAPI application that sends back what it was sent, and asks both
over 16 connections; the caller is a process of its own on the same cores.
Prints calls per second, their latency and milliseconds of a core, the ratio to the echo, and the
cores that 10,000 calls a second need.  The exit code is 1 where a bound below is not met.

Kinds of questions are asked in short turns, one after the other, and the median turn of each
counts, since other programs of the machine take more of some turns than of others.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

from fastapi import Body, FastAPI

import planner
from api.budget import own_cpu_s
from cost_models.catalog.models import models
from tests.fixtures.load import ask, post

CONNECTIONS = 16
TURNS, CALLS, FIRST_CALLS = 7, 600, 400
BATCHES = range(1024, 1 << 20, 256)
DIFFERENT = "other lengths", "other models"
LEAST_OF_ECHO, LEAST_DIFFERENT_PER_S, MOST_P95_MS = 0.25, 500.0, 30.0
MOST_MODELS_CPU_MS = 2.0
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
    for batch, tp in itertools.product(BATCHES, (2, 4, 8)):
        yield post("/v1/estimates", question(batch=batch, tp=tp))


def other_lengths() -> Iterator[bytes]:
    """Questions that differ in the length of sequences too, so that no price is known of any."""
    lengths = itertools.cycle(range(8192, 1 << 20, 512))
    for batch, tp in itertools.product(BATCHES, (2, 4, 8)):
        yield post("/v1/estimates", question(next(lengths), batch, tp))


def other_models() -> Iterator[bytes]:
    """Questions about each preset in turn that such a plan can be of, of other batches."""
    asked = [question(512) | {"model": preset.id} for preset in models()]
    legal = [one for one in asked if _is_legal(one)]
    for batch, one in itertools.product(BATCHES, legal):
        training = one["training"] | {"global_batch_size": batch}
        yield post("/v1/estimates", one | {"training": training})


def _is_legal(document: dict[str, Any]) -> bool:
    try:
        planner.estimate(document)
    except ValueError:
        return False
    return True


def new_models() -> Iterator[bytes]:
    """Questions about models that nobody asked before: each of another width."""
    for width in itertools.count(8192, 128):
        model = {
            "name": f"own-{width}", "num_layers": 32, "hidden_size": 4096, "vocab_size": 128_256,
            "num_attention_heads": 32, "ffn_hidden_size": width,
        }  # fmt: skip
        yield post("/v1/estimates", question() | {"model": model})


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


class Asked(NamedTuple):
    """Calls of one kind, to the server that answers them."""

    address: str
    pid: int
    calls: Iterator[bytes]

    def turn(self, count: int) -> dict[str, float]:
        """Calls per second, their latency and milliseconds of a core, of all its processes."""
        before = {one: own_cpu_s(one) for one in processes(self.pid)}
        answers = asyncio.run(ask(self.address, islice(self.calls, count), CONNECTIONS))
        spent_s = {one: own_cpu_s(one) - before.get(one, 0.0) for one in processes(self.pid)}
        statuses = {status for _, status in answers.statuses}
        assert statuses == {200}, statuses
        return answers.figures() | {
            "cpu_ms": 1e3 * sum(spent_s.values()) / count,
            "http_cpu_ms": 1e3 * spent_s[self.pid] / count,
        }


def measured() -> dict[str, dict[str, float]]:
    """The median turn of each kind; `of_echo`: beside the turn of the echo before it."""
    same = post("/v1/estimates", question())
    back = itertools.repeat(same.replace(b"/v1/estimates", b"/echo"))
    with started(ECHO) as bare, started(SERVICE) as service:
        echo = {"echo": Asked(*bare, back)}
        known = {
            "same estimate": Asked(*service, itertools.repeat(same)),
            "other batches": Asked(*service, other_batches()),
            "other lengths": Asked(*service, other_lengths()),
            "other models": Asked(*service, other_models()),
        }
        # New models come last: they would drive out what is kept of the others.
        new = {"new models": Asked(*service, new_models())}
        first = medians(echo | known)
        return medians(echo | new) | first


def medians(kinds: dict[str, Asked]) -> dict[str, dict[str, float]]:
    """The median turn of each kind; the first is the echo."""
    for asked in kinds.values():
        asked.turn(FIRST_CALLS)
    turns = [{name: asked.turn(CALLS) for name, asked in kinds.items()} for _ in range(TURNS)]
    for each in turns:
        for own in each.values():
            own["of_echo"] = own["calls_per_s"] / each["echo"]["calls_per_s"]
    return {
        name: {what: median(each[name][what] for each in turns) for what in turns[0][name]}
        for name in kinds
    }


def main() -> int:
    """Measure, print and judge."""
    found = measured()
    print(f"{os.cpu_count()} cores, {CONNECTIONS} connections, {TURNS} turns of {CALLS} calls each")
    print(f"{'':16}{'calls/s':>9}{'of echo':>9}{'p50 ms':>8}{'p95 ms':>8}{'cpu ms':>8}{'http':>7}")
    for name, own in found.items():
        print(
            f"{name:16}{own['calls_per_s']:>9,.0f}{own['of_echo']:>9.2f}{own['p50_ms']:>8.1f}"
            f"{own['p95_ms']:>8.1f}{own['cpu_ms']:>8.2f}{own['http_cpu_ms']:>7.2f}"
        )
    for name, own in islice(found.items(), 1, None):
        cores = PLANNED_PER_S * own["cpu_ms"] / 1e3
        print(f"{PLANNED_PER_S:,}/s of {name}: {cores:.0f} cores, {PEAK * cores:.0f} at peaks")
    return judged(found)


def judged(found: dict[str, dict[str, float]]) -> int:
    """The exit code by the bounds, each printed with what was measured."""
    same, lengths, models = (found[name] for name in ("same estimate", *DIFFERENT))
    p95_ms = max(same["p95_ms"], lengths["p95_ms"])
    bounds = (
        (f"the same estimate: {same['of_echo']:.2f} of the echo", f"{LEAST_OF_ECHO}",
         same["of_echo"] >= LEAST_OF_ECHO),
        (f"other lengths: {lengths['calls_per_s']:,.0f} a second", f"{LEAST_DIFFERENT_PER_S:,.0f}",
         lengths["calls_per_s"] >= LEAST_DIFFERENT_PER_S),
        (f"95th percentile: {p95_ms:.1f} ms", f"{MOST_P95_MS:g}", p95_ms <= MOST_P95_MS),
        (f"other models: {models['cpu_ms']:.2f} ms of a core", f"{MOST_MODELS_CPU_MS:g}",
         models["cpu_ms"] <= MOST_MODELS_CPU_MS),
    )  # fmt: skip
    for said, bound, met in bounds:
        print(f"{'met    ' if met else 'NOT met'} {said} (bound: {bound})")
    return 0 if all(met for *_, met in bounds) else 1


if __name__ == "__main__":
    sys.exit(main())
