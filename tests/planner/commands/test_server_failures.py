"""`planner --server URL` without an answer: no server, no key, another version, not its work."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from planner.commands.failures import BAD_INPUT, FINE, OUR_FAULT
from planner.version import __version__
from tests.fixtures.commands import PLAN, SMALL, Planner
from tests.fixtures.job_server import Place
from tests.fixtures.service import listening


@pytest.mark.parametrize("command", ["serve", "doctor", "tune", "calibrate", "accuracy", "mcp"])
def test_what_is_of_this_machine_says_so(planner: Planner, command: str) -> None:
    code, out, err = planner("--server", "http://127.0.0.1:9", command)
    assert (code, out) == (BAD_INPUT, "")
    assert f"planner {command} is of this machine, not of a service" in err


def test_what_is_of_this_machine_stays_here(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_SERVER", "http://127.0.0.1:9")
    code, out, err = planner("validations")
    assert (code, out.split(":")[0]) == (FINE, "none yet")
    assert err == "note: planner validations runs on this machine and ignores PLANNER_SERVER\n"
    assert planner("catalog")[0] == OUR_FAULT


def test_nobody_answers(planner: Planner) -> None:
    server = ("--server", "http://127.0.0.1:9")
    code, out, err = planner(*server, "plan", *SMALL)
    assert (code, out) == (OUR_FAULT, "")
    assert err == "no answer from http://127.0.0.1:9: Connection refused.\n"
    code, out, _ = planner(*server, "plan", *SMALL, "--json")
    assert code == OUR_FAULT
    assert json.loads(out)["status"] == 502


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:8000", "must be such as http://localhost:8000, got 'localhost:8000'"),
        ("ftp://localhost", "must be such as http://localhost:8000"),
        ("http://", "must be such as http://localhost:8000"),
        ("http://localhost:99999", "must be such as http://localhost:8000"),
        ("http://me:secret@localhost", "has a name or a key in it"),
        ("http://localhost/?a=1", "has a ? or a #"),
    ],
)
def test_addresses_that_are_none(planner: Planner, url: str, why: str) -> None:
    for words in (("--server", url), (f"--server={url}",)):
        code, out, err = planner(*words, "catalog")
        assert (code, out) == (BAD_INPUT, "")
        assert f"--server: {why}" in err
        assert "secret" not in err


@pytest.mark.slow
def test_keys(planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"reader": "read", "user": "plan"}
    listed = [
        f"{name}:{role}:{hashlib.sha256(f'key-of-{name}'.encode()).hexdigest()}"
        for name, role in keys.items()
    ]
    place = Place(tmp_path / "service", api_keys_sha256=",".join(listed), calls_per_minute=3)
    (tmp_path / "service").mkdir()
    try:
        server = place.serve()
        url = str(server.http.base_url).rstrip("/")
        ask = ("--server", url, "estimate", *PLAN)
        set_it = "set PLANNER_API_KEY or PLANNER_API_KEY_FILE.\n"
        assert planner(*ask) == (OUR_FAULT, "", f"{url} needs a key: {set_it}")
        monkeypatch.setenv("PLANNER_API_KEY", "key-of-nobody")
        assert planner(*ask) == (OUR_FAULT, "", f"{url} does not know this key: {set_it}")
        monkeypatch.setenv("PLANNER_API_KEY", "key-of-reader")
        code, _, err = planner(*ask)
        assert code == OUR_FAULT
        assert "reader has the role 'read'; this needs 'plan'" in err
        monkeypatch.delenv("PLANNER_API_KEY")
        Path("key").write_text("key-of-user\n")
        monkeypatch.setenv("PLANNER_API_KEY_FILE", "key")
        assert [planner(*ask)[2] for _ in range(3)] == [""] * 3
        code, _, err = planner(*ask)
        assert code == OUR_FAULT
        why = "more than 3 calls a minute"
        assert re.fullmatch(rf"{url} is busy: {why}; try again in \d+ s\.\n", err)
        assert "key-of" not in server.said()
        monkeypatch.setenv("PLANNER_API_KEY_FILE", "nothing")
        code, _, err = planner(*ask)
        assert code == BAD_INPUT
        assert "PLANNER_API_KEY_FILE: cannot read 'nothing'" in err
        monkeypatch.setenv("PLANNER_API_KEY", "two\nlines")
        code, _, err = planner(*ask)
        assert code == BAD_INPUT
        assert "two" not in err
    finally:
        place.clear()


def test_another_version(planner: Planner) -> None:
    """A service that lacks the route, and one whose answers have other members."""
    app = FastAPI()
    app.get("/healthz")(lambda: {"status": "ok", "version": "0.0.1"})
    app.get("/v1/catalog/models")(lambda: {"models": [{"name": "gpt2"}]})
    with listening(app) as port:
        url = f"http://127.0.0.1:{port}"
        said = f"{url} runs planner 0.0.1 and this is {__version__}, whose documents differ: "
        for command in (("plan", *SMALL), ("catalog", "models")):
            code, out, err = planner("--server", url, *command)
            assert (code, out) == (OUR_FAULT, "")
            assert err.startswith(said)
            assert err.count("\n") == 1


def test_a_server_without_a_command(planner: Planner) -> None:
    code, out, err = planner("--server", "http://127.0.0.1:9")
    assert (code, out) == (BAD_INPUT, "")
    assert "--server goes before a command" in err
    assert planner("--version") == (FINE, f"{__version__}\n", "")


class _Other(BaseHTTPRequestHandler):
    """A web server that is no planner; it sends callers on to the next."""

    seen: list[Any] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(302 if self.path == "/v1/catalog/models" else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"<html/>")

    def log_message(self, format: str, *args: Any) -> None:
        return


def test_something_else_listens(planner: Planner) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        code, _, err = planner("--server", url, "catalog", "models")
        assert code == OUR_FAULT
        assert err == f"{url} answers 302 Found, not as a service of the planner does.\n"
        assert "/elsewhere" not in _Other.seen  # where the key would have gone too
        code, _, err = planner("--server", url, "catalog", "clusters")
        assert code == OUR_FAULT
        assert err.startswith(f"the response of {url} is not from planner {__version__}")
    finally:
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Type: application/json\r\nContent-Encoding: gzip", b"no gzip"),
        ("Content-Type: application/json\r\nContent-Length: 100", b"{}"),
        ("Content-Type: text/event-stream", b"event: progress\ndata: {}\n\n"),
        ("Content-Type: text/event-stream", b"event: problem\ndata: []\n\n"),
        ("Content-Type: text/event-stream", b": nothing more\n\n"),
        ("Content-Type: application/json", b"[1"),
    ],
)
def test_answers_that_are_cut_off(planner: Planner, headers: str, body: bytes) -> None:
    """Whatever comes over the line is one sentence, and no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1 << 20)
                        head = f"HTTP/1.1 200 OK\r\n{headers}\r\nConnection: close\r\n\r\n"
                        connection.sendall(head.encode() + body)

        threading.Thread(target=answer, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        code, out, err = planner("--server", url, "plan", *SMALL)
        listener.shutdown(socket.SHUT_RDWR)
    assert (code, out) == (OUR_FAULT, "")
    assert url in err
    assert err.count("\n") == 1
    assert "planner failed" not in err
