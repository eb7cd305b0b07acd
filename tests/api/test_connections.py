"""Callers who do not read, who say nothing, and answers that are compressed."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time

import pytest
from fastapi.testclient import TestClient

from api import protocol
from api.app import create_app
from api.settings import Settings
from tests.fixtures.service import listening

TIMELINE = {
    "model": "gpt3-175b",
    "cluster": "16x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 1536},
    "plan": {"tp": 8, "pp": 16},
}


def health(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/healthz")
    return connection.getresponse().status


@pytest.mark.slow
def test_silent_connections_make_room() -> None:
    with listening(
        create_app(Settings()), http=protocol.HeaderTimeoutProtocol, limit_concurrency=20
    ) as port:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        assert [health(port) for _ in range(5)] == [200] * 5
        for one in silent:
            one.close()


def test_one_connection_too_many_is_told_so() -> None:
    """Where all others are in use, and none can make room."""
    with listening(
        create_app(Settings()), http=protocol.HeaderTimeoutProtocol, limit_concurrency=5
    ) as port:
        busy = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        for one in busy:  # its body never comes
            one.sendall(
                b"POST /v1/estimates HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
            )
        time.sleep(0.5)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["type"]) == (503, "/problems/queue-full")
        assert int(answer.headers["retry-after"]) > 0
        for one in busy:
            one.close()


@pytest.mark.slow
def test_a_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_READ_TIMEOUT_S", 0.3)
    with listening(create_app(Settings()), http=protocol.HeaderTimeoutProtocol) as port:
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", port))
        # Thousands of answers in a row, of which none is read.
        call = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
        reader.settimeout(10)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            _send_on(reader, call)
        reader.close()
        assert health(port) == 200


def test_what_is_written_in_one_turn_is_sent_at_once() -> None:
    """So that an answer's head does not travel apart from its body; what is long goes as it is."""
    here, there = socket.socketpair()
    there.setblocking(False)

    async def written() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=here)
        joined = protocol._Joined(transport, loop)
        joined.write(b"head")
        with pytest.raises(BlockingIOError):
            there.recv(100)
        joined.write(b"body")
        await asyncio.sleep(0)
        assert there.recv(100) == b"headbody"
        joined.write(b"head")
        joined.write(bytes(protocol._LONG_BYTES + 1))
        assert there.recv(100).startswith(b"head\0")
        joined.write(b"last")
        joined.close()
        assert joined.is_closing()

    asyncio.run(written())
    there.setblocking(True)
    assert b"".join(iter(lambda: there.recv(1 << 16), b"")).endswith(b"\0last")
    there.close()


def _send_on(connection: socket.socket, call: bytes) -> None:
    for _ in range(2_000):
        connection.sendall(call)
        time.sleep(0.01)


@pytest.mark.slow
def test_answers_are_compressed_where_the_caller_takes_it(client: TestClient) -> None:
    plain = client.post("/v1/timelines", json=TIMELINE, headers={"accept-encoding": "identity"})
    packed = client.post("/v1/timelines", json=TIMELINE, headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.json() == plain.json()
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
