"""POST /v1/ranks: the document of the command line, and problems with their place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.problems import MEDIA_TYPE
from planner import cli
from planner.answers.plans.ranks import RanksAnswer

ASK: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "2x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 64},
    "plan": {"tp": 4, "sequence_parallel": True, "pp": 2},
}


def test_is_the_document_of_the_command_line(
    client: TestClient, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(ASK))
    response = client.post("/v1/ranks?order=torchtitan", json=ASK)
    assert response.status_code == 200, response.text
    assert cli.run(["ranks", str(file), "--order", "torchtitan", "--json"]) == 0
    assert response.json() == json.loads(capsys.readouterr().out)
    assert RanksAnswer.model_validate_json(response.text).world_size == 16


@pytest.mark.parametrize(
    ("order", "plan", "says"),
    [
        ("megatrn", {"tp": 2}, '"did_you_mean":["megatron",'),
        ("accelerate", {"pp": 2}, "no pp axis"),
        ("megatron", {"tp": 3}, "tp"),
        ("x" * 100, {"tp": 2}, "64"),
    ],
)
def test_problems(client: TestClient, order: str, plan: dict[str, Any], says: str) -> None:
    response = client.post(f"/v1/ranks?order={order}", json=ASK | {"plan": plan})
    assert response.status_code == 422
    assert response.headers["content-type"].startswith(MEDIA_TYPE)
    assert says in response.text
