"""POST /v1/bundles: the document of `planner emit --json`, and problems with their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.problems import MEDIA_TYPE
from planner import cli
from planner.frameworks import FRAMEWORKS
from planner.frameworks.base import Bundle

ASK: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 64},
    "plan": {"tp": 4, "sequence_parallel": True, "pp": 2},
}


def test_is_the_document_of_the_command_line(
    client: TestClient, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(ASK))
    response = client.post("/v1/bundles?launcher=slurm", json=ASK)
    assert response.status_code == 200, response.text
    assert cli.run(["emit", str(file), "--launcher", "slurm", "--json"]) == 0
    assert response.json() == json.loads(capsys.readouterr().out)
    assert set(Bundle.model_validate_json(response.text).files) == {"job.sbatch", "launch.sh"}


def test_without_a_plan_it_is_the_best_one_that_the_framework_accepts(client: TestClient) -> None:
    ask = {**ASK, "plan": None, "search": {"framework": "deepspeed"}}
    made = Bundle.model_validate_json(client.post("/v1/bundles", json=ask).text)
    assert (made.framework, made.main) == ("deepspeed", "launch.sh")


@pytest.mark.parametrize(
    ("over", "launcher", "says"),
    [
        ({}, "slrm", '"did_you_mean":["slurm"]'),
        ({}, "x" * 100, "64"),
        ({}, "deepspeed", "a second time"),
        ({"plan": {"tp": 3}}, "slurm", "tp"),
        ({"plan": {"tp": 8, "schedule": "zb-h1", "pp": 2}}, "slurm", "1F1B"),
        ({"search": {"framework": "megatorn"}}, "slurm", '"did_you_mean":["megatron"'),
        ({"model": "llama-3.1-405b", "plan": {"tp": 8}}, "slurm", "does not fit"),
        (
            {"model": "llama-3.1-405b", "plan": None, "search": {"tp": 8, "pp": 1, "cp": 1}},
            "slurm",
            "nothing fits",
        ),
    ],
)
def test_problems(client: TestClient, over: dict[str, Any], launcher: str, says: str) -> None:
    response = client.post(f"/v1/bundles?launcher={launcher}", json=ASK | over)
    assert response.status_code == 422
    assert response.headers["content-type"].startswith(MEDIA_TYPE)
    assert says in response.text


def test_the_catalog_says_how_each_framework_is_told_every_field(client: TestClient) -> None:
    entries = client.get("/v1/catalog/frameworks").json()["frameworks"]
    assert {entry["id"] for entry in entries} == set(FRAMEWORKS)
    for entry in entries:
        assert entry["versions"]
        assert entry["read_back"] != bool(entry["no_reader"])
        assert all(said["names"] or said["note"] for said in entry["fields"].values())
