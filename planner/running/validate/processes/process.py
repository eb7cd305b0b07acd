"""Starts the ranks of a run, watches them, and leaves no process behind however it ends (Linux).

Every process of a run has the run's token in its environment, by which all of them are found and
killed: a process group would not do, since torchrun starts each rank in its own session.  If this
process itself is killed, the kernel kills torchrun and then the ranks (see torchrun_agent.py).
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from planner.documents.plan_report import Document
from planner.documents.problems import failure_document
from planner.running.validate.run_files import LOGS, heartbeat, heartbeat_file

TOKEN = "PLANNER_RUN"  # environment variable with the run's token
_TICK_S = 0.1
_TAIL_LINES = 12
_TAIL_BYTES = 16_384
_WAITS = re.compile(
    r"\b(wait\w*|_wait\w*|all_reduce|all_gather\w*|reduce_scatter\w*|all_to_all\w*|barrier|"
    r"broadcast|recv|send|batch_isend_irecv)\b"
)

# Causes of failures, root causes before consequences: the first that matches any rank explains the
# run.  Each has a code, a pattern for the end of a log, and a sentence.
_CAUSES: tuple[tuple[str, str, str], ...] = (
    ("killed", r"(?!)", "was killed by signal {signal}"),
    ("no_space",
     r"No space left on device|Disk quota exceeded|File too large|StreamWriter failed writing",
     "could not write: no space left on the disk"),
    ("out_of_memory", r"out of memory|can't allocate memory|bad_alloc|MemoryError",
     "ran out of memory"),
    ("address_in_use", r"EADDRINUSE|[Aa]ddress already in use",
     "found no free port: the address is already in use"),
    ("crashed", r"Error|Exception|Traceback", "crashed: {line}"),
    ("timeout", r"[Tt]imed? ?out", "timed out in a collective: {line}"),
    ("lost_peer", r"[Cc]onnection (closed|reset|refused)|Broken pipe",
     "lost its connection to another rank"),
)  # fmt: skip
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # also exit codes of ranks/worker.py


class Limits(Document):
    """The limits of a run; it is killed when it exceeds one.

    memory_bytes: of all its processes together; None: nine tenths of the free memory at its start.
    """

    ranks: Annotated[int, Field(ge=1, le=4096)] = 64
    wall_s: Annotated[float, Field(gt=0, le=86_400)] = 1800.0
    silence_s: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    log_bytes: Annotated[int, Field(gt=0)] = 64 * 2**20


class RunFailed(Exception):
    """A run ended without a result; has a code, the reason, the rank at fault and its log's end.

    Codes: those of _CAUSES, and hung, too_long, too_much_memory, too_much_log, no_result, too_many.
    """

    def __init__(self, code: str, reason: str, rank: int | None = None, log: str = "") -> None:
        subject = "the run" if rank is None else f"rank {rank}"
        super().__init__(f"{subject} {reason}")
        self.code, self.rank, self.log = code, rank, log

    def document(self) -> dict[str, Any]:
        """This error as a problem document (RFC 9457)."""
        slug = f"run/{self.code.replace('_', '-')}"
        problem = failure_document(slug, "The run failed", str(self))
        return problem | {"rank": self.rank, "log": self.log.splitlines()}


class Stopped(BaseException):
    """A signal asked this process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """A context in which the first Ctrl-C, SIGTERM or SIGHUP raises Stopped.

    Later signals are ignored, so that clean-up is not interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(number: int, _: Any) -> None:
        for n in numbers:
            signal.signal(n, signal.SIG_IGN)
        raise Stopped(number)

    previous = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def launch(
    folder: Path,
    ranks: int,
    limits: Limits,
    *,
    module: str = "planner.running.validate.ranks.worker",
    port: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Run the job of a folder in this many processes of this machine, and wait for all.

    module: run by each rank with the folder as its argument.  port: for the rendezvous of the
    ranks; None: any free one.  progress: called when the activity of the ranks changes.
    Raises RunFailed.  No process of the run is left behind, whatever happens.
    """
    if ranks > limits.ranks:
        raise RunFailed("too_many", f"needs {ranks} processes, and may have {limits.ranks}")
    token = uuid.uuid4().hex
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        **os.environ, TOKEN: token, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }  # fmt: skip
    environment.setdefault("OMP_NUM_THREADS", "1")
    meeting = (
        ["--standalone"]
        if port is None
        else ["--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={port}"]
    )
    command = [
        sys.executable, "-m", "planner.running.validate.processes.torchrun_agent", *meeting,
        f"--nproc-per-node={ranks}", "--max-restarts=0", f"--monitor-interval={_TICK_S}",
        "--redirects=3", f"--log-dir={folder / LOGS}", "--module", module, str(folder),
    ]  # fmt: skip
    try:
        with (folder / "torchrun.log").open("wb") as log:
            agent = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=log, start_new_session=True,
            )  # fmt: skip
        with agent:
            memory_bytes = limits.memory_bytes or int(0.9 * _available_bytes())
            _Watch(folder, ranks, limits, memory_bytes, token, progress).until(agent)
            assert agent.stdout is not None
            printed = agent.stdout.read().decode(errors="replace")
    finally:
        end(token)
    if agent.returncode:
        raise _failure(folder, printed, agent.returncode)


def members(token: str, variable: str = TOKEN) -> list[int]:
    """The living processes of a run: those with the token in this environment variable."""
    mark = f"{variable}={token}".encode()
    pids = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):  # the process has ended, or belongs to another user
                if mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
    return pids


def end(token: str, variable: str = TOKEN) -> None:
    """Kill every process of a run; returns when none is left."""
    while pids := members(token, variable):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


@dataclass
class _Watch:
    """Watches the limits of a run, and kills it when it exceeds one."""

    folder: Path
    ranks: int
    limits: Limits
    memory_bytes: int
    token: str
    progress: Callable[[str], None]
    reported_at_s: float = field(default=0.0, init=False)  # of the monotonic clock
    reports: tuple[float, ...] = field(default=(), init=False)

    def until(self, agent: subprocess.Popen[bytes]) -> None:
        """Wait for torchrun to end.  Past a limit, kill the run and raise RunFailed."""
        start, shown = time.monotonic(), ""
        self.reported_at_s = start
        try:
            while agent.poll() is None:
                self._check(start)
                if (text := self._progress_text()) != shown:
                    self.progress(text)
                    shown = text
                with suppress(subprocess.TimeoutExpired):
                    agent.wait(_TICK_S)
        except BaseException:
            end(self.token)
            raise

    def _check(self, start: float) -> None:
        now, limits = time.monotonic(), self.limits
        if now - start > limits.wall_s:
            raise RunFailed("too_long", f"was not done after {limits.wall_s:g} s, and was ended")
        if (used := _memory_bytes(self.token)) > self.memory_bytes:
            may = f"{self.memory_bytes / 2**30:.2f}"
            reason = f"used {used / 2**30:.2f} GiB of memory, may use {may}, and was ended"
            raise RunFailed("too_much_memory", reason)
        for rank in range(self.ranks):
            if (log := log_file(self.folder, rank)) and log.stat().st_size > limits.log_bytes:
                reason = f"wrote more than {limits.log_bytes:,} bytes into its log, and was ended"
                raise RunFailed("too_much_log", reason, rank, tail(log))
        if (reports := tuple(self._report_times())) != self.reports:
            self.reported_at_s, self.reports = now, reports
        if now - self.reported_at_s > limits.silence_s:
            raise self._hung_error()

    def _report_times(self) -> Iterator[float]:
        """The time of each rank's last progress report, by the clock of the file system."""
        for rank in range(self.ranks):
            with suppress(FileNotFoundError):
                yield (self.folder / heartbeat_file(rank)).stat().st_mtime

    def _progress_text(self) -> str:
        heartbeats = [h for rank in range(self.ranks) if (h := heartbeat(self.folder, rank))]
        if len(heartbeats) < self.ranks:
            return f"starting {self.ranks} processes: {len(heartbeats)} are there"
        return min(heartbeats, key=lambda h: h.count).words

    def _hung_error(self) -> RunFailed:
        """The error of a hung run, from the ranks' stacks: one that is not waiting is to blame."""
        heartbeats = {rank: h for rank in range(self.ranks) if (h := heartbeat(self.folder, rank))}
        for h in heartbeats.values():
            with suppress(ProcessLookupError):
                os.kill(h.pid, signal.SIGUSR1)
        time.sleep(1.0)
        logs = {rank: tail(log_file(self.folder, rank), lines=200) for rank in range(self.ranks)}
        stacks = {rank: _stack(log) for rank, log in logs.items()}
        busy = [rank for rank, stack in stacks.items() if not _WAITS.search(" ".join(stack[:4]))]
        waiting = sorted(set(stacks) - set(busy))
        if not busy:
            reason = f"hung: every rank waits in a collective, {_innermost(stacks[0])}"
            return RunFailed("hung", f"{reason}, for {self.limits.silence_s:g} s", None, logs[0])
        rank = busy[0]
        at = f", in {heartbeats[rank].words}" if rank in heartbeats else ", before its first word"
        reason = f"hung{at}: no rank has moved for {self.limits.silence_s:g} s; "
        reason += f"it {_activity(stacks[rank])}"
        if waiting:
            others = ", ".join(map(str, waiting[:8])) + (", ..." if len(waiting) > 8 else "")
            reason += f", and rank {others} waits in {_innermost(stacks[waiting[0]])}"
        return RunFailed("hung", reason, rank, logs[rank])


def _activity(stack: list[str]) -> str:
    return f"is in {_innermost(stack)}" if stack else "does not answer (stopped, or stuck)"


def _stack(log: str) -> list[str]:
    """The main thread's functions in the last stack dump of a log, innermost first."""
    _, separator, dump = log.rpartition("most recent call first):\n")
    if not separator:
        return []
    return re.findall(r'^  File "[^"]*", line \d+ in (.*)$', dump, re.M)


def _innermost(stack: list[str]) -> str:
    return " called by ".join(stack[:2])


def _memory_bytes(token: str) -> int:
    """The memory of a run's processes, without mapped files."""
    total = 0
    for pid in members(token):
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            sizes = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", status, re.M)
            total += 1024 * sum(map(int, sizes))
    return total


def _available_bytes() -> int:
    """The free memory of this machine."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    assert match is not None
    return 1024 * int(match[1])


def log_file(folder: Path, rank: int) -> Path | None:
    """The file of a rank's standard error; None if it has not started."""
    files = sorted((folder / LOGS).glob(f"*/attempt_*/{rank}/stderr.log"))
    return files[-1] if files else None


def tail(path: Path | None, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, with control characters replaced by ?."""
    if path is None:
        return ""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    last = text.splitlines()[-lines:]
    return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in last)


def _failure(folder: Path, printed: str, code: int) -> RunFailed:
    """The cause of a failure, from torchrun's report and the ranks' logs."""
    try:
        report: Mapping[str, Any] = json.loads(printed.splitlines()[-1])
    except (IndexError, ValueError):
        report = {"error": f"torchrun ended with code {code}", "errno": 0}
    if "error" in report:
        text = report["error"] + "\n" + tail(folder / "torchrun.log")
        order, reason = _cause(report["errno"], text)
        return RunFailed(_CAUSES[order][0], reason, None, text)
    # Ignore ranks that torchrun ended because of the first failure.
    ended = {rank: n for rank, n in report["ranks"].items() if n != -signal.SIGTERM}
    causes = []
    for rank, number in (ended or report["ranks"]).items():
        log = tail(log_file(folder, int(rank)), lines=60)
        causes.append((*_cause(number, log), int(rank), log))
    order, reason, rank, log = min(causes)
    return RunFailed(_CAUSES[order][0], reason, rank, "\n".join(log.splitlines()[-_TAIL_LINES:]))


def _cause(code: int, log: str) -> tuple[int, str]:
    """The cause of a process's end, as an index into _CAUSES and a sentence."""
    last = log.splitlines()
    line = next((row.strip() for row in reversed(last) if re.search(r"Error|Exception", row)), "")
    names = [name for name, _, _ in _CAUSES]
    if code < 0:
        text = _CAUSES[0][2].format(signal=f"{-code} ({signal.Signals(-code).name})")
        kernel = ", by someone or by the kernel for want of memory" if code == -9 else ""
        return 0, text + kernel
    if code in NO_SPACE:
        order = names.index("no_space")
        return order, _CAUSES[order][2]
    # The general cause "crashed" matches any error, so the specific ones are tried first.
    for order in sorted(range(len(names)), key=lambda i: names[i] == "crashed"):
        if re.search(_CAUSES[order][1], log):
            return order, _CAUSES[order][2].format(line=line[:300])
    return names.index("crashed"), f"ended with code {code}"
