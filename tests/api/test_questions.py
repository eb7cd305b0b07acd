"""Questions around a plan over HTTP: the same documents as the command line's."""

from __future__ import annotations

import io
import json
import math
import zipfile
from typing import Any

import pytest
from fastapi.testclient import TestClient

import planner
from api.negotiation import TRACE, ZIP
from api.problems import MEDIA_TYPE
from planner import cli
from planner.answers.inventory.catalog import LISTINGS
from planner.answers.plans.two_plans import SideBySide
from planner.questions.examples import examples

ASK: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "2x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "plan": {"tp": 4, "sequence_parallel": True, "pp": 2, "schedule": "1f1b"},
}
CONFIG = examples("config")["short"]["value"]


def asked(path: str, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What the command line prints for the request in a file."""
    assert cli.run([*words, path, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/v1/explanations", "why"),
        ("/v1/timelines", "timeline"),
        ("/v1/schedule-comparisons", "compare-schedules"),
    ],
)
def test_is_the_document_of_the_command_line(
    client: TestClient, capsys: pytest.CaptureFixture[str], tmp_path: Any, path: str, command: str
) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(ASK))
    response = client.post(path, json=ASK)
    assert response.status_code == 200, response.text
    assert response.json() == asked(str(file), capsys, command)


@pytest.mark.parametrize("path", ["/v1/explanations", "/v1/timelines", "/v1/schedule-comparisons"])
def test_a_plan_is_needed_and_must_be_legal(client: TestClient, path: str) -> None:
    response = client.post(path, json={**ASK, "plan": None})
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == "/plan"
    if path != "/v1/explanations":  # to which that is a question like any other
        response = client.post(path, json=ASK | {"plan": {"tp": 3}})
        assert response.status_code == 422
        assert "world_size" in {error["code"] for error in response.json()["errors"]}


def test_a_trace_by_accept_or_by_address(client: TestClient) -> None:
    by_accept = client.post("/v1/timelines", json=ASK, headers={"accept": TRACE})
    by_address = client.post("/v1/timelines?format=trace", json=ASK)
    assert by_accept.headers["content-type"] == by_address.headers["content-type"] == TRACE
    assert by_accept.content == by_address.content
    assert by_accept.json()["traceEvents"]
    assert client.post("/v1/timelines?format=gif", json=ASK).status_code == 422


def test_a_bundle_as_archive(client: TestClient) -> None:
    files = client.post("/v1/bundles", json=ASK).json()["files"]
    response = client.post("/v1/bundles", json=ASK, headers={"accept": ZIP})
    assert response.headers["content-type"] == ZIP
    assert response.headers["content-disposition"] == 'attachment; filename="megatron.zip"'
    archive = zipfile.ZipFile(io.BytesIO(response.content))
    assert {name: archive.read(name).decode() for name in archive.namelist()} == files
    modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert modes["launch.sh"] & 0o111


@pytest.mark.slow
def test_a_config_is_read(client: TestClient) -> None:
    response = client.post("/v1/models/import", json=CONFIG)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["title"] == "Qwen3Moe"
    assert found["parameters"] == pytest.approx(235.1e9, rel=1e-3)
    assert found["active_parameters"] == pytest.approx(22.2e9, rel=1e-2)
    assert found["guessed"]
    assert not found["warnings"]
    asking = ASK | {
        "model": found["model"],
        "cluster": "16x8xh100-sxm",
        "plan": {"tp": 8, "pp": 16},
    }
    assert planner.why(asking).verdict
    quantised = CONFIG | {"quantization_config": {"quant_method": "fp8"}}
    (warning,) = client.post("/v1/models/import", json=quantised).json()["warnings"]
    assert "quantization_config" in warning


def test_infinity_where_it_does_not_matter_is_read(client: TestClient) -> None:
    text = json.dumps(CONFIG | {"time_step_limit": [0.0, math.inf]})
    assert "Infinity" in text
    headers = {"content-type": "application/json"}
    response = client.post("/v1/models/import", content=text, headers=headers)
    assert response.status_code == 200, response.text


@pytest.mark.slow
def test_a_bad_config_says_where(client: TestClient) -> None:
    response = client.post("/v1/models/import", json=CONFIG | {"hidden_size": -1})
    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == ["/hidden_size"]
    response = client.post("/v1/models/import", json={"model_type": "qwen3_mo"})
    assert "qwen3_moe" in response.json()["errors"][0]["did_you_mean"]
    for other in ([], "gpt2", {}, {"peft_type": "LORA"}):
        assert client.post("/v1/models/import", json=other).status_code == 422


def test_two_plans_differ_by_their_rows(client: TestClient) -> None:
    both = examples("comparison")["short"]["value"]
    response = client.post("/v1/comparisons", json=both)
    answer = SideBySide.model_validate_json(response.text)
    rows = {(row.part, row.name): row for row in answer.rows}
    assert rows["plan", "tp"].a == 4
    assert rows["plan", "tp"].b == 8
    assert rows["plan", "tp"].ratio == 2
    assert rows["model", "hidden_size"].equal
    seconds = rows["result", "iteration_time_s"]
    a, b = answer.a.estimate.iteration_time_s, answer.b.estimate.iteration_time_s
    assert (seconds.a, seconds.b, seconds.difference) == (a, b, b - a)
    parts = [row for row in answer.rows if row.part == "time_parts_s"]
    assert sum(float(str(row.difference)) for row in parts) == pytest.approx(b - a)
    assert {row.part for row in answer.rows if not row.equal} >= {"plan", "result", "memory"}


def test_what_is_wrong_with_either_side_is_said_at_once(client: TestClient) -> None:
    both = {"a": ASK | {"model": "lama"}, "b": ASK | {"plan": None}, "c": 1}
    response = client.post("/v1/comparisons", json=both)
    assert response.status_code == 422
    assert response.headers["content-type"] == MEDIA_TYPE
    pointers = {error["pointer"] for error in response.json()["errors"]}
    assert pointers == {"/a/model", "/b/plan", "/c"}
    both = {"a": ASK | {"plan": {"tp": 3}}, "b": ASK | {"plan": {"tp": 5}}}
    pointers = {e["pointer"] for e in client.post("/v1/comparisons", json=both).json()["errors"]}
    assert pointers == {"/a/plan", "/b/plan"}
    assert client.post("/v1/comparisons", json=[]).status_code == 422


@pytest.mark.slow
@pytest.mark.parametrize("kind", LISTINGS)
def test_one_entry_of_the_catalog(client: TestClient, kind: str) -> None:
    entries = client.get(f"/v1/catalog/{kind}").json()[kind]
    for name in (entries[0]["id"], entries[0]["id"].upper(), *entries[0]["aliases"][:1]):
        assert client.get(f"/v1/catalog/{kind}/{name}").json() == entries[0]
    response = client.get(f"/v1/catalog/{kind}/{entries[0]['id']}x")
    assert response.status_code == 404
    assert entries[0]["id"] in response.json()["detail"]


def test_info(client: TestClient) -> None:
    found = client.get("/v1/info").json()
    assert found["version"] == planner.__version__
    assert found["features"]["torch"]
    assert found["limits"]["max_body_bytes"] == 1 << 20
    assert "slurm" in found["launchers"]
