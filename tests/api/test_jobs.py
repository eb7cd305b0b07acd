"""Jobs over HTTP: asked, followed, cancelled, kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from planner.running.jobs.settings import JobSettings
from tests.fixtures import worker_without_torch
from tests.fixtures.job_server import ENDLESS, SWEEP, TINY, TWO_RANKS, Place, Server, eventually

pytestmark = pytest.mark.slow  # real services, real runs


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    # Above 0 a core is left; at 19 a run would wait for whatever other test runs.
    place = Place(tmp_path_factory.mktemp("jobs") / "data", run_nice=1)
    yield place
    place.clear()


@pytest.fixture(scope="module")
def server(place: Place) -> Server:
    return place.serve()


def followed(server: Server, job: dict[str, Any], after: int | None = None) -> list[dict[str, Any]]:
    """The events of a job, read as they come, until the stream ends."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    events, one = [], {}
    with server.http.stream("GET", job["links"]["events"], headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name in ("id", "event", "data"):
                one[name] = value
            elif not line and one:
                events.append(one | {"data": json.loads(one["data"])})
                one = {}
    return events


@pytest.mark.exhaustive
def test_a_sweep_from_its_question_to_its_table(server: Server) -> None:
    job = server.start("sweeps", SWEEP)
    assert job["links"]["self"] == f"/v1/sweeps/{job['id']}"
    events = followed(server, job)
    assert [int(one["id"]) for one in events] == list(range(1, len(events) + 1))
    assert events[-1]["event"] == "done"
    assert events[-1]["data"]["state"] == "succeeded"
    assert {one["data"]["phase"] for one in events if one["event"] == "progress"} >= {"ask"}
    half = len(events) // 2
    assert followed(server, job, after=half) == events[half:]
    done = server.job(job)
    (row,) = done["result"]["sweep"]["rows"]
    assert row["outcome"] == "fits"
    assert done["created_at"] <= done["started_at"] <= done["finished_at"]
    assert [line.split(":")[0] for line in server.log_of(job)] == ["ask", "ask"]
    rows = server.http.get("/v1/jobs", params={"kind": "sweeps", "state": "succeeded"}).json()
    assert job["id"] in [one["id"] for one in rows["rows"]]
    assert server.http.post(job["links"]["cancel"]).status_code == 409
    assert server.http.delete(job["links"]["self"]).status_code == 204
    assert server.http.get(job["links"]["self"]).status_code == 404


@pytest.mark.exhaustive
def test_a_dry_run_a_rank_at_a_time(server: Server) -> None:
    job = server.start("dryruns", TWO_RANKS | {"dryrun": {"ranks": [1]}})
    assert server.http.delete(job["links"]["self"]).status_code == 409
    done = server.end(job)
    assert done["state"] == "succeeded", done["error"]
    (rank,) = done["result"]["report"]["ranks"]
    assert rank["traced"]["parameter_bytes"] == rank["estimated"]["parameter_bytes"]


@pytest.mark.exhaustive
def test_a_calibration_and_a_validation_feed_a_site(server: Server, place: Place) -> None:
    training = TINY["training"] | {"precision": "fp32"}
    asked = TINY | {"training": training, "calibration": {"name": "mine", "budget_s": 10}}
    done = server.end(server.start("calibrations", asked))
    assert done["state"] == "succeeded", done["error"]
    assert done["result"]["calibration"]["id"] == "mine"
    answer = server.http.post("/v1/estimates", json=TINY | {"profile": "mine"})
    assert answer.json()["profile"]["kind"] == "calibrated"
    assert (place.folder / "profiles" / "mine.json").exists()
    validation = TINY | {"training": training, "site": "mine", "validation": {"steps": 2}}
    done = server.end(server.start("validations", validation))
    assert done["state"] == "succeeded", done["error"]
    assert "site mine has learned it" in done["result"]["site"]
    (row,) = server.http.get("/v1/sites").json()["rows"]
    assert (row["name"], row["runs"]) == ("mine", 1)
    assert row["calibrated_at"] is not None


def test_a_run_leaves_a_core_free_and_cancelled_no_process(server: Server, place: Place) -> None:
    runs = server.start("validations", TWO_RANKS | {"validation": {"steps": 1000}})
    waits = server.start("validations", TWO_RANKS)
    server.until(runs, state="running", phase="run")
    worker = "planner.running.validate.ranks.worker"
    ranks = eventually(lambda: (found := place.runs(worker))[1:] and found, "two ranks")
    usable = len(os.sched_getaffinity(0))
    assert {len(os.sched_getaffinity(pid)) for pid in ranks} == {max(1, usable - 1)}
    assert len(os.sched_getaffinity(server.process.pid)) == usable
    assert server.http.post(waits["links"]["cancel"]).json()["state"] == "cancelled"
    answer = server.http.post(runs["links"]["cancel"])
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelling")
    assert server.end(runs)["state"] == "cancelled"
    assert place.runs() == []
    assert [one for one in (place.folder / "jobs").iterdir() if one.is_dir()] == []
    assert followed(server, waits)[-1]["data"]["state"] == "cancelled"


def test_what_is_cancelled_keeps_what_it_has_answered(server: Server) -> None:
    job = server.start("sweeps", ENDLESS)
    eventually(lambda: server.job(job)["progress"]["done"] >= 2, "two answers")
    assert server.http.post(job["links"]["cancel"]).status_code == 202
    done = server.end(job)
    assert done["state"] == "cancelled"
    outcomes = done["result"]["sweep"]["outcomes"]
    assert outcomes["fits"] >= 2
    assert outcomes["fits"] + outcomes["not_asked"] == len(done["result"]["sweep"]["rows"]) == 1000


@pytest.fixture(scope="module")
def taking() -> Iterator[TestClient]:
    """A service that takes jobs and runs none."""
    settings = JobSettings(max_runs=0, max_queued_jobs=2, max_sweep_questions=3)
    with TestClient(create_app(Settings(jobs=settings)), base_url="http://localhost") as client:
        yield client


@pytest.fixture
def client(taking: TestClient) -> TestClient:
    """The same, with nothing in its queue."""
    for job in taking.get("/v1/jobs", params={"state": "queued"}).json()["rows"]:
        taking.post(job["links"]["cancel"])
    return taking


def test_a_key_makes_one_job(client: TestClient) -> None:
    key = {"Idempotency-Key": "a"}
    first = client.post("/v1/sweeps", json=SWEEP, headers=key)
    again = client.post("/v1/sweeps", json=SWEEP, headers=key)
    assert (first.status_code, again.json()["id"]) == (202, first.json()["id"])
    assert first.headers["location"] == first.json()["links"]["self"]
    other = client.post("/v1/sweeps", json=SWEEP | {"axes": {"plan.dp": [4]}}, headers=key)
    assert (other.status_code, other.json()["type"]) == (422, "/problems/idempotency-mismatch")


def test_a_full_queue_says_when_to_come_again(client: TestClient) -> None:
    for _ in range(2):
        assert client.post("/v1/sweeps", json=SWEEP).status_code == 202
    answer = client.post("/v1/sweeps", json=SWEEP)
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/queue-full")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("kind", "document", "pointer"),
    [
        ("validations", TINY | {"validation": {"steps": 0}}, "/validation/steps"),
        ("validations", TINY | {"validation": {"step": 1}}, "/validation/step"),
        ("validations", {**TINY, "plan": None, "validation": []}, "/validation"),
        ("calibrations", {"calibration": {"name": "../x"}}, "/calibration/name"),
        ("calibrations", {"calibration": {"extends": "h100-sxn"}}, "/calibration/extends"),
        ("dryruns", TWO_RANKS | {"dryrun": {"ranks": [2]}}, "/dryrun/ranks"),
        ("sweeps", SWEEP | {"axes": {"plan.dp": [1, 2, 3, 4]}}, "/axes"),
        ("sweeps", [], ""),
    ],
)
def test_what_cannot_run_is_refused_at_once(
    client: TestClient, kind: str, document: Any, pointer: str
) -> None:
    answer = client.post(f"/v1/{kind}", json=document)
    assert answer.status_code == 422
    assert pointer in [problem["pointer"] for problem in answer.json()["errors"]]


@pytest.fixture(scope="module")
def without_torch() -> Iterator[TestClient]:
    app = create_app(Settings(jobs=JobSettings(max_runs=0)), worker=worker_without_torch.serve)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("kind", ["validations", "calibrations", "dryruns"])
def test_without_torch_it_says_how_to_install_it(without_torch: TestClient, kind: str) -> None:
    answer = without_torch.post(f"/v1/{kind}", json=TINY)
    assert answer.status_code == 422
    (problem,) = answer.json()["errors"]
    assert problem["code"] == "not_installed"
    assert "pip install torch==2.13.0" in problem["detail"]


def test_why_a_job_failed_has_a_page(client: TestClient) -> None:
    answer = client.get("/problems/run/killed")
    assert answer.status_code == 200
    assert str(answer.url).endswith("/problems/run")
    assert "The run failed" in answer.text
    assert client.get("/problems/none/%0d%0aX:1").status_code == 404


def test_jobs_by_pages(client: TestClient) -> None:
    made = [client.post("/v1/sweeps", json=SWEEP).json()["id"] for _ in range(2)]
    first = client.get("/v1/sweeps", params={"state": "queued", "limit": 1}).json()
    rest = client.get(
        "/v1/sweeps", params={"state": "queued", "limit": 1, "cursor": first["next"]}
    ).json()
    assert [first["rows"][0]["id"], rest["rows"][0]["id"]] == made[::-1]
    assert rest["next"] is None
    assert client.get("/v1/validations", params={"state": "queued"}).json()["rows"] == []
    assert client.get(f"/v1/validations/{made[0]}").status_code == 404


def test_saved_plans(client: TestClient) -> None:
    name, note = "a/b? <script>é", "'; DROP TABLE saved_plans; --"
    body = {"request": {"model": "gpt2"}, "note": note}
    path = "/v1/saved-plans/a%2Fb%3F%20%3Cscript%3E%C3%A9"
    assert client.put(path, json=body).status_code == 201
    assert client.put(path, json=body | {"answer_id": "pl_0"}).status_code == 200
    kept = client.get(path).json()
    assert (kept["name"], kept["note"], kept["request"]) == (name, note, {"model": "gpt2"})
    assert name in [one["name"] for one in client.get("/v1/saved-plans").json()["rows"]]
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == client.delete(path).status_code == 404
    assert client.put(path, json=body | {"note": "two\r\n\tlines"}).status_code == 201
    assert client.delete(path).status_code == 204
    notes = [{"request": {}, "note": note} for note in ("\0", "\x1b[31m", "\x9b31m", "\x7f")]
    for wrong in ({"request": []}, {"more": 1, "request": {}}, 1, *notes):
        assert client.put(path, json=wrong).status_code == 422
    assert client.put("/v1/saved-plans/%00", json=body).status_code == 422
