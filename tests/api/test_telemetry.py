"""Traces of a service, as a collector gets them."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fixtures.job_server import SWEEP, Place, eventually

pytestmark = pytest.mark.exhaustive

Spans = dict[bytes, tuple[str, bytes]]  # name and parent by id


@pytest.fixture
def collector() -> Iterator[tuple[str, Spans]]:
    """Its address, and the spans that it got."""
    found: Spans = {}

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                sent = ExportTraceServiceRequest.FromString(body)
                for resource in sent.resource_spans:
                    for scope in resource.scope_spans:
                        found.update({s.span_id: (s.name, s.parent_span_id) for s in scope.spans})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", found
    server.shutdown()


def test_a_call_its_wait_and_the_steps_of_a_job(
    tmp_path: Path, collector: tuple[str, Spans], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, spans = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    place = Place(tmp_path / "data")
    try:
        server = place.serve()
        server.http.post("/v1/plans", json=SWEEP["base"] | {"plan": None}).raise_for_status()
        assert server.end(server.start("sweeps", SWEEP))["state"] == "succeeded"
        wanted = {"queue", "compute api.work.compute plan", "sweeps ask"}

        def names() -> set[str]:
            return {name for name, _ in spans.values()}

        def line(span: bytes) -> Iterator[str]:
            """The names of a span and of those that it is a part of."""
            while span in spans:
                name, span = spans[span]
                yield name

        eventually(lambda: wanted <= names(), f"{wanted}", 60)
        for path in ("/v1/plans", "/v1/sweeps"):
            eventually(lambda path=path: any(path in name for name in names()), path, 60)
        # Each waits for a worker that reads it, and the plan for one that searches.
        for path in ("/v1/plans", "/v1/sweeps"):
            above = {parent for name, parent in spans.values() if name == "queue"}
            assert any(path in name for one in above for name in line(one))
    finally:
        place.clear()
