"""POST /v1/rl: the document of Python and the command line, and problems in place."""

from __future__ import annotations

import io
import zipfile

from fastapi.testclient import TestClient

import planner
from api.problems import MEDIA_TYPE
from planner.answers.reinforcement.emission import files
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.questions.examples import examples

ASK = examples("rl")["short"]["value"]


def test_is_the_document_of_python(client: TestClient) -> None:
    response = client.post("/v1/rl", json=ASK)
    assert response.status_code == 200
    own = planner.rl(ASK).model_dump(mode="json")
    assert {name: value for name, value in response.json().items() if name in own} == own
    assert client.get(response.headers["location"]).json() == response.json() | {"cached": True}


def test_problems_have_their_place(client: TestClient) -> None:
    step = {**ASK["reinforcement"], "samples": 0}
    response = client.post("/v1/rl", json={**ASK, "model": "llama-3.1-9b", "reinforcement": step})
    assert response.status_code == 422
    assert response.headers["content-type"] == MEDIA_TYPE
    pointers = {error["pointer"] for error in response.json()["errors"]}
    assert pointers == {"/model", "/reinforcement/samples"}


def test_files_come_as_json_and_as_an_archive(client: TestClient) -> None:
    own = files(parse_reinforcement(ASK))
    assert client.post("/v1/rl-bundles", json=ASK).json()["files"] == dict(own.files)
    accept = {"Accept": "application/zip"}
    archive = client.post("/v1/rl-bundles", json=ASK, headers=accept).content
    assert zipfile.ZipFile(io.BytesIO(archive)).namelist() == list(own.files)
