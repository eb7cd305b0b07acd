"""Starts the process that traces one rank, watches it, and leaves no process behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planner.running.validate.dryrun.trace_result import Trace

_POLL_S = 0.2
_LAST_LINES = 12


class TraceFailed(RuntimeError):
    """A trace that ended without a result; the message has the reason and its last lines."""


@dataclass(frozen=True)
class Limits:
    """Limits on the time and memory of one rank's trace."""

    wall_s: float = 900.0
    rss_bytes: float = 4 * 2.0**30


def trace(script: str, rank: int, limits: Limits, progress: Callable[[float], None]) -> Trace:
    """Trace one rank of a training script in its own process; nothing is written to disk.

    The process ends with this one, since it watches its standard input, which closes then.
    Raises TraceFailed if it fails or exceeds a limit.
    """
    command = [sys.executable, "-m", "planner.running.validate.dryrun.rank_trace", str(rank)]
    text = script.encode()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryFile() as answer, subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=answer, stderr=subprocess.PIPE,
        env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(b"%d\n%s" % (len(text), text))
                process.stdin.flush()
            lines = _watch(process, limits, progress)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        if process.wait():
            detail = "\n".join(lines[-_LAST_LINES:])
            raise TraceFailed(f"the trace of rank {rank} failed:\n{detail}")
        answer.seek(0)
        return Trace.model_validate_json(answer.read())


def _watch(
    process: subprocess.Popen[bytes], limits: Limits, progress: Callable[[float], None]
) -> list[str]:
    """Follow a process to its end; returns its output lines other than progress."""
    assert process.stderr is not None
    printed: list[str] = []
    began = time.monotonic()
    os.set_blocking(process.stderr.fileno(), False)
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stderr, selectors.EVENT_READ)
        rest = b""
        while True:
            waiting.select(_POLL_S)
            read = process.stderr.read()
            *lines, rest = (rest + (read or b"")).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                done, slash, total = text.partition("/")
                if slash and done.isdigit() and total.isdigit():
                    progress(int(done) / int(total))
                else:
                    printed.append(text)
            if read == b"":
                return printed
            if time.monotonic() - began > limits.wall_s:
                raise TraceFailed(f"a rank's trace took longer than {limits.wall_s:g} s")
            if _rss_bytes(process.pid) > limits.rss_bytes:
                raise TraceFailed(
                    f"a rank's trace needed more than {limits.rss_bytes / 2**30:g} GiB of memory"
                )


def _rss_bytes(pid: int) -> int:
    """Resident memory of a process in bytes; 0 if the system does not report it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
