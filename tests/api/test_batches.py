"""Estimates that are computed together, and parts of answers."""

from __future__ import annotations

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from fastapi.testclient import TestClient

from api import batches, pool_worker
from api.batches import Batches
from api.budget import Budget, OverBudget
from api.fair_limit import FairLimit
from api.pool_worker import EstimateRequest, Fault
from api.problems import Refused
from planner.answers.plans import plan_answers
from planner.answers.plans.plan_answers import IllegalPlan
from planner.documents.problems import RequestError
from planner.inputs.requests.parser import parse_request
from planner.progress import step
from tests.planner.inputs.requests.test_parser import ASKED

ALIKE = {**ASKED, "model": "llama-3.1-8b", "cluster": "2x8xh100-sxm"}
PLANS: list[dict[str, Any]] = [
    {"tp": 1}, {"tp": 8}, {"tp": 2, "pp": 2}, {"pp": 4, "schedule": "gpipe"}, {"tp": 4, "cp": 2},
]  # fmt: skip
DOCUMENTS = [
    *(ALIKE | {"plan": plan} for plan in PLANS),
    *(ALIKE | {"model": "qwen2.5-7b", "plan": plan} for plan in PLANS[:1]),
]
ILLEGAL = ALIKE | {"plan": {"tp": 3}}
UNKNOWN = ALIKE | {"model": "lama", "plan": {"tp": 1}}
BUDGET = Budget(60, 1 << 32, 1 << 20)


def test_together_they_are_what_each_is_alone() -> None:
    asked = [EstimateRequest(document) for document in (*DOCUMENTS, ILLEGAL, UNKNOWN)]
    *found, illegal, unknown = pool_worker.estimates(asked)
    for document, (kind, (_, content)) in zip(DOCUMENTS, found, strict=True):
        request = parse_request(document)
        assert kind == "answer"
        alone = plan_answers.estimate(request, request.named_plan)
        assert content == alone.model_dump_json().encode()
    assert illegal[0] == unknown[0] == "error"
    assert isinstance(illegal[1], IllegalPlan)
    assert isinstance(unknown[1], RequestError)
    id = found[0][1][0]
    assert pool_worker.estimates([EstimateRequest(DOCUMENTS[0], f'W/"{id}"')]) == [
        ("answer", (id, None))
    ]


@pytest.mark.slow
def test_each_caller_gets_its_own(client: TestClient) -> None:
    wanted = {
        str(document["plan"]): client.post("/v1/estimates", json=document).json()
        for document in DOCUMENTS[: len(PLANS)]
    }
    with ThreadPoolExecutor(16) as callers:

        def ask(document: dict[str, Any]) -> tuple[dict[str, Any], Any]:
            return document, client.post("/v1/estimates", json=document)

        many = [*DOCUMENTS[: len(PLANS)], ILLEGAL, UNKNOWN] * 6
        for document, answer in callers.map(ask, many):
            if document in (ILLEGAL, UNKNOWN):
                assert answer.status_code == 422, answer.text
            else:
                assert answer.json() == wanted[str(document["plan"])]


def worked(asked: list[str | float]) -> list[tuple[str, Any]]:
    """How many there were, for each: after so many seconds; or the end of the process, or never."""
    for one in asked:
        if one == "dies":
            os._exit(1)
        end = time.process_time() + float(one)
        while time.process_time() < end:
            sum(range(100_000))  # milliseconds: who asked receives every step
            step(0, 1)
    return [("answer", len(asked)) for _ in asked]


async def answers(pool: Batches, *questions: str | float) -> list[Any]:
    """The answers to these, asked at once behind one that takes a while."""
    await pool.ask("a", BUDGET, 0.0)  # the process is there
    first = asyncio.create_task(pool.ask("a", BUDGET, 0.3))
    while not pool.limit.taken or pool.waiting:
        await asyncio.sleep(0)
    asked = [pool.ask("a", BUDGET, one) for one in questions]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert await first == 1
    assert (pool.waiting, pool.limit.taken) == (0, 0)
    return found


@pytest.mark.slow
def test_what_waits_goes_together() -> None:
    async def asked() -> None:
        pool = Batches(FairLimit(1, 30, shared=False), worked)
        assert await answers(pool, *[0.0] * 5) == [5] * 5
        assert await answers(pool, *[0.0] * 20) == [16] * 16 + [4] * 4
        pool.close()

    anyio.run(asked)


@pytest.mark.slow
def test_a_question_beside_others_waits_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes while another is computed goes together with what comes just after it."""

    async def asked() -> None:
        pool = Batches(FairLimit(2, 30, shared=False), worked)
        await asyncio.gather(*(pool.ask("a", BUDGET, 0.1) for _ in range(2)))  # both are there
        monkeypatch.setattr(batches, "_LINGER_S", 0.5)
        before = asyncio.create_task(pool.ask("a", BUDGET, 1.0))
        while not pool.limit.taken:
            await asyncio.sleep(0)
        second = asyncio.create_task(pool.ask("a", BUDGET, 0.0))
        while pool.limit.taken < 2:
            await asyncio.sleep(0)
        third = asyncio.create_task(pool.ask("a", BUDGET, 0.0))
        assert await asyncio.gather(before, second, third) == [1, 2, 2]
        pool.close()

    anyio.run(asked)


@pytest.mark.slow
def test_one_that_dies_or_is_too_long_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "_BATCH_CPU_S", 0.2)

    async def asked() -> None:
        pool = Batches(FairLimit(1, 30, shared=False), worked)
        before, dead, after = await answers(pool, 0.0, "dies", 0.0)
        assert (before, after) == (1, 1)
        assert isinstance(dead, Fault)
        assert await answers(pool, 0.0, 1.0) == [1, 1]
        pool.close()

    anyio.run(asked)


@pytest.mark.slow
def test_one_alone_has_its_whole_budget_and_no_more() -> None:
    async def asked() -> None:
        pool = Batches(FairLimit(1, 30, shared=False), worked)
        with pytest.raises(OverBudget):
            await pool.ask("a", Budget(0.5, 1 << 32, 1), 60.0)
        assert await pool.ask("a", Budget(5, 1 << 32, 1), 0.7) == 1
        pool.close()

    anyio.run(asked)


def test_a_batch_that_nobody_waits_for_is_stopped() -> None:
    async def asked() -> None:
        pool = Batches(FairLimit(1, 0.2, shared=False), worked)
        endless = asyncio.create_task(pool.ask("a", BUDGET, 50.0))
        while not pool.limit.taken:
            await asyncio.sleep(0.01)
        with pytest.raises(Refused, match="all 1 places"):
            await pool.ask("b", BUDGET, 0.0)
        endless.cancel()
        began = time.monotonic()
        while pool.limit.taken:
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < 10
        pool.close()

    anyio.run(asked)


FIELDS = {
    "version": {"version"},
    "estimate.iteration_time_s,estimate.memory.peak_bytes": {"estimate"},
    "estimate,estimate.memory.peak_bytes,layers": {"estimate", "layers"},
}


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "names"), FIELDS.items(), ids=FIELDS)
def test_a_part_of_an_answer(client: TestClient, fields: str, names: set[str]) -> None:
    whole = client.post("/v1/estimates", json=DOCUMENTS[2]).json()
    part = client.post("/v1/estimates", params={"fields": fields}, json=DOCUMENTS[2]).json()
    assert set(part) == names
    if "estimate." in fields and "estimate," not in fields:
        assert part["estimate"] == {
            "iteration_time_s": whole["estimate"]["iteration_time_s"],
            "memory": {"peak_bytes": whole["estimate"]["memory"]["peak_bytes"]},
        }
    else:
        assert part == {name: whole[name] for name in names}


@pytest.mark.slow
def test_a_part_of_a_kept_answer(client: TestClient) -> None:
    asked = {**ALIKE, "cluster": "1x8xh100-sxm", "search": {"framework": "megatron", "top_k": 3}}
    answer = client.post("/v1/plans?fields=best.plan.tp,plans.tokens_per_s", json=asked)
    part, whole = answer.json(), client.get(answer.headers["location"]).json()
    own = {name: whole[name] for name in ("id", "links", "spent")} | {"cached": False}
    assert part == own | {
        "best": {"plan": {"tp": whole["best"]["plan"]["tp"]}},
        "plans": [{"tokens_per_s": one["tokens_per_s"]} for one in whole["plans"]],
    }
    again = client.get(answer.headers["location"], params={"fields": "best.plan.tp"}).json()
    assert again["best"] == part["best"]


def test_no_such_part(client: TestClient) -> None:
    address = "/v1/estimates?fields=estimate.memory.peak_byte,estimate.mfu.x"
    answer = client.post(address, json=DOCUMENTS[0])
    assert answer.status_code == 422
    wrong = {one["pointer"]: one["did_you_mean"] for one in answer.json()["errors"]}
    assert "peak_bytes" in wrong["/fields/estimate/memory/peak_byte"]


def test_an_estimate_is_computed_once_and_others_go(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    price = plan_answers.estimates

    def counted(asked: Any) -> Any:
        computed.append(len(asked))
        return price(asked)

    monkeypatch.setattr(plan_answers, "estimates", counted)
    monkeypatch.setattr(pool_worker, "_kept", {})
    monkeypatch.setattr(pool_worker, "_MOST_KEPT", 2)

    def asked(batch: int, *fields: str) -> Any:
        training = {"seq_length": 1024, "global_batch_size": batch}
        document = {"model": "gpt2", "cluster": "1x4xh100-sxm", "training": training}
        question = EstimateRequest(document | {"plan": {"dp": 4}}, "", fields)
        [(kind, (id, content))] = pool_worker.estimates([question])
        assert kind == "answer"
        return id, json.loads(content)

    first = asked(64)
    assert asked(64) == first
    assert asked(64, "estimate.tokens_per_s")[1] == {
        "estimate": {"tokens_per_s": first[1]["estimate"]["tokens_per_s"]}
    }
    assert computed == [1]
    assert asked(128)[0] != first[0]
    assert asked(192)[0] != first[0]
    assert computed == [1, 1, 1]
    assert asked(64) == first  # it had gone
    assert computed == [1, 1, 1, 1]
