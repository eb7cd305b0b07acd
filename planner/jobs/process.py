"""A runner's process, as its server sees it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from planner.jobs.runner import GRACE_S
from planner.validate import process

MARK = "PLANNER_JOB"  # the environment variable of all that a runner starts
_LONGEST = 2000  # bytes of a line of its log


class Runner:
    """One process that does a step; `next` says what it tells, `stop` leaves nothing of it.

    lock: of a file, which is the process's own from then on, so that it lasts exactly as long.
    """

    def __init__(self, task: str, folder: Path, lock: IO[bytes] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "planner.jobs.runner"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, MARK: self.mark, "TMPDIR": str(temporary)}, start_new_session=True,
            pass_fds=() if lock is None else (lock.fileno(),),
        )  # fmt: skip
        if lock is not None:
            lock.close()
        self._told: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=read, args=(pipe,), daemon=True)
            for read, pipe in (
                (self._read_answers, self.process.stdout),
                (self._read_log, self.process.stderr),
            )
        ]
        for one in self._readers:
            one.start()
        self._write(task)

    def prolong(self, until: float) -> None:
        """Let it live until this moment of the monotonic clock."""
        self._write(f"{until}\n")

    def next(self, wait_s: float) -> dict[str, Any] | None:
        """What it tells next: progress, log, result, failed, or `ended` with its exit code."""
        try:
            told = self._told.get(timeout=wait_s)
        except queue.Empty:
            return None
        return told if told is not None else {"ended": self.process.wait()}

    def stop(self) -> None:
        """End it and all that it started; returns when none of them is left."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        process.end(self.mark, MARK)
        self.process.wait()
        for one in self._readers:
            one.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(OSError):  # what it never read
                assert pipe is not None
                pipe.close()

    def _write(self, text: str) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, which `next` tells
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()

    def _read_answers(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            with suppress(ValueError):  # it was killed within a line
                self._told.put(json.loads(line))
        self._told.put(None)

    def _read_log(self, pipe: IO[bytes]) -> None:
        while line := pipe.readline(_LONGEST):
            text = "".join(c if c.isprintable() else " " for c in line.decode(errors="replace"))
            self._told.put({"log": text.rstrip()})
