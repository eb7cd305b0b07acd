"""What the service counts, for Prometheus: each call by its route, never by its address."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from planner.version import __version__

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """The counters of one application."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route")
        self._calls = Counter(
            "planner_http_requests", "Calls answered", (*labels, "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "planner_http_request_duration_seconds", "Time of a call", labels,
            buckets=_BUCKETS_S, registry=self.registry,
        )  # fmt: skip
        about = Gauge("planner_info", "What runs", ("version",), registry=self.registry)
        about.labels(__version__).set(1)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a call."""
        method = method if method in METHODS else "other"
        self._calls.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        return generate_latest(self.registry)
