"""Bytes that are no honest call: framing, upgrades and bombs against a service of its own."""

from __future__ import annotations

import gzip
import json
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.budget import own_memory_bytes
from tests.fixtures.job_server import Place, Server

pytestmark = pytest.mark.exhaustive
BODY = b'{"model": "lama"}'
JSON = b"Content-Type: application/json\r\n"
POST = b"POST /v1/estimates HTTP/1.1\r\nHost: localhost\r\n" + JSON
SECOND = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("attackers") / "data"
    folder.mkdir()
    place = Place(folder, max_runs=0, max_body_s=3)
    yield place
    place.clear()


@pytest.fixture(scope="module")
def server(place: Place) -> Server:
    return place.serve()


def answers(server: Server, *parts: bytes, pause_s: float = 0.0) -> list[int]:
    """The statuses of all answers to what is sent on one connection, until it is closed."""
    address = server.http.base_url
    with socket.create_connection((address.host, address.port), timeout=30) as connection:
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(pause_s)
            connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError, OSError):
            pass  # refused before all was sent
        told = b""
        try:
            while part := connection.recv(1 << 16):
                told += part
        except ConnectionResetError:
            pass
    assert b"Traceback" not in told
    return [int(line.split(b" ", 2)[1]) for line in told.split(b"\r\n") if line[:9] == b"HTTP/1.1 "]


SMUGGLED = {
    "two lengths": POST + b"Content-Length: 5\r\nContent-Length: 17\r\n\r\n" + BODY + SECOND,
    "a list of lengths": POST + b"Content-Length: 5, 17\r\n\r\n" + BODY + SECOND,
    "a length and chunks": POST
    + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
    "chunks and a length": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 100\r\n\r\n0\r\n\r\n" + SECOND,
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SECOND,
    "chunked twice": POST
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + SECOND,
    "space before the colon": POST + b"Content-Length : 17\r\n\r\n" + BODY + SECOND,
    "a folded line": POST + b"X: a\r\n Content-Length: 17\r\nContent-Length: 0\r\n\tb: 1\r\n\r\n",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n" + BODY,
    "a signed length": POST + b"Content-Length: +17\r\n\r\n" + BODY + SECOND,
    "a hexadecimal length": POST + b"Content-Length: 0x11\r\n\r\n" + BODY + SECOND,
    "a length with an underscore": POST + b"Content-Length: 1_7\r\n\r\n" + BODY + SECOND,
    "an endless length": POST + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n" + BODY,
    "a size that is no number": CHUNKED + b"zz\r\nab\r\n0\r\n\r\n" + SECOND,
    "a negative size": CHUNKED + b"-1\r\nab\r\n0\r\n\r\n" + SECOND,
    "a size that overflows": CHUNKED + b"ffffffffffffffffffff\r\nab\r\n0\r\n\r\n" + SECOND,
    "a chunk longer than its size": CHUNKED + b"2\r\nabcdef\r\n0\r\n\r\n" + SECOND,
    "an endless extension": CHUNKED + b"2;" + b"a" * 200_000 + b"\r\nab\r\n0\r\n\r\n" + SECOND,
    "line feeds alone in a chunk": CHUNKED + b"2\nab\n0\n\n" + SECOND,
    "a null in a header": POST + b"X: a\x00b\r\n\r\n" + SECOND,
    "a null in the address": b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "a space in the address": b"GET /healthz /x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an address of elsewhere": b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "thousands of headers": POST + b"X: y\r\n" * 50_000 + b"\r\n",
    "HTTP/2 at once": HTTP2,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "a tunnel": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("sent", SMUGGLED.values(), ids=list(SMUGGLED))
def test_what_is_framed_badly_gets_one_refusal(server: Server, sent: bytes) -> None:
    """Nothing behind it is taken as a second call."""
    got = answers(server, sent)
    assert len(got) <= 1
    assert all(400 <= status < 500 for status in got), got
    assert server.http.get("/healthz").status_code == 200


UPGRADES = {
    "WebSocket": b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    "HTTP/2": b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"HTTP2-Settings: AAMAAABk\r\n",
    "TLS": b"Upgrade: TLS/1.0\r\nConnection: Upgrade\r\n",
}


@pytest.mark.parametrize("wanted", UPGRADES.values(), ids=list(UPGRADES))
def test_no_other_protocol_is_spoken(server: Server, wanted: bytes) -> None:
    """The call is answered as plain HTTP/1.1, and what follows is no tunnel."""
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    assert answers(server, head + wanted + b"\r\n" + b"\x81\x05hello") in ([200], [200, 400])


@pytest.mark.parametrize("part", [b"P", b"x"])
def test_a_call_of_a_byte_a_time_is_ended(server: Server, part: bytes) -> None:
    began = time.monotonic()
    parts = (
        [part] * 120 if part == b"P" else [POST + b"Content-Length: 9999\r\n\r\n", *[part] * 120]
    )
    got = answers(server, *parts, pause_s=0.1)
    assert got in ([408], [400], [])
    assert time.monotonic() - began < 20


def bombs() -> Iterator[tuple[str, bytes]]:
    huge = b"[" + b" " * (200 << 20) + b"]"
    yield "gzip", gzip.compress(huge)
    yield "deflate", zlib.compress(huge)
    yield "br", b"\x81\xff\xff\xff\x7f" * 100
    yield "gzip", gzip.compress(gzip.compress(huge))


def test_compressed_bodies_are_not_unpacked(place: Place, server: Server) -> None:
    pids = place.processes()
    for coding, body in bombs():
        headers = {"content-type": "application/json", "content-encoding": coding}
        for path in ("/v1/plans", "/v1/lints", "/v1/estimates"):
            answer = server.http.post(path, content=body, headers=headers)
            assert answer.status_code in (400, 413, 415), answer.text
            assert answer.headers["content-type"] == "application/problem+json"
        assert max(map(own_memory_bytes, pids)) < 400 << 20


def test_files_that_unpack_themselves_are_text(server: Server) -> None:
    """YAML whose anchors double, and an archive as a file."""
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    for name, text in (
        ("config.yaml", "\n".join(lines)), ("run.zip", "PK\x03\x04" + "\x00" * 1000),
        ("../../etc/cron.d/x", "* * * * * root id"), ("/etc/passwd", "x"),
    ):  # fmt: skip
        document = {"files": {name: text}, "cluster": "1x8xh100-sxm"}
        answer = server.http.post("/v1/lints", content=json.dumps(document), headers={
            "content-type": "application/json"
        })  # fmt: skip
        assert answer.status_code in (200, 422), answer.text
    assert not Path("/etc/cron.d/x").exists()
