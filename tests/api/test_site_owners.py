"""Whose sites are: who may read them, teach them, share them and forget what they learned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.settings import Settings
from planner.evidence.uncertainty import site_storage as storage
from planner.running.jobs.settings import JobSettings
from tests.api.test_named_keys import WORDS, of
from tests.api.test_sites import ASK, LOG, PLAN
from tests.planner.learning.sites.runs import LOGS, site

pytestmark = pytest.mark.slow

RUNS = "/v1/sites/lab/runs"
KEEP = ASK | {"keep": True}
OTHER_LOG = (LOGS / "megatron_gpt_32_nodes.log").read_text()
AT_LAB = PLAN | {"site": "lab", "plan": {"dp": 4}, "search": {}}


@pytest.fixture
def service() -> Iterator[TestClient]:
    """Keys of six people, and a site that alice has taught a run."""
    from tests.fixtures.service import serving

    with serving(Settings(api_keys_sha256=WORDS, jobs=JobSettings(max_runs=0))) as client:
        assert client.post(RUNS, json=KEEP, headers=of("alice")).json()["kept"]
        yield client
        client.delete("/v1/sites/lab", headers=of("root"))
    for name in storage.names():
        storage.forget(name)


def _share(service: TestClient, shared: dict[str, str], by: str = "alice") -> int:
    rights = {"shared": shared}
    return service.put("/v1/sites/lab/rights", json=rights, headers=of(by)).status_code


def test_a_site_is_of_who_made_it(service: TestClient) -> None:
    (row,) = service.get("/v1/sites", headers=of("alice")).json()["rows"]
    assert (row["name"], row["owner"], row["shared"]) == ("lab", "alice", {})
    for call in (
        lambda: service.post(RUNS, json=KEEP | {"log": OTHER_LOG}, headers=of("bob")),
        lambda: service.delete("/v1/sites/lab", headers=of("bob")),
        lambda: service.get("/v1/sites/lab", headers=of("bob")),
    ):
        assert call().status_code == 404
    assert service.get("/v1/sites", headers=of("bob")).json() == {"rows": []}
    assert len(storage.find("lab").runs) == 1


def test_answers_know_a_site_only_where_it_may_be_read(service: TestClient) -> None:
    words = json.dumps(AT_LAB)
    hidden = words.replace('"site"', '"s\\u0069te"')
    json_body = {"content-type": "application/json"}

    def asked(path: str, by: str, content: str = words) -> tuple[int, Any]:
        answer = service.post(path, content=content, headers=of(by) | json_body)
        return answer.status_code, answer.json()

    for path in ("/v1/estimates", "/v1/plans", "/v1/explanations"):
        for content in (words, hidden):
            code, document = asked(path, "bob", content)
            assert (code, document["errors"][0]["code"]) == (422, "unknown_name"), path
            assert "lab" not in document["errors"][0].get("allowed", ())
        assert asked(path, "alice")[0] == 200
    profile = json.dumps({**AT_LAB, "site": None, "profile": "lab"})
    assert asked("/v1/estimates", "bob", profile)[0] == 422
    assert _share(service, {"*": "read"}) == 200
    assert asked("/v1/estimates", "bob")[0] == 200


def test_each_right_includes_those_before_it(service: TestClient) -> None:
    teach = KEEP | {"log": OTHER_LOG}
    for right, allowed in (("read", 0), ("teach", 1), ("own", 3)):
        assert _share(service, {"bob": right}) == 200
        assert service.get("/v1/sites/lab", headers=of("bob")).status_code == 200
        taught = service.post(RUNS, json=teach, headers=of("bob")).status_code
        forgot = service.delete(f"{RUNS}/{'0' * 12}", headers=of("bob")).status_code
        shared = _share(service, {"bob": right}, by="bob")
        granted = [200, 422, 200]  # no run has this id
        expected = granted[:allowed] + [403] * (3 - allowed)
        assert [taught, forgot, shared] == expected, right
    assert service.get("/v1/sites/lab", headers=of("erin")).status_code == 404


def test_runs_say_who_taught_them_and_go_singly(service: TestClient) -> None:
    assert _share(service, {"bob": "teach"}) == 200
    service.post(RUNS, json=KEEP | {"log": OTHER_LOG}, headers=of("bob"))
    runs = service.get("/v1/sites/lab", headers=of("alice")).json()["runs"]
    assert [run["taught_by"] for run in runs] == ["alice", "bob"]
    assert all(run["learned_at"] for run in runs)
    forgotten = service.delete(f"{RUNS}/{runs[1]['id'][:6]}", headers=of("alice"))
    assert forgotten.status_code == 204
    assert [run.taught_by for run in storage.find("lab").runs] == ["alice"]


def test_an_answer_as_of_before_a_run(service: TestClient) -> None:
    estimates = "/v1/estimates"
    first = service.post(estimates, json=AT_LAB, headers=of("alice"))
    service.post(RUNS, json=KEEP | {"log": OTHER_LOG}, headers=of("alice"))
    later = service.post(estimates, json=AT_LAB, headers=of("alice"))
    second = storage.find("lab").runs[1].id
    before = AT_LAB | {"site": f"lab@{second[:6]}"}
    again = service.post(estimates, json=before, headers=of("alice"))
    times = [one.json()["estimate"]["iteration_time_s"] for one in (first, later, again)]
    assert times[0] == times[2] != times[1]
    assert again.json()["request"]["site"] == f"lab@{second}"
    unknown = service.post(estimates, json=AT_LAB | {"site": "lab@abc"}, headers=of("alice"))
    assert "no run of site lab" in unknown.json()["errors"][0]["detail"]


def test_jobs_teach_only_where_their_caller_may(service: TestClient) -> None:
    named = {"calibration": {"name": "lab"}}
    assert service.post("/v1/calibrations", json=named, headers=of("bob")).status_code == 404
    _share(service, {"*": "read"})
    assert service.post("/v1/calibrations", json=named, headers=of("bob")).status_code == 403
    assert service.post("/v1/calibrations", json=named, headers=of("alice")).status_code == 202


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("calibrations", {"calibration": {"name": "lab"}}),
        ("sweeps", {"base": AT_LAB, "axes": {"plan.dp": [4]}}),
        ("sweeps", {"base": AT_LAB | {"site": None}, "axes": {"site": ["lab"]}}),
    ],
    ids=["taught", "asked", "axis"],
)
def test_jobs_about_a_site_are_for_who_may_read_it(
    service: TestClient, kind: str, asked: dict[str, Any]
) -> None:
    """Their requests and results say what it learned."""
    job = service.post(f"/v1/{kind}", json=asked, headers=of("alice")).json()
    own = job["links"]["self"]

    def seen(by: str) -> list[int]:
        lists = [service.get(path, headers=of(by)).json() for path in ("/v1/jobs", f"/v1/{kind}")]
        found = [job["id"] in [row["id"] for row in one["rows"]] for one in lists]
        reads = (own, f"{own}/logs")
        codes = {service.get(path, headers=of(by)).status_code for path in reads}
        assert codes in ({200}, {404})
        assert set(found) == {codes == {200}}
        return [*codes]

    for reader, code in (("alice", 200), ("root", 200), ("bob", 404), ("erin", 404)):
        assert seen(reader) == [code], reader
    assert service.get(f"{own}/events", headers=of("bob")).status_code == 404
    assert service.post(f"{own}/cancel", headers=of("bob")).status_code == 404
    assert _share(service, {"*": "read"}) == 200
    assert seen("bob") == [200]
    assert service.delete("/v1/sites/lab", headers=of("alice")).status_code == 204
    assert seen("bob") == [404]  # what it learned stands in the job alone


def test_a_site_without_an_owner_is_for_all_to_read(service: TestClient) -> None:
    own = site("megatron_gpt_64_nodes")
    storage.learn("old", own.runs)
    assert service.get("/v1/sites/old", headers=of("bob")).status_code == 200
    teach = ASK | {"log": LOG}
    assert service.post("/v1/sites/old/runs", json=teach, headers=of("bob")).status_code == 403
    assert service.delete("/v1/sites/old", headers=of("bob")).status_code == 403
    rights = {"shared": {"bob": "own", "*": "read"}}
    address = "/v1/sites/old/rights"
    assert service.put(address, json=rights, headers=of("root")).status_code == 200
    assert service.delete("/v1/sites/old", headers=of("bob")).status_code == 204


def test_a_lesson_that_fails_leaves_its_name_free(service: TestClient) -> None:
    bad = KEEP | {"log": ""}
    assert service.post("/v1/sites/new/runs", json=bad, headers=of("bob")).status_code == 422
    assert service.post("/v1/sites/new/runs", json=ASK, headers=of("bob")).status_code == 200
    made = service.post("/v1/sites/new/runs", json=KEEP, headers=of("alice"))
    assert made.json()["kept"]
