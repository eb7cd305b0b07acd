"""Published runs over HTTP."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from planner.documents.scored_runs import scored_runs
from planner.evidence.uncertainty.nearest_runs import Evidence
from planner.learning.accuracy.first_sights import first_sight_summary

pytestmark = pytest.mark.slow


def test_all_runs_are_sent_once(client: TestClient) -> None:
    sent = client.get("/v1/accuracy/runs")
    assert len(sent.json()["rows"]) == len(scored_runs())
    assert sent.json()["rows"][0] == scored_runs()[0].model_dump(mode="json")
    assert sent.json()["first_sight"] == first_sight_summary().model_dump(mode="json")
    assert sent.headers["content-encoding"] == "gzip"
    known = {"if-none-match": sent.headers["etag"]}
    assert client.get("/v1/accuracy/runs", headers=known).status_code == 304


def test_the_nearest_runs_of_a_plan(client: TestClient) -> None:
    asked = {
        "model": "llama-3.1-8b",
        "cluster": "2x8xh100-sxm",
        "training": {"seq_length": 8192, "global_batch_size": 128},
        "plan": {"tp": 1, "zero_stage": 1},
    }
    found = Evidence.model_validate_json(client.post("/v1/accuracy/nearest", json=asked).text)
    assert len(found.nearest) == 3
    assert found.ground == "measured"
    del asked["plan"]
    assert client.post("/v1/accuracy/nearest", json=asked).status_code == 422
