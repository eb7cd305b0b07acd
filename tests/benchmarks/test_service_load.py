"""What the service bears on this machine, over loopback.

Run with `pytest tests/benchmarks/test_service_load.py -n 0 -s` on a machine that does nothing else;
with `-m exhaustive` the long run with junk as well.  Nothing here fails by the clock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from api.budget import own_cpu_s
from tests.fixtures.job_server import Place, Server, eventually
from tests.fixtures.load import Answers, ask, call, post

MODELS = ("llama-3.1-8b", "llama-2-7b", "gpt2", "mistral-7b", "qwen2.5-7b")
SEARCH = {
    "model": "gpt3-175b",
    "cluster": "128x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 1536},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("load") / "data"
    folder.mkdir()
    place = Place(folder)
    yield place
    place.clear()


@pytest.fixture(scope="module")
def server(place: Place) -> Server:
    server = place.serve()
    for document in (SEARCH, SEARCH | {"model": "gpt2"}):  # what the first callers wait for
        server.http.post("/v1/plans", json=document)
    eventually(lambda: at_rest(place), "an idle service")
    return server


def at_rest(place: Place) -> bool:
    """Whether nothing is computed any more, such as what searches will need."""
    before = sum(map(own_cpu_s, place.processes()))
    time.sleep(1.0)
    return sum(map(own_cpu_s, place.processes())) - before < 0.1


def estimates() -> Iterator[bytes]:
    """Estimates of many plans, none the same as the one before."""
    for batch, model, tp in itertools.product(range(64, 1 << 20, 64), MODELS, (1, 2, 4)):
        yield post(
            "/v1/estimates",
            {
                "model": model,
                "cluster": "2x8xh100-sxm",
                "training": {"seq_length": 1024, "global_batch_size": batch},
                "plan": {"tp": tp},
            },
        )


def measured(
    benchmark: BenchmarkFixture,
    place: Place,
    server: Server,
    calls: Iterator[bytes],
    connections: int,
) -> Answers:
    """Answers to these calls, their figures said and kept.

    Beside them milliseconds of a core per call: of all processes, and of that which speaks HTTP.
    Other load of the machine changes these less than the calls a second.
    """
    address = str(server.http.base_url).rstrip("/")
    before = {pid: own_cpu_s(pid) for pid in place.processes()}
    answers = benchmark.pedantic(lambda: asyncio.run(ask(address, calls, connections)), rounds=1)
    spent = {pid: own_cpu_s(pid) - before.get(pid, 0.0) for pid in place.processes()}
    each = 1e3 / len(answers.seconds)
    figures = answers.figures() | {
        "cpu_ms": round(each * sum(spent.values()), 2),
        "http_cpu_ms": round(each * spent[server.process.pid], 2),
    }
    benchmark.extra_info.update(figures)
    print("\n", json.dumps(figures | {"load_before": os.getloadavg()[0]}))
    assert {status for _, status in answers.statuses} == {200}
    return answers  # type: ignore[no-any-return]


def count(benchmark: BenchmarkFixture, many: int, few: int) -> int:
    """So many calls; few where pytest-xdist has switched benchmarks off."""
    return few if benchmark.disabled else many


def test_estimates(benchmark: BenchmarkFixture, place: Place, server: Server) -> None:
    """From 16 connections at a time."""
    calls = itertools.islice(estimates(), count(benchmark, 4000, 64))
    measured(benchmark, place, server, calls, 16)


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [2, 4])
def test_estimates_of_workers(benchmark: BenchmarkFixture, place: Place, workers: int) -> None:
    """The same, where several processes speak HTTP."""
    server = place.serve(workers=workers)
    asked = estimates()
    address = str(server.http.base_url).rstrip("/")
    asyncio.run(ask(address, itertools.islice(asked, 256), 64))  # all of them are there
    measured(benchmark, place, server, itertools.islice(asked, count(benchmark, 4000, 64)), 16)
    server.stop()


def test_estimates_beside_searches(benchmark: BenchmarkFixture, server: Server) -> None:
    """The same, while two searches run that take minutes."""
    address = str(server.http.base_url).rstrip("/")
    calls = itertools.islice(estimates(), count(benchmark, 2000, 64))

    async def beside() -> Answers:
        long = [post("/v1/sensitivities", SEARCH | {"search": {"top_k": k}}) for k in (3, 4)]
        running = [asyncio.create_task(ask(address, [one], 1)) for one in long]
        answers = await ask(address, calls, 16)
        for task in running:
            task.cancel()
        return answers

    answers = benchmark.pedantic(lambda: asyncio.run(beside()), rounds=1)
    benchmark.extra_info.update(answers.figures())
    print("\n", json.dumps(answers.figures()))
    assert {status for _, status in answers.statuses} == {200}


@pytest.mark.parametrize("framework", [None, "megatron"], ids=["any framework", "megatron"])
def test_searches(
    benchmark: BenchmarkFixture, place: Place, server: Server, framework: str | None
) -> None:
    """GPT-3 175B on 1,024 accelerators, one after the other, none asked before."""
    batches = range(1024, 1024 + 256 * count(benchmark, 20, 1), 256)
    search = {"framework": framework} if framework else {}
    calls = (
        post(
            "/v1/plans",
            SEARCH
            | {"training": {"seq_length": 2048, "global_batch_size": batch}, "search": search},
        )
        for batch in batches
    )
    measured(benchmark, place, server, calls, 1)


@pytest.mark.parametrize("how", ["post", "get", "get-gzip"])
def test_known_plans(benchmark: BenchmarkFixture, place: Place, server: Server, how: str) -> None:
    """A plan that is kept, asked again or by its id, one after the other."""
    known = server.http.post("/v1/plans", json=SEARCH).json()["links"]["self"]
    packed = ["Accept-Encoding: gzip"] if how == "get-gzip" else []
    again = post("/v1/plans", SEARCH) if how == "post" else call("GET", known, b"", *packed)
    measured(benchmark, place, server, itertools.repeat(again, count(benchmark, 1000, 3)), 1)


SMALL = {
    "model": "gpt2",
    "cluster": "1x4xh100-sxm",
    "training": {"seq_length": 1024, "global_batch_size": 64},
}
TOO_DEEP = b"[" * 5_000 + b"]" * 5_000
JUNK = (
    post("/v1/estimates", {"model": "lama"}),
    post("/v1/plans", []),
    post("/v1/plans", SMALL | {"cluster": {"nodes": -1}}),
    post("/v1/lints", {"files": {"run.sh": "torchrun x.py\x00"}, "cluster": "1x8xh100-sxm"}),
    call("POST", "/v1/plans", b"{", "content-type: application/json"),
    call("POST", "/v1/plans", b"{}", "content-type: text/plain"),
    call("POST", "/v1/plans", TOO_DEEP, "content-type: application/json"),
    call("POST", "/v1/estimates", b"\xff\xfe", "content-type: application/json"),
    call("GET", "/v1/plans/pl_00"),
    call("GET", "/v1/catalog/planets"),
    call("GET", "/%2e%2e/%2e%2e/etc/passwd"),
    call("DELETE", "/v1/estimates"),
    call("POST", "/v1/timelines", b'{"stages": 1e9}', "content-type: application/json"),
    call("GET", "/healthz", b"", "x-request-id: " + "x" * 500),
)
GOOD = (
    post("/v1/plans", SMALL),
    post("/v1/explanations", SMALL | {"plan": {"tp": 1}}),
    post("/v1/ranks", SMALL | {"plan": {"tp": 2}}),
    post("/v1/bundles", SMALL | {"plan": {"tp": 1}}),
    call("GET", "/v1/catalog/models"),
    call("GET", "/v1/info"),
    call("GET", "/healthz"),
    call("GET", "/"),
    call("GET", "/openapi.json"),
)


def mixed(seed: int, calls: int) -> Iterator[bytes]:
    """Estimates for the most part, other questions, and junk; the same for the same seed."""
    draw, asked = random.Random(seed), estimates()
    for _ in range(calls):
        kind = draw.random()
        yield next(asked) if kind < 0.6 else draw.choice(GOOD if kind < 0.8 else JUNK)


@pytest.mark.exhaustive
def test_ten_thousand_mixed_calls(place: Place, server: Server) -> None:
    """From 200 connections: only documented answers, and no memory that stays."""
    address = str(server.http.base_url).rstrip("/")
    documented = statuses_of(server.http.get("/openapi.json").json())
    resident = []
    for seed in (0, 1):
        answers = asyncio.run(ask(address, mixed(seed, 5_000), 200))
        assert len(answers.statuses) == 5_000
        for one, status in answers.statuses:
            method, target, _ = one.decode(errors="replace").split(" ", 2)
            allowed = documented.get((method, "/".join(target.split("/")[:3])), {404, 405})
            assert status in allowed, (one[:300], status)
        resident.append(resident_bytes(place))
        print("\n", json.dumps(answers.figures() | {"resident_mib": resident[-1] >> 20}))
    assert resident[1] <= 1.05 * resident[0]


def statuses_of(openapi: dict[str, Any]) -> dict[tuple[str, str], set[int]]:
    """By method and the first two parts of an address: the statuses its document names."""
    found: dict[tuple[str, str], set[int]] = {}
    for path, methods in openapi["paths"].items():
        for method, entry in methods.items():
            key = method.upper(), "/".join(path.split("/")[:3])
            found.setdefault(key, set()).update(map(int, entry["responses"]))
    return found | {("GET", "/"): {200}, ("GET", "/openapi.json"): {200}}


def resident_bytes(place: Place) -> int:
    """Memory that all processes of the service have, shared pages once for each."""
    total = 0
    for pid in place.processes():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:  # it has ended
            continue
        found = re.search(r"VmRSS:\s*(\d+)", status)
        total += int(found[1]) << 10 if found else 0
    return total
