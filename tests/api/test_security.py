"""Who is let in, how often, with what, and what is never told."""

from __future__ import annotations

import hashlib
import io
import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
import structlog
from fastapi.testclient import TestClient

from api import log, protocol
from api.access.guard import Rates
from api.app import create_app
from api.log import _HEADERS
from api.problem_types import OF_STATUS, TYPES
from api.problems import MEDIA_TYPE, Refused
from api.settings import Settings
from planner import cli
from planner.frameworks import FRAMEWORKS
from tests.fixtures.service import listening, serving

KEYS = {"alice": "open sesame", "bob": "abracadabra"}
WITH_KEYS = Settings(
    host="0.0.0.0",
    api_keys_sha256=frozenset(hashlib.sha256(key.encode()).hexdigest() for key in KEYS.values()),
)
OPEN = (
    "/",
    "/docs",
    "/docs/guides",
    "/docs/requests",
    "/problems",
    "/problems/internal",
    "/healthz",
    "/openapi.json",
)
CLOSED = ("/v1/info", "/v1/catalog/models", "/v1/plans/pl_0", "/plans/pl_0", "/metrics", "/v1/none")
ASK: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "plan": {"tp": 8},
}
# What a framework cannot do without.
NEEDS: dict[str, dict[str, Any]] = {
    "colossalai": {"training": {**ASK["training"], "gradient_dtype": "bf16"}},
    "mindspeed": {"cluster": "1x8xascend-910b1"},
    "primus": {"cluster": "1x8xmi300x"},
}
HOSTILE = "\"'`$(touch pwned)`</script><script>alert(1)</script>;{{7*7}} %0d%0a ../../x \\"


@pytest.mark.slow
def test_keys_stand_before_everything_that_knows_or_computes() -> None:
    with serving(WITH_KEYS) as client:
        for path in OPEN:
            assert client.get(path).status_code == 200, path
        for path in CLOSED:
            response = client.get(path)
            assert response.status_code == 401, path
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["type"] == "/problems/unauthorized"
        right = {"authorization": f"Bearer {KEYS['alice']}"}
        assert client.get("/v1/info", headers=right).status_code == 200
        assert client.get("/metrics", headers=right).status_code == 200
        digest = next(iter(WITH_KEYS.api_keys_sha256))
        for wrong in ("Bearer", "Bearer ", f"Bearer {digest}", f"Basic {KEYS['bob']}", "Bearer é"):
            response = client.get("/v1/info", headers={"authorization": wrong.encode("latin-1")})
            assert response.status_code == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_machines_are_not_let_in_without_keys(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PLANNER_API_KEYS_SHA256", raising=False)
    assert cli.run(["serve", "--host", host, "--port", "0"]) == 2
    assert "PLANNER_API_KEYS_SHA256" in capsys.readouterr().err


@pytest.mark.slow
def test_a_made_up_name_is_not_ours() -> None:
    """A page of another site that points its own name at this machine gets nothing."""
    with serving() as client:
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", ""):
            for path in ("/", "/v1/info", "/healthz"):
                response = client.get(path, headers={"host": host})
                assert response.status_code == 403
                assert response.json()["type"] == "/problems/forbidden"
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000"):
            assert client.get("/healthz", headers={"host": host}).status_code == 200
    with serving(WITH_KEYS) as client:  # which has names that it does not know of
        assert client.get("/healthz", headers={"host": "planner.example"}).status_code == 200


@pytest.mark.slow
def test_each_caller_has_a_rate_of_its_own() -> None:
    settings = Settings(
        host="0.0.0.0", api_keys_sha256=WITH_KEYS.api_keys_sha256, calls_per_minute=3
    )
    alice, bob = ({"x-api-key": key} for key in KEYS.values())
    with serving(settings) as client:
        left = [client.get("/v1/info", headers=alice).headers["ratelimit-remaining"] for _ in "abc"]
        assert left == ["2", "1", "0"]
        refused = client.get("/v1/info", headers=alice)
        assert refused.status_code == 429
        assert refused.headers["content-type"] == MEDIA_TYPE
        assert refused.headers["ratelimit-limit"] == "3"
        assert 0 < int(refused.headers["retry-after"]) <= 20
        assert client.get("/v1/info", headers=bob).status_code == 200
        guesses = [client.get("/v1/info", headers={"x-api-key": str(i)}) for i in range(5)]
        assert [guess.status_code for guess in guesses] == [401, 401, 401, 429, 429]
        assert client.get("/healthz").status_code == 200


def test_only_so_many_callers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.access.guard._MAX_CALLERS", 10)
    rates = Rates(1)
    for i in range(1000):
        rates.take(str(i))
    assert len(rates._buckets) == 10
    with pytest.raises(Refused):
        rates.take("999")


def test_an_id_of_the_caller_is_kept_where_it_is_sane(client: TestClient) -> None:
    for sane in ("abc-123", "x" * 64, "01JD.A_b"):
        assert (
            client.get("/healthz", headers={"x-request-id": sane}).headers["x-request-id"] == sane
        )
    for not_sane in ("x" * 65, "a b", "a\tb", "<b>", "é", 'a"b', ""):
        headers = {"x-request-id": not_sane.encode("latin-1")}
        given = client.get("/healthz", headers=headers).headers["x-request-id"]
        assert len(given) == 32
    problem = client.get("/nowhere", headers={"x-request-id": "mine"}).json()
    assert problem["request_id"] == "mine"


@pytest.mark.slow
def test_every_answer_has_the_headers(client: TestClient) -> None:
    answers = [client.get(path) for path in (*OPEN, "/nowhere", "/v1/info", "/web/app.js")]
    answers.append(client.post("/v1/plans", content=b"{"))
    for answer in answers:
        assert all(answer.headers[name] for name in _HEADERS), answer.url
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self'")
        assert "unsafe" not in policy
        assert "*" not in policy
        assert "server" not in answer.headers


def test_no_file_of_ours_but_the_page_is_sent(client: TestClient) -> None:
    for path in (
        "/web/../api/app.py", "/web/..%2fapi/app.py", "/web/%2e%2e/%2e%2e/etc/passwd",
        "/web//etc/passwd", "/web/lib", "/web/", "//etc/passwd", "/web/app.js%00", "/web\\app.js",
        "/problems/..%2fapi", "/problems/<script>", "/docs/../api/app.py",
    ):  # fmt: skip
        response = client.get(path)
        assert response.status_code == 404, path
        assert "<script>" not in response.text.replace("\\u003c", "<") or (
            response.headers["content-type"] == MEDIA_TYPE
        )


def test_deep_and_wide_bodies_are_refused_at_once(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    for body in ("[" * 100_000, '{"a":' * 50_000, "[" * 40 + "]" * 40, "9" * 400_000):
        for path in ("/v1/plans", "/v1/comparisons", "/v1/models/import", "/v1/timelines"):
            response = client.post(path, content=body, headers=headers)
            assert response.status_code in (400, 422), (path, body[:10])
            assert len(response.content) < 4_000


def fail(*_: object) -> None:
    """What a worker runs in place of an answer."""
    raise ZeroDivisionError("SECRET")


def test_the_log_tells_of_a_call_and_not_what_was_in_it(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    logger = structlog.wrap_logger(structlog.WriteLogger(written), processors=log.PROCESSORS)
    monkeypatch.setattr(log, "_log", logger)
    headers = {"authorization": "Bearer SECRET", "x-api-key": "SECRET", "cookie": "SECRET"}
    client.post("/v1/ranks?order=SECRET", json=ASK | {"model": "SECRET"}, headers=headers)
    client.get("/v1/plans/pl_0%0Alevel=error")

    monkeypatch.setattr("api.work.answer", fail)
    failed = client.post("/v1/ranks", json=ASK)
    assert failed.status_code == 500
    assert failed.json().keys() == {"type", "title", "status", "detail", "instance", "request_id"}
    assert all(failed.headers[name] for name in _HEADERS)
    logged = written.getvalue()
    assert "SECRET" not in logged
    first, second, third = map(json.loads, logged.splitlines())
    assert (first["path"], first["status"], first["level"]) == ("/v1/ranks", 422, "info")
    assert second["status"] in (404, 422)
    assert third["level"] == "error"
    assert third["fault"].startswith("ZeroDivisionError ")
    assert third["request_id"] == failed.json()["request_id"]


def test_metrics_have_bounded_labels(client: TestClient) -> None:
    for i in range(20):
        client.get(f"/v1/plans/pl_{i}")
        client.get(f"/nowhere/{i}")
        client.request(f"M{i}", "/healthz")
    text = client.get("/metrics").text
    assert 'route="/v1/plans/{id}",status="404"' in text
    assert 'route="none",status="404"' in text
    assert "nowhere" not in text
    assert 'method="M' not in text


@pytest.mark.slow
def test_head_and_options(client: TestClient) -> None:
    got, head = client.get("/v1/catalog/schedules"), client.head("/v1/catalog/schedules")
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == got.headers["content-length"]
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        named = {method.upper() for method in methods}
        allowed = ", ".join(sorted({*named, "OPTIONS", *(["HEAD"] if "GET" in named else [])}))
        address = re.sub(r"\{\w+\}", "x", path)
        for method, status in (("OPTIONS", 204), ("PATCH", 405)):
            response = client.request(method, address)
            assert (response.status_code, response.headers["allow"]) == (status, allowed), path
    assert client.options("/nowhere").status_code == 404
    assert "access-control-allow-origin" not in client.options("/v1/plans").headers


def test_every_kind_of_problem_has_a_page(client: TestClient) -> None:
    listed = client.get("/problems").text
    for slug, kind in TYPES.items():
        assert f'href="problems/{slug}"' in listed
        page = client.get(f"/problems/{slug}")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert escape(kind.title) in page.text
    assert set(OF_STATUS) == {kind.status for kind in TYPES.values()}
    assert client.get("/problems/none").status_code == 404


@pytest.mark.one_in(3)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_hostile_name_is_a_name(client: TestClient, framework: str, tmp_path: Path) -> None:
    """In what is answered it is text, and in what is emitted it runs nothing."""
    model = client.get("/v1/catalog/models/llama-3.2-1b").json()["spec"] | {"name": HOSTILE}
    search = {"framework": framework, "tp": 1, "pp": 1, "cp": 1}
    ask = {**ASK, "model": model, "plan": None, "search": search}
    ask |= NEEDS.get(framework, {})
    response = client.post("/v1/bundles", json=ask)
    assert response.headers["content-type"] == "application/json"
    assert response.status_code == 200, response.text
    for name, text in response.json()["files"].items():
        file = tmp_path / name
        assert file.parent == tmp_path
        file.write_text(text)
        if text.startswith("#!/") and "sh" in text.splitlines()[0]:
            subprocess.run(["bash", "-n", file], check=True)
        if name.endswith(".py"):
            compile(text, name, "exec")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], socket.socket]]:
    """Connections to a real server that waits two seconds for heads and bodies."""
    monkeypatch.setattr(protocol, "_HEADER_TIMEOUT_S", 2.0)
    app = create_app(Settings(max_body_s=2.0))
    limits = {
        "http": protocol.HeaderTimeoutProtocol,
        "h11_max_incomplete_event_size": protocol.MAX_HEADER_BYTES,
    }
    with listening(app, **limits) as port:
        yield lambda: socket.create_connection(("127.0.0.1", port), timeout=300)


def answer(connection: socket.socket) -> bytes:
    """All that is sent until the server closes the connection."""
    found = b""
    while part := connection.recv(65_536):
        found += part
    return found


def refused(sent: bytes, status: int) -> Any:
    """The problem document of a connection that was refused before there was a call."""
    head, _, body = sent.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    document = json.loads(body)
    assert lines[0].split()[1] == str(status) == str(document["status"]), sent
    assert headers["content-type"] == MEDIA_TYPE
    assert headers["x-request-id"] == document["request_id"]
    assert headers["content-length"] == str(len(body))
    assert "x-frame-options" in headers
    return document


HEAD = b"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.slow
def test_slow_and_endless_requests_are_disconnected(server: Callable[[], socket.socket]) -> None:
    with server() as silent, server() as slow_head:
        slow_head.sendall(HEAD)
        with server() as slow_body:
            slow_body.sendall(HEAD + b"Content-Length: 100\r\nConnection: close\r\n\r\n{")
            head, _, body = answer(slow_body).partition(b"\r\n\r\n")
        assert answer(silent) == b""
        assert refused(answer(slow_head), 408)["type"] == "/problems/timeout"
        assert head.startswith(b"HTTP/1.1 408 ")
        assert json.loads(body)["type"] == "/problems/timeout"
    with server() as endless:
        endless.sendall(HEAD + b"X-Long: " + b"x" * 100_000)
        assert refused(answer(endless), 431)["type"] == "/problems/headers-too-large"
    for line in (b"GET\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET /healthz HTTX/1.1\r\n"):
        with server() as no_http:
            no_http.sendall(line + b"\r\n\r\n")
            assert refused(answer(no_http), 400)["type"] == "/problems/malformed"
    with server() as again:  # a second call on a connection has its time as well
        again.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /he")
        assert answer(again).count(b"HTTP/1.1 200 ") == 1


@pytest.mark.slow
def test_nobody_writes_our_headers(server: Callable[[], socket.socket]) -> None:
    injected = b"\r\nSet-Cookie: a=b"
    for line in (
        b"GET /v1/plans/pl_0%0d%0aSet-Cookie:%20a=b HTTP/1.1",
        b"GET /problems/x%0d%0aSet-Cookie:%20a=b HTTP/1.1",
        b"GET /healthz HTTP/1.1\r\nX-Request-ID: a\x0bb\r\n c",
        b"GET /healthz HTTP/1.1\r\nX-Request-ID: a\rSet-Cookie: a=b",
    ):
        with server() as connection:
            connection.sendall(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert injected not in answer(connection).partition(b"\r\n\r\n")[0]
    smuggled = HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x"
    with server() as connection:
        connection.sendall(smuggled)
        assert answer(connection).count(b"HTTP/1.1 ") <= 1
