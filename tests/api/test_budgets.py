"""What one question may use, and who gets the next place."""

from __future__ import annotations

import http.client
import json
import os
import time
from typing import Any

import anyio
import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.budget import Budget, SearchMonitor, Spent, own_memory_bytes
from api.fair_limit import FairLimit
from api.pool import Pool
from api.problems import Refused
from api.settings import Settings
from cost_models.catalog import models
from planner.progress import Step
from tests.fixtures.service import listening, serving
from tests.planner.inputs.requests.test_parser import ASKED

DEEP = models.model("llama-3.1-8b").model_dump(mode="json") | {"name": "deep", "num_layers": 10_000}
EXPLOSIVE: dict[str, Any] = {
    "model": DEEP,
    "cluster": "128x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 1024},
    "search": {"framework": "megatron"},
}
# Nothing fits, which is known after all of them.
HOPELESS = EXPLOSIVE | {"cluster": "16x8xh100-sxm"}
# A million actions and more.
LONG_PIPELINE: dict[str, Any] = {
    "model": "gpt3-175b",
    "cluster": "48x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 3840},
    "plan": {"tp": 8, "pp": 48},
}
SMALL = {
    **ASKED,
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "search": {"top_k": 9, "framework": "megatron"},
}


@pytest.mark.slow
def test_a_question_ends_at_its_budget_and_says_what_to_bound() -> None:
    with serving(Settings(max_concurrency=1)) as client:
        client.post("/v1/plans", json=SMALL)  # the process is there
        answer = client.post("/v1/plans?cpu_s=0.05", json=HOPELESS)
        document = answer.json()
        assert (answer.status_code, document["type"]) == (422, "/problems/over-budget")
        assert document["spent"]["bound"] == "cpu_s"
        # A search stops at half of its budget; what is not one of its steps, at the whole.
        assert document["spent"]["allowed"] == 0.05 < 2 * document["spent"]["used"]
        assert "search.limits" in document["detail"]
        memory = client.post("/v1/plans?memory_mib=64", json=HOPELESS).json()
        assert memory["spent"]["bound"] == "memory_mib"
        assert client.post("/v1/plans", json=SMALL).status_code == 200


@pytest.mark.slow
def test_what_a_call_states_over_the_bound_of_the_service_does_not_count() -> None:
    with serving(Settings(max_question_cpu_s=0.3, max_concurrency=1)) as client:
        most = client.post("/v1/plans?cpu_s=500", json=HOPELESS).json()
        assert (most["spent"]["bound"], most["spent"]["allowed"]) == ("cpu_s", 0.3)


def test_a_search_is_told_to_stop_at_its_candidates_or_at_half_of_its_seconds() -> None:
    """The other half is for explaining what it has found."""
    shown: list[Step] = []
    monitor = SearchMonitor(Budget(cpu_s=1e9, memory_bytes=1 << 40, candidates=10), shown.append)
    for done, enough in ((9, False), (10, True)):
        monitor.show(Step(done, 100))
        assert monitor.enough() is enough
    assert monitor.spent == Spent("candidates", 10, 10)
    assert [step.done for step in shown] == [9, 10]
    for cpu_s, enough in ((1.0, False), (1e-3, True)):
        monitor = SearchMonitor(Budget(cpu_s, 1 << 40, 10), shown.append)
        until = time.process_time() + 0.6e-3
        while time.process_time() < until:
            pass
        assert monitor.enough() is enough


def test_a_search_cut_short_is_marked_and_not_kept(client: TestClient) -> None:
    asked = SMALL | {"search": {**SMALL["search"], "top_k": 13}}
    cut = client.post("/v1/plans?candidates=1", json=asked)
    assert cut.status_code == 200
    assert cut.json()["spent"]["bound"] == "candidates"
    assert cut.json()["counts"]["cut_short"] is True
    assert cut.headers["planner-spent"] == "candidates=1"
    assert "etag" not in cut.headers
    whole = client.post("/v1/plans", json=asked).json()
    assert (whole["spent"], whole["cached"]) == (None, False)
    assert client.post("/v1/plans?candidates=1", json=asked).json()["cached"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/schedule-comparisons", LONG_PIPELINE),
        ("/v1/timelines", LONG_PIPELINE),
        ("/v1/explanations", EXPLOSIVE | {"plan": {"tp": 8, "pp": 16}}),
        ("/v1/bundles", EXPLOSIVE | {"search": {"framework": "megatron"}}),
    ],
)
def test_work_stops_when_its_caller_leaves(path: str, asked: dict[str, Any]) -> None:
    app = create_app(Settings(max_concurrency=1))
    with listening(app) as port:

        def taken() -> int:
            pools = (app.state.searches, app.state.brief)
            return sum(pool.limit.taken for pool in pools)

        def until(count: int) -> float:
            began = time.monotonic()
            while taken() != count:
                assert time.monotonic() - began < 30
                time.sleep(0.01)
            return time.monotonic() - began

        caller = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        caller.request("POST", path, json.dumps(asked), {"content-type": "application/json"})
        until(1)
        time.sleep(0.3)
        assert taken() == 1, "too short a question to leave"
        caller.close()
        assert until(0) < 5.0  # half a second, and what a busy machine takes besides


def test_places_are_shared_by_callers() -> None:
    order: list[str] = []

    async def ask(limit: FairLimit, caller: str, over: anyio.Event) -> None:
        async with limit.place(caller):
            order.append(caller)
            await over.wait()

    async def all_of_them() -> None:
        limit, over = FairLimit(3, 30, shared=True), anyio.Event()
        async with anyio.create_task_group() as tasks:
            for caller in ("greedy", "greedy", "greedy", "greedy", "modest"):
                tasks.start_soon(ask, limit, caller, over)
                await anyio.wait_all_tasks_blocked()
            assert order == ["greedy", "greedy", "modest"]
            assert (limit.taken, limit.waiting) == (3, 2)
            over.set()
        assert (limit.taken, limit.waiting, len(order)) == (0, 0, 5)

    anyio.run(all_of_them)


def test_who_waits_too_long_or_leaves_takes_no_place() -> None:
    async def full() -> None:
        limit = FairLimit(1, 0.01, shared=False)
        async with limit.place("a"):
            with pytest.raises(Refused, match="all 1 places"):
                async with limit.place("b"):
                    pass
            with anyio.move_on_after(0.001):
                async with limit.place("c"):
                    pass
        async with limit.place("b"):
            assert limit.taken == 1

    anyio.run(full)


@pytest.mark.slow
def test_a_question_ends_at_its_wall_clock_limit_and_its_worker_is_replaced() -> None:
    with serving(Settings(max_question_s=2, max_concurrency=1)) as client:
        late = client.post("/v1/timelines", json=LONG_PIPELINE)
        document = late.json()
        assert (late.status_code, document["type"]) == (504, "/problems/too-late")
        assert document["detail"] == "timeline was not answered within 2 s, and was ended"
        short = LONG_PIPELINE | {"cluster": "1x8xh100-sxm", "plan": {"tp": 8}}
        assert client.post("/v1/timelines", json=short).status_code == 200


_PINS: list[bytes] = []


def _hold_and_free(mib: int) -> None:
    """Leave one small block above many freed ones: malloc then keeps the memory of all."""
    blocks = [number.to_bytes(4096, "little") for number in range(mib << 8)]
    _PINS.append(blocks[-1])


def _own_memory_mib() -> int:
    return own_memory_bytes(os.getpid()) >> 20


@pytest.mark.slow
def test_memory_that_a_question_has_freed_does_not_count_for_the_next() -> None:
    budget = Budget(cpu_s=60, memory_bytes=1 << 40, candidates=10)

    async def measured() -> list[int]:
        pool = Pool(FairLimit(1, 10, shared=False))
        try:
            used = []
            for mib in (1, 120, 600):
                await pool.run("a caller", budget, _hold_and_free, mib)
                used.append((await pool.run("a caller", budget, _own_memory_mib)).content)
            return used
        finally:
            pool.close()

    least, kept, returned = anyio.run(measured)
    assert kept > least + 80  # so that the bound is what makes the difference
    assert returned < least + 80
