"""Sites over HTTP: what is shown, kept, learned and forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api import work
from api.settings import Settings
from planner import cli
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.site_corrections import SiteAnswer
from planner.learning.sites.learn_answer import LearnAnswer
from tests.fixtures.service import serving
from tests.planner.inputs.logs.test_bad_logs import BLOCK, SCRIPT, step, steps
from tests.planner.learning.sites.runs import CLUSTER, LOGS

LOG = (LOGS / "megatron_gpt_64_nodes.log").read_text()
ASK: dict[str, Any] = {"log": LOG, "cluster": CLUSTER}
RUNS = "/v1/sites/over-http/runs"
PLAN: dict[str, Any] = {
    "model": "gpt2",
    "cluster": "1x4xv100",
    "training": {"seq_length": 1024, "global_batch_size": 16, "precision": "fp16"},
    "search": {"tp": 1, "cp": 1, "schedule": "1f1b", "pp": {"max": 2}},
}


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    for name in storage.names():
        storage.forget(name)


def test_shows_and_keeps_nothing_unless_told(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = client.post(RUNS, json=ASK)
    assert shown.status_code == 200, shown.text
    found = LearnAnswer.model_validate_json(shown.text)
    assert not found.kept
    assert client.get("/v1/sites").json() == {"rows": []}
    path = str(LOGS / "megatron_gpt_64_nodes.log")
    assert cli.run(["learn", path, "--cluster", CLUSTER, "--site", "over-http", "--json"]) == 0
    (own,) = json.loads(capsys.readouterr().out)["runs"]
    (theirs,) = shown.json()["runs"]
    for one in (own["run"], theirs["run"]):
        del one["learned_at"], one["file"]
    assert theirs == own


def test_kept_shown_used_and_forgotten(client: TestClient) -> None:
    assert client.post(RUNS, json=ASK | {"keep": True}).json()["kept"]
    assert client.post(RUNS, json=ASK | {"keep": True}).json()["runs"][0]["known"]
    (row,) = client.get("/v1/sites").json()["rows"]
    assert (row["name"], row["runs"]) == ("over-http", 1)
    answer = SiteAnswer.model_validate_json(client.get("/v1/sites/over-http").text)
    assert answer.runs[0].request["plan"]["pp"] == 64
    assert answer.median_error_left_out is None
    assert client.delete("/v1/sites/over-http").status_code == 204
    for method in (client.get, client.delete):
        assert method("/v1/sites/over-http").status_code == 404


def test_a_list_prices_no_run(client: TestClient) -> None:
    """To price those that an earlier version kept took 0.1 s a site, at each call."""
    client.post(RUNS, json=ASK | {"keep": True})
    storage._read.cache_clear()
    (row,) = json.loads(work.site_list({}))["rows"]
    assert (row["name"], row["runs"]) == ("over-http", 1)
    assert storage._read.cache_info().misses == 0


def test_kept_answer_from_before_a_run_is_not_served_after_it(client: TestClient) -> None:
    client.post(RUNS, json=ASK | {"keep": True})
    asked = PLAN | {"site": "over-http"}
    first = client.post("/v1/plans", json=asked).json()
    assert client.post("/v1/plans", json=asked).json()["cached"]
    log = (LOGS / "megatron_gpt_32_nodes.log").read_text()
    client.post(RUNS, json=ASK | {"log": log, "keep": True})
    later = client.post("/v1/plans", json=asked).json()
    assert not later["cached"]
    assert later["id"] != first["id"]
    assert later["best"]["iteration_time_s"] != first["best"]["iteration_time_s"]
    stale = client.get(first["links"]["candidates"])
    assert stale.status_code == 404
    assert "has changed since this answer" in stale.json()["detail"]
    assert client.get(later["links"]["candidates"]).json()["total"] > 0


def test_estimate_of_a_site_has_a_tag_of_its_own(client: TestClient) -> None:
    client.post(RUNS, json=ASK | {"keep": True})
    asked = PLAN | {"site": "over-http", "plan": {"dp": 4}, "search": {}}
    usual = {name: value for name, value in asked.items() if name != "site"}
    first, plain = (client.post("/v1/estimates", json=one) for one in (asked, usual))
    assert first.headers["etag"] != plain.headers["etag"]
    log = (LOGS / "megatron_gpt_32_nodes.log").read_text()
    client.post(RUNS, json=ASK | {"log": log, "keep": True})
    headers = {"if-none-match": first.headers["etag"]}
    assert client.post("/v1/estimates", json=asked, headers=headers).status_code == 200


def test_script_and_settings(client: TestClient) -> None:
    bare = {"log": "\n".join(steps()), "cluster": CLUSTER}
    assert client.post(RUNS, json=bare).status_code == 422
    script = SCRIPT.format(layers=48, micro=1)
    settings = {"plan.attention_kernel": "unfused"}
    found = client.post(RUNS, json=bare | {"script": script, "settings": settings})
    assert found.status_code == 200, found.text
    plan = found.json()["runs"][0]["run"]["request"]["plan"]
    assert (plan["tp"], plan["attention_kernel"]) == (4, "unfused")


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no log": ({"log": None}, "/log", "is required"),
    "empty": ({"log": ""}, "/log", "empty"),
    "log is a list": ({"log": ["x"]}, "/log", "a text"),
    "no cluster": ({"cluster": None}, "/cluster", "is required"),
    "unknown cluster": ({"cluster": "2x8xh10"}, "/cluster", "unknown accelerator"),
    "keep is a word": ({"keep": "yes"}, "/keep", "true or false"),
    "unknown field": ({"lok": 1}, "/lok", "no field"),
    "settings is a list": ({"settings": []}, "/settings", "an object"),
    "settings of nothing": ({"settings": {"tp": 1}}, "/settings/tp", "such as plan.recompute"),
    "contradiction": ({"settings": {"plan.pp": 2}}, "/set", "says 64"),
    "two runs": ({"log": "\n".join([*BLOCK, *steps(), *BLOCK])}, "/log", "a second run"),
    "nan": ({"log": "\n".join([*BLOCK, *steps(), step(21, loss="nan")])}, "/log", "the loss"),
    "half a pair": ({"log": "\ud800"}, "/log", ""),
    "another model": ({"model": "gpt2"}, "/model", "has num_layers 12"),
    "script of another": (
        {"script": SCRIPT.format(layers=40, micro=1)}, "/files", "of another",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("over", "pointer", "says"), BAD.values(), ids=BAD)
def test_problems(client: TestClient, over: dict[str, Any], pointer: str, says: str) -> None:
    content = json.dumps(ASK | {"keep": True} | over)
    headers = {"content-type": "application/json"}
    response = client.post(RUNS, content=content, headers=headers)
    assert response.status_code == 422, response.text
    problem, *_ = response.json()["errors"]
    assert problem["pointer"] == pointer
    assert says in problem["detail"]
    assert storage.names() == ()


def test_bodies_that_are_too_large(client: TestClient) -> None:
    assert client.post(RUNS, json=ASK | {"log": "x" * (1 << 20)}).status_code == 413


@pytest.mark.parametrize("name", ["Lab", "%2e%2e", "a%2Fb", "x" * 65])
def test_names_that_are_none(client: TestClient, name: str) -> None:
    assert client.post(f"/v1/sites/{name}/runs", json=ASK).status_code in (404, 422)
    assert client.get(f"/v1/sites/{name}").status_code in (404, 405, 422)
    assert storage.names() == ()


def test_needs_a_key_where_there_are_keys() -> None:
    settings = Settings(api_keys_sha256=frozenset({"0" * 64}))
    with serving(settings) as guarded:
        assert guarded.get("/v1/sites").status_code == 401
        assert guarded.post(RUNS, json=ASK).status_code == 401
        assert guarded.delete("/v1/sites/lab").status_code == 401
