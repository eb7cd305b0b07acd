"""POST /v1/lints: the document of the command line, and problems with their place."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.problems import MEDIA_TYPE
from planner import cli
from planner.answers.lint.findings import LintAnswer
from planner.questions.examples import examples
from tests.fixtures.call_bound import bounded_work
from tests.planner.answers.lint.test_scripts import SCRIPTS

NAME = "llama3_8b.sh"
FILES = {NAME: (SCRIPTS / NAME).read_text()}
ASK: dict[str, Any] = {"files": FILES, "cluster": "2x8xh100-sxm"}
HEADERS = {"content-type": "application/json"}
# What is laid over ASK -> (pointer, what is said).
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no files": ({"files": {}}, "/files", "1 to 32 files, got 0"),
    "files is a list": ({"files": ["x"]}, "/files", "an object"),
    "files is null": ({"files": None}, "/files", "is required"),
    "a file is a number": ({"files": {"run.sh": 7}}, "/files/run.sh", "text of a file"),
    "many files": ({"files": {f"{i}.sh": "" for i in range(99)}}, "/files", "got 99"),
    "no name": ({"files": {"": "x"}}, "/files", "no name of a file"),
    "a name that hides": ({"files": {"\x1b[2J": "x"}}, "/files", "no name of a file"),
    "a long name": ({"files": {"x" * 300: "x"}}, "/files", "no name of a file"),
    "a zero byte": ({"files": {"run.sh": "a\n\0"}}, "/files/run.sh", "line 2"),
    "no launch": ({"files": {"run.sh": "echo"}}, "/files", "no launch"),
    "no cluster": ({"cluster": None}, "/cluster", "is required"),
    "unknown cluster": ({"cluster": "2x8xh10"}, "/cluster", "unknown accelerator"),
    "cluster with a typo": (
        {"cluster": {"accelerator": "h100-sxm", "nodez": 2, "nodes": 2}},
        "/cluster/nodez",
        "no field",
    ),
    "mixed cluster": (
        {
            "cluster": {
                "groups": [
                    {"accelerator": "h100-sxm", "nodes": 1},
                    {"accelerator": "a100-sxm", "nodes": 1},
                ]
            }
        },
        "/cluster/groups",
        "differ",
    ),
    "unknown framework": ({"framework": "megatrn"}, "/framework", "no framework"),
    "framework is a number": ({"framework": 7}, "/framework", "a name"),
    "values in a list": ({"set": ["EP=8"]}, "/set", "an object of values"),
    "a value that is none": ({"set": {"EP": None}}, "/set/EP", "a text or a number"),
    "no such variable": ({"set": {"NO_SUCH": 8}}, "/set/NO_SUCH", "no file has a variable"),
    "arguments in one text": ({"arguments": "7B 8"}, "/arguments", "a list of texts"),
    "unknown model": ({"model": "llama-9"}, "/model", "no model 'llama-9'"),
    "unknown field": ({"fils": {}}, "/fils", "no field"),
    "not closed": (
        {"files": {"run.sh": "torchrun pretrain_gpt.py 'x"}},
        "/files/run.sh",
        "line 1: a single quote is not closed",
    ),
    "half a pair": ({"files": {"run.sh": "\ud800"}}, "/files/run.sh", "surrogate"),
}


@pytest.mark.slow
def test_is_the_document_of_the_command_line(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    response = client.post("/v1/lints", json=ASK)
    assert response.status_code == 200, response.text
    words = ["lint", str(SCRIPTS / NAME), "--cluster", "2x8xh100-sxm", "--json"]
    assert cli.run(words) == 4
    assert response.json() == json.loads(capsys.readouterr().out)
    assert LintAnswer.model_validate_json(response.text).verdict == "refused"


@pytest.mark.parametrize("example", examples("lint").values(), ids=examples("lint"))
def test_examples_work(client: TestClient, example: dict[str, Any]) -> None:
    response = client.post("/v1/lints", json=example["value"])
    assert response.status_code == 200, response.text
    answer = LintAnswer.model_validate_json(response.text)
    assert {finding.code for finding in answer.findings} > {"recompute_needless"}


def test_files_may_be_longer_than_other_strings(client: TestClient) -> None:
    long = {NAME: FILES[NAME] + "# a comment\n" * 5_000}
    assert client.post("/v1/lints", json=ASK | {"files": long}).status_code == 200
    assert client.post("/v1/estimates", json={"model": "x" * 20_000}).status_code == 422


@pytest.mark.parametrize(("over", "pointer", "says"), BAD.values(), ids=BAD)
def test_problems(client: TestClient, over: dict[str, Any], pointer: str, says: str) -> None:
    with bounded_work():
        response = client.post("/v1/lints", content=json.dumps(ASK | over), headers=HEADERS)
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == MEDIA_TYPE
    problem, *_ = response.json()["errors"]
    assert problem["pointer"] == pointer
    assert says in problem["detail"]


@pytest.mark.parametrize("body", ["[]", "7", '"x"', "null", "true", "[" * 500 + "]" * 500])
def test_junk_is_refused(client: TestClient, body: str) -> None:
    response = client.post("/v1/lints", content=body, headers=HEADERS)
    assert response.status_code == 422
    assert response.headers["content-type"] == MEDIA_TYPE


@pytest.mark.parametrize(("body", "status"), [("{", 400), (b"\xff", 400), ("x" * 2_000_000, 413)])
def test_bodies_that_are_none(client: TestClient, body: str | bytes, status: int) -> None:
    assert client.post("/v1/lints", content=body, headers=HEADERS).status_code == status
