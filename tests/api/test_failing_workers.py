"""The process that serves HTTP computes nothing: with workers that fail, no question has an answer.

Every example is asked, so that what the server itself would parse or compute would be answered.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from fastapi.testclient import TestClient

from api import log
from api.app import create_app
from api.settings import Settings
from tests.fixtures import failing_worker
from tests.fixtures.service import described, examples

PARTS = {"name": "example", "id": "example"}
ASKED = [
    pytest.param(one.path.format(**PARTS), one.body, id=f"{one.path} {one.name}")
    for one in examples(described())
    if one.verb == "post"
]


@pytest.fixture(scope="module")
def failing() -> Iterator[TestClient]:
    app = create_app(Settings(), worker=failing_worker.serve)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The log of the service, which says what the fault was."""
    written = io.StringIO()
    logger = structlog.wrap_logger(structlog.WriteLogger(written), processors=log.PROCESSORS)
    monkeypatch.setattr(log, "_log", logger)
    return written


def test_every_operation_with_a_body_has_an_example() -> None:
    for path, operations in described().openapi()["paths"].items():
        for content in operations.get("post", {}).get("requestBody", {"content": {}})["content"]:
            assert operations["post"]["requestBody"]["content"][content]["examples"], path


@pytest.mark.parametrize(("path", "document"), ASKED)
def test_no_question_is_answered(
    failing: TestClient, logged: io.StringIO, path: str, document: dict[str, Any]
) -> None:
    response = failing.post(path, json=document)
    assert response.status_code == 500, response.text
    assert json.loads(logged.getvalue().splitlines()[-1])["fault"] == failing_worker.WHY


@pytest.mark.parametrize("path", ["/v1/sites", "/v1/sites/example"])
def test_nothing_about_sites_is_answered(
    failing: TestClient, logged: io.StringIO, path: str
) -> None:
    assert failing.get(path).status_code == 500
    assert json.loads(logged.getvalue().splitlines()[-1])["fault"] == failing_worker.WHY
