"""Runs that go wrong: each says what happened, and leaves no process, port or file behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.inputs.requests.parser import parse_request
from planner.running.validate import run, run_files
from planner.running.validate.processes import process
from planner.running.validate.processes.process import Limits, RunFailed
from planner.running.validate.run_files import Job
from tests.fixtures.job_server import MARK, PATIENCE_S, TINY, TWO_RANKS, marked

# For what takes no other process.
ALONE = TWO_RANKS | {"cluster": "1x1xh100-sxm", "plan": TINY["plan"] | {"dp": 1}}


def shared_memory() -> set[str]:
    return {p.name for p in Path("/dev/shm").iterdir() if p.name.startswith(("torch_", "nccl-"))}


def wait_for(there: Callable[[], Any], of: subprocess.Popen[str]) -> Any:
    """What comes true before the process ends."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and of.poll() is None:
        if found := there():
            return found
        time.sleep(0.02)
    raise AssertionError(f"never came: {of.communicate(timeout=5)}")


class Command:
    """`planner validate --json` in a process of its own, whose descendants can be found."""

    def __init__(self, folder: Path) -> None:
        self.request, self.temporary = folder / "request.json", folder / "tmp"
        self.temporary.mkdir()
        self.kept = folder / "kept"
        self.mark, self.shared = uuid.uuid4().hex, shared_memory()

    def start(
        self, *words: str, before: tuple[str, ...] = (), request: dict[str, Any] = TWO_RANKS
    ) -> subprocess.Popen[str]:
        self.request.write_text(json.dumps(request))
        command = [*before, sys.executable, "-m", "planner.cli", "validate", str(self.request)]
        return subprocess.Popen(
            [*command, "--json", *words],
            env={
                **os.environ, MARK: self.mark, "TMPDIR": str(self.temporary),
                "CUDA_VISIBLE_DEVICES": "", "PLANNER_DATA_DIR": str(self.kept),
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def beat(self, rank: int, word: str) -> run_files.Heartbeat | None:
        """What a rank last said, once that word is in it."""
        for folder in self.temporary.glob("*/run"):
            said = run_files.heartbeat(folder, rank)
            if said is not None and word in said.words:
                return said
        return None

    def ended(self, of: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
        """Exit code, document and standard error; nothing is left."""
        out, err = of.communicate(timeout=PATIENCE_S)
        self.nothing_is_left()
        assert "Traceback" not in err
        return of.returncode, json.loads(out) if out else {}, err

    def nothing_is_left(self) -> None:
        assert marked(f"{MARK}={self.mark}") == []
        assert list(self.temporary.iterdir()) == []
        assert shared_memory() <= self.shared


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    one = Command(tmp_path)
    yield one
    for pid in marked(f"{MARK}={one.mark}"):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.exhaustive
def test_a_rank_that_is_killed(command: Command) -> None:
    of = command.start("--steps", "1000")
    one = wait_for(lambda: command.beat(1, "timed step"), of)
    os.kill(one.pid, signal.SIGKILL)
    code, document, _ = command.ended(of)
    assert code == 1
    assert document["type"] == "/problems/run/killed"
    assert document["rank"] == 1
    assert "rank 1 was killed by signal 9 (SIGKILL)" in document["detail"]


@pytest.mark.exhaustive
def test_a_rank_that_is_stopped(command: Command) -> None:
    of = command.start("--steps", "1000", "--max-silent-seconds", "20")
    one = wait_for(lambda: command.beat(1, "timed step"), of)
    os.kill(one.pid, signal.SIGSTOP)
    code, document, _ = command.ended(of)
    assert code == 1
    assert document["type"] == "/problems/run/hung"
    assert document["rank"] == 1
    assert "no rank has moved for 20 s; it does not answer" in document["detail"]
    assert "rank 0 waits in" in document["detail"]


LATE = """

def oversleep():
    time.sleep(1e6)


def late(*parts):
    if RANK == 1:
        oversleep()
    return in_time(*parts)


in_time, loss_of = loss_of, late
"""


def late(folder: Path, **job: Any) -> None:
    """A run of which rank 1 never comes to its first collective."""
    run.prepare(folder, parse_request(TWO_RANKS), Job(steps=1000, **job))
    script = folder / run_files.SCRIPT
    script.write_text(script.read_text() + LATE)


@pytest.mark.exhaustive
def test_a_rank_that_never_comes_to_a_collective(tmp_path: Path) -> None:
    late(tmp_path)
    with pytest.raises(RunFailed, match=r"rank 1 hung, in warm-up step 1 of 2: .* is in oversleep"):
        process.launch(tmp_path, 2, Limits(silence_s=25))
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.exhaustive
def test_a_collective_that_times_out(tmp_path: Path) -> None:
    late(tmp_path, collective_timeout_s=5)
    with pytest.raises(RunFailed, match=r"rank 0 timed out in a collective: .*[Tt]imed out") as it:
        process.launch(tmp_path, 2, Limits())
    assert it.value.code == "timeout"


@pytest.mark.exhaustive
def test_a_log_that_grows_without_end(tmp_path: Path) -> None:
    run.prepare(tmp_path, parse_request(TWO_RANKS), Job(steps=1000))
    script = tmp_path / run_files.SCRIPT
    endless = "\n\nwhile True:\n    print('x' * 99, file=sys.stderr)\n"
    script.write_text(script.read_text() + endless)
    with pytest.raises(RunFailed, match=r"rank [01] wrote more than 1,000,000 bytes into its log"):
        process.launch(tmp_path, 2, Limits(log_bytes=1_000_000))


def full(folder: Path) -> tuple[str, ...]:
    """A prefix that runs a command with a full disk at a folder, or with files that cannot grow."""
    mounted = ("unshare", "-rm", "sh", "-c")
    try:
        subprocess.run([*mounted, 'mount -t tmpfs tmpfs "$0"', str(folder)], check=True)
    except (OSError, subprocess.CalledProcessError):
        return ("prlimit", "--fsize=30000")
    script = 'mount -t tmpfs -o size=44k tmpfs "$0" && exec "$@"'
    return (*mounted, script, str(folder))


@pytest.mark.exhaustive
def test_a_full_disk(command: Command) -> None:
    of = command.start("--steps", "20", before=full(command.temporary), request=ALONE)
    code, document, _ = command.ended(of)
    assert code == 1
    assert document["type"] == "/problems/run/no-space"
    assert "no space left" in document["detail"].lower()


@pytest.mark.exhaustive
def test_no_free_port(command: Command) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, document, _ = command.ended(command.start("--port", port, request=ALONE))
    assert code == 1
    assert document["type"] == "/problems/run/address-in-use"
    assert "no free port" in document["detail"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_whoever_stops_it(command: Command, number: signal.Signals) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    of = command.start("--steps", "1000", "--port", str(port))
    wait_for(lambda: command.beat(1, "timed step"), of)
    os.kill(of.pid, number)
    code, document, err = command.ended(of)
    assert code == 128 + number
    assert document == {}
    assert f"Stopped by {number.name}: every process of the run is ended." in err
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
        one.listen()


@pytest.mark.exhaustive
def test_killed_itself_it_takes_its_ranks_along(command: Command) -> None:
    of = command.start("--steps", "1000")
    wait_for(lambda: command.beat(1, "timed step"), of)
    of.kill()
    of.communicate()
    end = time.monotonic() + PATIENCE_S
    while marked(f"{MARK}={command.mark}") and time.monotonic() < end:
        time.sleep(0.05)
    assert marked(f"{MARK}={command.mark}") == []


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--max-seconds", "2"), "too-long"),
        (("--max-memory", "1000000"), "too-much-memory"),
    ],
)
def test_limits(command: Command, words: tuple[str, ...], code: str) -> None:
    number, document, _ = command.ended(command.start("--steps", "1000", *words, request=ALONE))
    assert number == 1
    assert document["type"] == f"/problems/run/{code}"


def test_more_ranks_than_allowed() -> None:
    with pytest.raises(RunFailed, match="needs 65 processes, and may have 64"):
        process.launch(Path("/nonexistent"), 65, Limits())


@pytest.mark.slow
def test_a_crash_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    run.prepare(tmp_path, parse_request(ALONE), Job(words=("seq_length=-1",)))
    with pytest.raises(RunFailed, match=r"rank 0 crashed: .*Error") as failed:
        process.launch(tmp_path, 1, Limits())
    assert "Traceback" in failed.value.log or "Error" in failed.value.log
