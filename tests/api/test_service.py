"""The calls of the service: the documents of the command line, and problems with their place."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import anyio
import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.problems import MEDIA_TYPE, ProblemDocument
from api.results import StoredAnswer, kept_class
from api.settings import Settings
from planner import cli
from planner.documents.answer import EstimateAnswer, PlanAnswer
from planner.questions.examples import examples
from planner.running.store import Unavailable
from planner.running.store.servers import Servers
from planner.version import __version__
from tests.fixtures.call_bound import bounded_work
from tests.fixtures.service import serving
from tests.planner.documents.test_loading import BAD_TEXTS
from tests.planner.inputs.requests.test_parser import ASKED, BAD, text_of

KeptPlan: Any = kept_class(PlanAnswer)
SMALL = {**ASKED, "model": "llama-3.1-8b", "cluster": "1x8xh100-sxm"}
UNHEARD = SMALL | {"search": {"top_k": 7}}  # what no other test asks, so that nobody has kept it
JSON = {"content-type": "application/json"}


def problem(response: Any, status: int) -> ProblemDocument:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == MEDIA_TYPE
    assert "Traceback" not in response.text
    document = problem_of(response.content)
    assert document.status == status
    return document


def problem_of(body: bytes) -> ProblemDocument:
    return ProblemDocument.model_validate_json(body)


@pytest.mark.slow
def test_plan_is_the_document_of_the_command_line(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    response = client.post("/v1/plans", json=SMALL)
    assert response.status_code == 200
    answer = KeptPlan.model_validate_json(response.text)
    assert answer.best is not None
    words = ["--model", "llama-3.1-8b", "--cluster", "1x8xh100-sxm", "--seq-length", "8192"]
    assert cli.run(["plan", *words, "--global-batch-size", "1024", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    sent = response.json()
    assert sent.keys() == printed.keys() | StoredAnswer.model_fields.keys()
    for name in StoredAnswer.model_fields:
        del sent[name]
    for document in (sent, printed):
        document.pop("search_time_s")
    assert sent == printed


@pytest.mark.one_in(len(examples("plan")))
@pytest.mark.parametrize("example", examples("plan").values(), ids=examples("plan"))
def test_plan_examples_work(client: TestClient, example: dict[str, Any]) -> None:
    response = client.post("/v1/plans", json=example["value"])
    assert response.status_code == 200, response.text
    assert KeptPlan.model_validate_json(response.text).best is not None


@pytest.mark.parametrize("example", examples("estimate").values(), ids=examples("estimate"))
def test_estimate_examples_work(client: TestClient, example: dict[str, Any]) -> None:
    response = client.post("/v1/estimates", json=example["value"])
    assert response.status_code == 200, response.text
    answer = EstimateAnswer.model_validate_json(response.text)
    assert answer.estimate.fits
    assert sum(answer.estimate.time_parts_s.values()) == pytest.approx(
        answer.estimate.iteration_time_s, rel=1e-9
    )


def test_nothing_fits_is_an_answer(client: TestClient) -> None:
    response = client.post(
        "/v1/plans", json=SMALL | {"model": "llama-3.1-405b", "cluster": "1x1xh100-sxm"}
    )
    assert response.status_code == 200
    assert response.json()["best"] is None


def test_illegal_plan_is_a_problem_with_reasons(client: TestClient) -> None:
    document = problem(client.post("/v1/estimates", json=SMALL | {"plan": {"tp": 3}}), 422)
    assert {error.pointer for error in document.errors} == {"/plan"}
    assert "world_size" in {error.code for error in document.errors}


@pytest.mark.one_in(1, quick=3)
@pytest.mark.parametrize(
    ("path", "name"),
    [
        (path, name)
        for path in ("/v1/plans", "/v1/estimates")
        for name in BAD
        # Of all questions this one is answered: tests/planner/answers/mixed_clusters.
        if (path, name) != ("/v1/plans", "mixed cluster")
    ],
)
def test_bad_request(client: TestClient, path: str, name: str) -> None:
    over, pointer, code, says = BAD[name]
    body = text_of({**ASKED, "plan": {}, **over})
    with bounded_work():
        response = client.post(path, content=body, headers=JSON)
    document = problem(response, 422)
    found = {(error.pointer, error.code): error for error in document.errors}
    assert (pointer, code) in found
    assert says in str(found[pointer, code])
    assert document.instance == path


@pytest.mark.parametrize("text", [text for text, _ in BAD_TEXTS.values()], ids=BAD_TEXTS)
def test_bad_body(client: TestClient, text: str) -> None:
    with bounded_work():
        response = client.post("/v1/plans", content=text.encode(), headers=JSON)
    problem(response, response.status_code)
    assert response.status_code in (400, 413, 422)


def test_body_limits(client: TestClient) -> None:
    problem(client.post("/v1/plans", content=b"x" * (1 << 20) + b"xx", headers=JSON), 413)

    def endless() -> Any:  # no content-length: counted while it arrives
        for _ in range(300):
            yield b" " * 8192

    problem(client.post("/v1/plans", content=endless(), headers=JSON), 413)
    problem(client.post("/v1/plans", content=b"{}", headers={"content-type": "text/plain"}), 415)
    problem(client.post("/v1/plans", content=b"{}"), 415)
    problem(client.post("/v1/plans", content=b'"\xff"', headers=JSON), 400)
    problem(client.post("/v1/plans", content=b"", headers=JSON), 400)


@pytest.mark.slow
def test_an_announced_body_is_refused_unread() -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("the body was read")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": "/v1/estimates",
        "raw_path": b"/v1/estimates",
        "query_string": b"",
    }
    for length in (b"1048577", b"9" * 5000):
        scope["headers"] = [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", length),
        ]
        anyio.run(create_app(Settings()), scope, receive, send)
        assert sent[-2]["status"] == 413
        assert problem_of(sent[-1]["body"]).status == 413


def test_a_space_too_large_is_a_problem(client: TestClient) -> None:
    limits = {name: list(range(1, 257)) for name in ("tp", "cp", "pp")}
    (error,) = problem(client.post("/v1/plans", json=SMALL | {"search": limits}), 422).errors
    assert (error.pointer, error.code) == ("/search", "space_too_large")


def test_catalog(client: TestClient) -> None:
    for kind, least in (("models", 30), ("accelerators", 20), ("clusters", 6)):
        response = client.get(f"/v1/catalog/{kind}")
        assert response.status_code == 200
        assert len(response.json()[kind]) >= least
    assert any(
        entry["id"] == "llama-3.1-70b"
        for entry in client.get("/v1/catalog/models").json()["models"]
    )


def test_unknown_places(client: TestClient) -> None:
    problem(client.get("/v1/catalog/planets"), 404)
    problem(client.get("/nowhere"), 404)
    problem(client.get("/v1/plans"), 405)
    problem(client.delete("/healthz"), 405)


def test_health_index_and_headers(client: TestClient) -> None:
    response = client.get("/healthz")
    assert response.json() == {"status": "ok", "version": __version__}
    assert response.headers["content-security-policy"].startswith("default-src 'self';")
    assert len(response.headers["x-request-id"]) == 32
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "Parallel Planner" in page.text
    assert "http" not in page.text.replace("http://127.0.0.1:8000", "")


def test_it_is_ready_when_all_of_it_works(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = time.monotonic() + 60
    while client.get("/readyz").status_code == 503:  # jobs begin to be taken up
        assert time.monotonic() < ends
    assert client.get("/readyz").json()["status"] == "ok"

    def gone(_: Servers) -> None:
        raise Unavailable("password of 10.0.0.1 refused")

    monkeypatch.setattr(Servers, "check_writable", gone)
    assert "password" not in problem(client.get("/readyz"), 503).detail
    assert client.get("/healthz").status_code == 200


def test_no_file_is_read_for_a_name(client: TestClient, tmp_path: Any) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}')
    document = problem(client.post("/v1/plans", json=ASKED | {"model": str(config)}), 422)
    assert document.errors[0].code == "unknown_name"


def fail(*_: object) -> None:
    raise ZeroDivisionError("a secret")


@pytest.mark.slow
def test_our_fault_says_nothing_of_its_inside(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.work.compute", fail)
    response = client.post("/v1/plans", json=UNHEARD | {"model": "llama-2-7b"})
    problem(response, 500)
    assert "secret" not in response.text
    assert "ZeroDivision" not in response.text


@pytest.mark.slow
def test_keys() -> None:
    digest = hashlib.sha256(b"open sesame").hexdigest()
    settings = Settings(host="0.0.0.0", api_keys_sha256=frozenset({digest, "0" * 64}))
    with serving(settings) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/catalog/clusters").status_code == 401
        assert client.post("/v1/plans", json=SMALL).status_code == 401
        for headers in (
            {"authorization": "Bearer open sesame"},
            {"x-api-key": "open sesame"},
        ):
            assert client.get("/v1/catalog/clusters", headers=headers).status_code == 200
        for headers in (
            {"authorization": "Bearer sesame"},
            {"authorization": "Basic open sesame"},
            {"x-api-key": ""},
            {"x-api-key": digest},
        ):
            response = client.get("/v1/catalog/clusters", headers=headers)
            problem(response, 401)
            assert response.headers["www-authenticate"] == "Bearer"
