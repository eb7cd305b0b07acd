"""POST /v1/timelines: the document of the command line, and problems with their place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.problems import MEDIA_TYPE
from planner import cli
from planner.answers.pipelines.timeline import TimelineAnswer
from planner.questions.examples import examples
from tests.fixtures.call_bound import bounded_work
from tests.planner.answers.pipelines.test_timeline import BAD, SMALL, WORDS

HEADERS = {"content-type": "application/json"}


def test_is_the_document_of_the_command_line(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    response = client.post("/v1/timelines", json=SMALL)
    assert response.status_code == 200
    assert cli.run(["timeline", *WORDS, "--json"]) == 0
    assert response.json() == json.loads(capsys.readouterr().out)
    assert TimelineAnswer.model_validate_json(response.text).makespan_s == 33


@pytest.mark.parametrize("example", examples("timeline").values(), ids=examples("timeline"))
def test_examples_work(client: TestClient, example: dict[str, Any]) -> None:
    response = client.post("/v1/timelines", json=example["value"])
    assert response.status_code == 200, response.text
    answer = TimelineAnswer.model_validate_json(response.text)
    assert answer.makespan_s >= answer.ideal_s


@pytest.mark.parametrize(("over", "pointer", "says"), BAD.values(), ids=BAD)
def test_problems(client: TestClient, over: dict[str, Any], pointer: str, says: str) -> None:
    body = json.dumps(SMALL | over)
    with bounded_work():
        response = client.post("/v1/timelines", content=body, headers=HEADERS)
    assert response.status_code == 422
    assert response.headers["content-type"] == MEDIA_TYPE
    (problem,) = response.json()["errors"]
    if "NaN" not in body and "Infinity" not in body:  # those are refused before they are read
        assert problem["pointer"] == pointer


@pytest.mark.parametrize("body", ["null", "[]", "4", '"1f1b"', "{}"])
def test_not_a_request(client: TestClient, body: str) -> None:
    response = client.post("/v1/timelines", content=body, headers=HEADERS)
    assert response.status_code == 422


def test_limits_of_the_body(client: TestClient) -> None:
    large = json.dumps(SMALL | {"schedule": "x" * (1 << 20)})
    assert client.post("/v1/timelines", content=large, headers=HEADERS).status_code == 413
    assert client.post("/v1/timelines", content="{", headers=HEADERS).status_code == 400
    assert client.post("/v1/timelines", content="{}").status_code == 415


@pytest.mark.slow
def test_description(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    body = document["paths"]["/v1/timelines"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["$ref"].endswith("/TimelineOrRequest")
    schema = document["components"]["schemas"]["TimelineRequest"]
    assert set(schema["required"]) == {
        "schedule", "stages", "micro_batches", "forward_s", "input_grad_s", "weight_grad_s",
    }  # fmt: skip
