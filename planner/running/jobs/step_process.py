"""The server's side of a long step: starts its process, reads its messages and stops it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from planner.running.jobs.step_worker import GRACE_S, STOPS
from planner.running.validate.processes import process

MARK = "PLANNER_JOB"  # environment variable that marks every process of a step
_MAX_LINE_BYTES = 2000  # limit on the bytes of one log line


@contextmanager
def _blocked(numbers: frozenset[signal.Signals]) -> Iterator[None]:
    """Block signals; a child inherits the mask and unblocks them once its handlers are set."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


class StepProcess:
    """The process of one step; `next` returns its messages, `stop` ends it and all its children.

    lock: a locked file; the process inherits it, so the lock lasts as long as the process.
    """

    def __init__(self, task: str, folder: Path, lock: IO[bytes] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        temporary = folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        with _blocked(STOPS):
            self.process = subprocess.Popen(
                [sys.executable, "-m", "planner.running.jobs.step_worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**os.environ, MARK: self.mark, "TMPDIR": str(temporary)},
                start_new_session=True, pass_fds=() if lock is None else (lock.fileno(),),
            )  # fmt: skip
        if lock is not None:
            lock.close()
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=read, args=(pipe,), daemon=True)
            for read, pipe in (
                (self._read_answers, self.process.stdout),
                (self._read_log, self.process.stderr),
            )
        ]
        for reader in self._readers:
            reader.start()
        self._write(task)

    def extend(self, until: float) -> None:
        """Extend the process's lease to this time of the monotonic clock."""
        self._write(f"{until}\n")

    def next(self, wait_s: float) -> dict[str, Any] | None:
        """The next message: progress, part, log, result, failed, or `ended` with the exit code.

        None if there is none within wait_s.
        """
        try:
            message = self._messages.get(timeout=wait_s)
        except queue.Empty:
            return None
        return message if message is not None else {"ended": self.process.wait()}

    def stop(self) -> None:
        """End the process and all that it started; returns when none of them is left."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(GRACE_S)
        process.end(self.mark, MARK)
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(OSError):  # raised if the process has not read all its input
                assert pipe is not None
                pipe.close()

    def _write(self, text: str) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # the process has ended; `next` reports that
            self.process.stdin.write(text.encode())
            self.process.stdin.flush()

    def _read_answers(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            with suppress(ValueError):  # the process was killed in the middle of a line
                self._messages.put(json.loads(line))
        self._messages.put(None)

    def _read_log(self, pipe: IO[bytes]) -> None:
        while line := pipe.readline(_MAX_LINE_BYTES):
            text = "".join(c if c.isprintable() else " " for c in line.decode(errors="replace"))
            self._messages.put({"log": text.rstrip()})
