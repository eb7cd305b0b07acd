"""Several processes that serve HTTP on one port; one of them also runs the jobs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from types import FrameType

from api.settings import Settings

LISTENER = "PLANNER_LISTENER"  # the file number of the socket that a worker serves
_EARLY_EXIT_S = 10.0  # a worker that ended sooner is restarted after a delay
_PAUSE_S = 2.0
_TICK_S = 0.2


class Workers:
    """The workers of one port; one that dies is replaced."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self.settings, self.listener = settings, listener
        self._workers: dict[int, tuple[subprocess.Popen[bytes], float]] = {}
        self._stopping = False

    def run(self) -> int:
        """Serve until a signal ends it; the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        with tempfile.TemporaryDirectory(prefix="planner-metrics-") as metrics:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
            while not self._stopping:
                for index in range(self.settings.workers):
                    self._supervise(index)
                time.sleep(_TICK_S)
            return max((worker.wait() for worker, _ in self._workers.values()), default=0)

    def _supervise(self, index: int) -> None:
        worker, began = self._workers.get(index, (None, 0.0))
        if worker is not None:
            if worker.poll() is None:
                return
            if time.monotonic() - began < _EARLY_EXIT_S:
                time.sleep(_PAUSE_S)
        if not self._stopping:
            self._workers[index] = self._start(index), time.monotonic()

    def _start(self, index: int) -> subprocess.Popen[bytes]:
        fd, count, settings = self.listener.fileno(), self.settings.workers, self.settings
        variables = {
            LISTENER: str(fd),
            "PLANNER_HOST": settings.host,
            "PLANNER_WORKERS": str(count),  # they share the cores
            "PLANNER_MAX_CONCURRENCY": str(max(1, settings.max_concurrency // count)),
            "PLANNER_MAX_CONNECTIONS": str(max(1, settings.max_connections // count)),
            # The rate of a key is counted over all workers, that of an address by each worker.
            "PLANNER_CALLS_PER_MINUTE": str(
                settings.rate if settings.keys else -(-settings.rate // count)
            ),
            "PLANNER_MAX_RUNS": str(0 if index else settings.jobs.max_runs),
        }
        command = [sys.executable, "-m", "planner.cli", "serve"]
        return subprocess.Popen(command, env={**os.environ, **variables}, pass_fds=[fd])

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        for worker, _ in self._workers.values():
            worker.terminate()
