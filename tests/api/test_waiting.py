"""Callers who watch a search over HTTP, and callers who leave, on a real server."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from multiprocessing import active_children
from typing import Any

import pytest
import uvicorn

from api.app import create_app
from api.problems import MEDIA_TYPE
from api.settings import Settings
from planner.answers.plans.emission import NothingFits
from planner.answers.plans.plan_answers import IllegalPlan
from planner.documents.answer import Reason
from planner.documents.problems import Contradiction, Problem, RequestError
from planner.frameworks.base import Unsupported
from planner.inputs.requests.models import UnsupportedModel
from planner.search.exhaustive import SpaceTooLarge
from tests.planner.inputs.requests.test_parser import ASKED

SMALL = {**ASKED, "model": "llama-3.1-8b", "cluster": "1x8xh100-sxm"}
# Searches for a minute and longer.
UNHEARD = SMALL | {"search": {"top_k": 11}}  # what no other test asks: nobody has kept it
LONG = {
    "model": "gpt3-175b",
    "cluster": "128x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 1536},
}
STREAM = {"accept": "text/event-stream"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that searches one thing at a time; others wait for their turn."""
    with serving(Settings(max_concurrency=1, max_wait_s=60.0)) as port:
        yield port


@contextmanager
def serving(settings: Settings) -> Iterator[int]:
    app = create_app(settings)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()


def asked(port: int, path: str, document: Any, **headers: str) -> HTTPConnection:
    connection = HTTPConnection("127.0.0.1", port, timeout=300)
    headers = {"content-type": "application/json"} | headers
    connection.request("POST", path, json.dumps(document), headers)
    return connection


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


@pytest.mark.slow
def test_progress_and_then_the_plain_answer(port: int) -> None:
    unheard = SMALL | {"search": {"top_k": 6}}  # so that there is something to wait for
    response = asked(port, "/v1/plans", unheard, **STREAM).getresponse()
    assert response.status == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["content-security-policy"]
    *before, (last, answer) = events(response.read().decode())
    assert last == "done"
    plain = asked(port, "/v1/plans", unheard).getresponse()
    assert plain.headers["content-type"] == "application/json"
    assert answer | {"cached": True} == json.load(plain)
    assert {name for name, _ in before} == {"progress"}
    step = before[-1][1]
    assert 0 < step["done"] <= step["total"]
    assert step["best"]["plan"].keys() == answer["best"]["plan"].keys()


@pytest.mark.slow
def test_a_sizing_tells_its_rows_as_it_finds_them(port: int) -> None:
    kinds = ["h100-sxm-80gb", "a100-sxm-80gb", "mi300x"]
    document = {
        "model": "gpt2",
        "training": {"seq_length": 1024, "global_batch_size": 96, "tokens": 1e9},
        "sizing": {"accelerators": kinds, "sizes": [8, 16, 32], "deadline_days": 1e-5},
    }
    response = asked(port, "/v1/sizings", document, **STREAM).getresponse()
    *before, (last, answer) = events(response.read().decode())
    assert last == "done"
    # A step may be told after the next one only, and the last one is always told.
    told = [step["best"]["rows"] for _, step in before]
    assert all(len(rows) in (3, 6, 9) for rows in told)
    assert 3 <= len(told[0]) <= len(told[-1])
    whole = [{k: v for k, v in row.items() if k not in ("plan", "error_band")}
             for row in answer["rows"]]  # fmt: skip
    on_front = {"on_front": False}  # which rows are is known at the end
    assert all(
        [row | on_front for row in rows] == [row | on_front for row in whole[: len(rows)]]
        for rows in told
    )
    assert any(row["exceeds"] == ["deadline"] for row in told[0])


def test_what_is_refused_at_once_has_its_status(port: int) -> None:
    response = asked(port, "/v1/plans", SMALL | {"model": "lama"}, **STREAM).getresponse()
    assert response.status == 422
    assert response.headers["content-type"] == MEDIA_TYPE
    assert json.load(response)["errors"][0]["pointer"] == "/model"


def test_what_fails_later_is_the_last_event(port: int) -> None:
    document = SMALL | {"model": "llama-3.1-405b", "cluster": "1x1xh100-sxm"}
    response = asked(port, "/v1/sensitivities", document, **STREAM).getresponse()
    assert response.status == 200
    *_, (last, problem) = events(response.read().decode())
    assert last == "problem"
    assert (problem["status"], problem["instance"]) == (422, "/v1/sensitivities")


@pytest.mark.parametrize("headers", [{}, STREAM], ids=["plain", "stream"])
def test_who_leaves_takes_the_work_along(port: int, headers: dict[str, str]) -> None:
    """The one place for searches is free again at once, not in a minute."""
    leaver = asked(port, "/v1/sensitivities", LONG, **headers)
    if headers:  # it runs
        response = leaver.getresponse()
        assert response.read1().startswith(b"event: progress")
        response.close()
    leaver.close()
    response = asked(port, "/v1/plans", SMALL).getresponse()
    assert response.status == 200, response.read()


@pytest.mark.exhaustive
def test_searches_have_places_of_their_own() -> None:
    """While one runs, estimates are answered; one search too many is refused."""
    with serving(Settings(max_concurrency=1, max_wait_s=0.1)) as port:
        running = asked(port, "/v1/sensitivities", LONG, **STREAM).getresponse()
        assert running.read1().startswith(b"event: progress")
        estimate = asked(port, "/v1/estimates", SMALL | {"plan": {"tp": 8}}).getresponse()
        assert estimate.status == 200
        refused = asked(port, "/v1/plans", UNHEARD).getresponse()
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert "try again" in json.load(refused)["detail"]
        wrong = asked(port, "/v1/plans", SMALL | {"model": "lama"}).getresponse()
        assert wrong.status == 422
        running.close()
        while (response := asked(port, "/v1/plans", UNHEARD).getresponse()).status == 503:
            response.read()
        assert response.status == 200


@pytest.mark.slow
def test_a_process_that_dies_is_replaced() -> None:
    with serving(Settings(max_concurrency=1)) as port:
        running = asked(port, "/v1/sensitivities", LONG, **STREAM).getresponse()
        assert running.read1().startswith(b"event: progress")
        for process in active_children():  # idle ones too, but none of other tests' pools
            if type(process).__module__.startswith("multiprocessing."):
                process.kill()
                process.join()
        *_, (last, problem) = events(running.read().decode())
        assert (last, problem["status"]) == ("problem", 500)
        again = SMALL | {"search": {"top_k": 12}}
        assert asked(port, "/v1/plans", again).getresponse().status == 200
        estimate = asked(port, "/v1/estimates", SMALL | {"plan": {"tp": 8}}).getresponse()
        assert estimate.status == 200


PROBLEM = Problem(pointer="/model", code="unknown_name", detail="no such model")
REASON = Reason(code="world_size", text="3 is not 8")
ERRORS: list[Exception] = [
    RequestError([PROBLEM]),
    Contradiction([PROBLEM]),
    UnsupportedModel([PROBLEM]),
    NothingFits("nothing fits"),
    NothingFits("nothing fits", missing_bytes=3.0),
    IllegalPlan([REASON]),
    Unsupported("megatron", (REASON,)),
    SpaceTooLarge("candidates", 9, 5),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_come_from_another_process_as_they_are(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
