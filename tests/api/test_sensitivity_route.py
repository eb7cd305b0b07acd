"""POST /v1/sensitivities: the document of Python and the command line, and problems in place."""

from __future__ import annotations

from fastapi.testclient import TestClient

import planner
from api.problems import MEDIA_TYPE
from planner.questions.examples import examples

ASK = examples("sensitivity")["short"]["value"]


def test_is_the_document_of_python(client: TestClient) -> None:
    response = client.post("/v1/sensitivities", json=ASK)
    assert response.status_code == 200
    own = planner.sensitivity(ASK).model_dump(mode="json")
    sent = {name: value for name, value in response.json().items() if name in own}
    assert {**sent, "time_s": 0} == {**own, "time_s": 0}
    assert [one["name"] for one in own["inputs"]] == [
        "matrix_efficiency", "nvlink_bandwidth_bytes_per_s",
    ]  # fmt: skip


def test_problems_have_their_place(client: TestClient) -> None:
    asked = {**ASK, "model": "llama-3.1-9b", "sensitivity": {"factors": [99]}}
    response = client.post("/v1/sensitivities", json=asked)
    assert response.status_code == 422
    assert response.headers["content-type"] == MEDIA_TYPE
    pointers = {error["pointer"] for error in response.json()["errors"]}
    assert pointers == {"/model", "/sensitivity/factors/0"}
    response = client.post("/v1/sensitivities", json={**ASK, "sensitivity": {"inputs": ["node"]}})
    (error,) = response.json()["errors"]
    assert "nodes" in error["did_you_mean"]
