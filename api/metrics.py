"""The service's metrics for Prometheus: calls by route, never by their full address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, partial
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from api.pool import Pool
from planner.documents.service import State
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
        self._metrics_of = cache(self._labelled)  # routes are few, and looking labels up costs more
        about = Gauge(
            "planner_info",
            "What runs",
            ("version",),
            registry=self.registry,
            multiprocess_mode="mostrecent",
        )
        about.labels(__version__).set(1)

        gauge = partial(Gauge, registry=self.registry)
        self._taken = gauge(
            "planner_places_taken", "Work that runs", ("pool",), multiprocess_mode="livesum"
        )
        self._waiting = gauge(
            "planner_places_waiting", "Calls that wait for a place", ("pool",),
            multiprocess_mode="livesum",
        )  # fmt: skip
        self._places = gauge(
            "planner_places", "Work that may run at a time", ("pool",), multiprocess_mode="livesum"
        )
        self._jobs = gauge(
            "planner_jobs", "Jobs by state", ("state",), multiprocess_mode="mostrecent"
        )
        self._oldest = gauge(
            "planner_oldest_queued_job_seconds", "Wait of the job that waits longest",
            multiprocess_mode="mostrecent",
        )  # fmt: skip
        self.store_errors = Counter(
            "planner_store_errors", "Calls that the store could not serve", registry=self.registry
        )

    def see_places(self, name: str, pool: Pool) -> None:
        """Note how full a pool is."""
        self._places.labels(name).set(pool.limit.places)
        self._taken.labels(name).set(pool.limit.taken)
        self._waiting.labels(name).set(pool.waiting)

    def see_jobs(self, counts: Mapping[str, int], oldest_s: float) -> None:
        """Note how many jobs there are by state, and how long the first one waits."""
        for state in get_args(State):
            self._jobs.labels(state).set(counts.get(state, 0))
        self._oldest.set(oldest_s)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a call."""
        count, time = self._metrics_of(method if method in METHODS else "other", route, status)
        count.inc()
        time.observe(seconds)

    def _labelled(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        return self._calls.labels(method, route, status), self._seconds.labels(method, route)

    def text(self) -> bytes:
        """All of it in Prometheus's text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()  # of all processes of the service
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
