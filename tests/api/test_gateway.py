"""The gateway's configuration, run by nginx before a service of this machine."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest

import api
from tests.fixtures.job_server import ENDLESS, SWEEP, Place, eventually

pytestmark = pytest.mark.exhaustive

CONFIGURATION = Path(api.__file__).parent / "deploy" / "gateway.conf"
PROGRAM = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
NAME = "planner.example.org"
KEY = "only-for-this-run"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Gateway:
    """nginx with the configuration, on ports of its own."""

    def __init__(self, folder: Path, service: str) -> None:
        assert PROGRAM is not None
        self.folder, self.port, self.plain = folder, free_port(), free_port()
        words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
        words += ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
        files = ["-keyout", str(folder / "planner.key"), "-out", str(folder / "planner.crt")]
        subprocess.run([*words, *files], check=True, capture_output=True)
        text = CONFIGURATION.read_text()
        for old, new in (
            ("/etc/nginx/planner", f"{folder}/planner"),
            ("127.0.0.1:8000", service.removeprefix("http://")),
            ("listen 443", f"listen 127.0.0.1:{self.port}"),
            ("listen 80", f"listen 127.0.0.1:{self.plain}"),
            ("client_header_timeout 10s", "client_header_timeout 2s"),
        ):
            assert old in text
            text = text.replace(old, new)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; error_log stderr;\n"
            + "user root;\n" * (os.geteuid() == 0)
            + f"events {{}}\nhttp {{ access_log {folder}/calls;\n{temporary}{text}}}\n"
        )
        self.command = [PROGRAM, "-p", str(folder), "-c", str(folder / "nginx.conf")]
        self.service = service
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)
        eventually(self._listens, "nginx", 10)

    def _listens(self) -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    def caller(self, key: str = KEY) -> httpx.Client:
        """A client that trusts its certificate and asks for its name at this machine."""
        trust = ssl.create_default_context(cafile=str(self.folder / "planner.crt"))
        trust.check_hostname = False
        address = f"https://127.0.0.1:{self.port}"
        headers = {"Host": NAME} | ({"X-API-Key": key} if key else {})
        return httpx.Client(base_url=address, verify=trust, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    if PROGRAM is None:
        pytest.skip("needs nginx")
    place = Place(tmp_path_factory.mktemp("service"))
    folder = tmp_path_factory.mktemp("gateway")
    try:
        hashed = hashlib.sha256(KEY.encode()).hexdigest()
        server = place.serve(
            trusted_proxies="127.0.0.1", group_roles="*=admin", api_keys_sha256=hashed
        )
        found = Gateway(folder, str(server.http.base_url).rstrip("/"))
        found.start()
        yield found
        found.stop()
    finally:
        place.clear()


def test_nginx_takes_it(gateway: Gateway) -> None:
    done = subprocess.run([*gateway.command, "-t"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "test is successful" in done.stderr


def test_a_plan_comes_through_tls(gateway: Gateway) -> None:
    plain = httpx.get(f"http://127.0.0.1:{gateway.plain}/v1/info", headers={"Host": NAME})
    assert plain.status_code == 308
    assert plain.headers["location"] == f"https://{NAME}/v1/info"
    with gateway.caller() as caller:
        assert caller.get("/metrics").status_code == 404
        assert caller.get("/readyz").status_code == 404
        answer = caller.post("/v1/estimates", json=SWEEP["base"])
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["strict-transport-security"]
        assert answer.json()["estimate"]["iteration_time_s"] > 0


def test_nobody_signs_in_by_saying_so(gateway: Gateway) -> None:
    """The service believes this machine, on which the gateway is; not who calls the gateway."""
    said = {"X-Forwarded-Email": "boss@example.org", "X-Forwarded-Groups": "sre"}
    assert httpx.get(f"{gateway.service}/v1/sites", headers=said).status_code == 200
    with gateway.caller(key="") as caller:
        assert caller.get("/v1/sites", headers=said).status_code == 401


def test_slow_headers_end_at_the_gateway(gateway: Gateway) -> None:
    trust = ssl.create_default_context(cafile=str(gateway.folder / "planner.crt"))
    with (
        socket.create_connection(("127.0.0.1", gateway.port)) as plain,
        trust.wrap_socket(plain, server_hostname=NAME) as connection,
    ):
        connection.settimeout(10)
        began = time.monotonic()
        connection.sendall(b"GET / HTTP/1.1\r\n")
        # It is reset or closed, without an answer of the service.
        try:
            said = connection.recv(4096)
        except ConnectionError:
            said = b""
        assert b"200" not in said
        assert time.monotonic() - began < 6


def test_events_are_passed_on_at_once(gateway: Gateway) -> None:
    with gateway.caller() as caller:
        job = caller.post("/v1/sweeps", json=ENDLESS).json()["links"]
        try:
            with caller.stream("GET", f"{job['self']}/events") as events:
                began = time.monotonic()
                first = next(line for line in events.iter_lines() if line.startswith("data:"))
                assert time.monotonic() - began < 20, first
        finally:
            caller.post(f"{job['self']}/cancel")


def test_too_many_calls_are_refused_there(gateway: Gateway) -> None:
    burst = int(re.findall(r"burst=(\d+)", CONFIGURATION.read_text())[0])
    # A key of its own is counted apart from the other tests.
    with gateway.caller(key="another") as caller, ThreadPoolExecutor(16) as callers:
        asked = callers.map(lambda _: caller.get("/healthz").status_code, range(900))
        found = Counter(asked)
    assert found[200] >= burst
    assert found[429] > 0
    assert set(found) == {200, 429}
