"""Models of families without a reader: built only where a setting allows it, within a budget."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import pytest

from api.app import create_app
from api.settings import Settings
from tests.fixtures.service import listening, serving
from tests.planner.inputs.requests.test_built_models import UNKNOWN
from tests.planner.inputs.requests.test_parser import ASKED

pytestmark = pytest.mark.slow

OF_UNKNOWN = {**ASKED, "model": UNKNOWN, "plan": {}}
BUILDS = Settings(build_models=1, max_concurrency=1)


def _builders() -> set[int]:
    """Processes that build a model for a worker of this service."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    found = set()
    for worker in Path(f"/proc/{server}/task/{server}/children").read_text().split():
        for child in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
            if b"module_inspection" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.add(int(child))
    return found


@contextmanager
def _asking(port: int, path: str) -> Iterator[http.client.HTTPConnection]:
    caller = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    caller.request("POST", path, json.dumps(OF_UNKNOWN), {"content-type": "application/json"})
    yield caller
    caller.close()


def _the_builder() -> int:
    until = time.monotonic() + 30
    while not (found := _builders()):
        assert time.monotonic() < until
        time.sleep(0.02)
    [one] = found
    return one


def _assert_ends(pid: int) -> None:
    until = time.monotonic() + 5
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < until, "it still builds"
        time.sleep(0.02)


def test_a_service_builds_no_model_unless_told_to() -> None:
    with serving() as client:
        for path in ("/v1/estimates", "/v1/plans"):
            answer = client.post(path, json=OF_UNKNOWN)
            [problem] = answer.json()["errors"]
            assert (answer.status_code, problem["code"]) == (422, "not_built")
            assert problem["pointer"] == "/model/model_type"
            assert "nothing builds it here (see PLANNER_BUILD_MODELS)" in problem["detail"]


@pytest.mark.exhaustive
def test_an_estimate_of_a_model_that_is_built() -> None:
    with serving(BUILDS) as client:
        answer = client.post("/v1/estimates", json=OF_UNKNOWN)
    assert (answer.status_code, answer.json()["request"]["model"]["name"]) == (200, "doge")


def test_what_is_built_counts_against_the_budget_of_its_question() -> None:
    with listening(create_app(BUILDS)) as port:
        with _asking(port, "/v1/plans?cpu_s=1.5") as caller:
            builder = _the_builder()
            answer = json.loads(caller.getresponse().read())
        assert answer["type"] == "/problems/over-budget"
        assert answer["spent"]["bound"] == "cpu_s"
        _assert_ends(builder)


@pytest.mark.exhaustive
def test_building_takes_a_place_of_a_search_and_ends_with_its_caller() -> None:
    app = create_app(BUILDS)
    with listening(app) as port:
        with _asking(port, "/v1/estimates"):
            builder = _the_builder()
            # What is short waits for no model.
            assert (app.state.searches.limit.taken, app.state.estimates.limit.taken) == (1, 0)
        _assert_ends(builder)
