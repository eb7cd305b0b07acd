"""Workers and sweeps that are really killed lose nothing that was answered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from planner import sweep
from planner.running.sweeps import workers
from planner.running.sweeps.question import ask
from planner.running.sweeps.workers import WorkersLost, answers
from tests.fixtures.signals import interruptible
from tests.fixtures.worker_killers import deadly

pytestmark = pytest.mark.slow
# Searches of a tenth of a second, long enough to be killed in.
SEARCHES: dict[str, Any] = {
    "base": {
        "model": "llama-3.1-8b",
        "training": {"seq_length": 4096},
        "search": {"tp": 1, "cp": 1, "pp": [1, 2]},
    },
    "axes": {
        "cluster": ["1x8xh100-sxm", "2x8xh100-sxm"],
        "training.global_batch_size": [64 * n for n in range(1, 13)],
    },
}
ROOT = Path(__file__).parents[4]
_DEADLINE_S = 300.0  # for what takes a second on an idle machine
# What their command lines say.
WORKER = {"local": "LokyProcess", "ray": "ray::PoolActor", "dask": "multiprocessing.spawn"}


@pytest.fixture(scope="module")
def expected() -> list[dict[str, Any]]:
    return list(sweep(SEARCHES, workers=1).rows)


class Sweep:
    """`planner sweep` in a process of its own, with its workers."""

    def __init__(self, folder: Path, *options: str) -> None:
        grid = folder / "grid.json"
        grid.write_text(json.dumps(SEARCHES))
        self.kept = folder / "grid.results"
        # Files, not pipes: workers that outlive the sweep would hold those open.
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "planner.cli", "sweep", str(grid), *options],
                stdout=out,
                stderr=err,
                preexec_fn=interruptible,
                start_new_session=True,  # so that the end of a test takes all of it along
            )

    def wait_for(self, count: int) -> dict[str, int]:
        """The time stamps of what is kept, once that many results are."""
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            found = stamps(self.kept)
            if len(found) >= count:
                return found
            time.sleep(0.005)
        pytest.fail(f"{len(stamps(self.kept))} of {count} results; {self.process.poll()}")

    def workers(self, kind: str) -> list[int]:
        """The worker processes below this sweep."""
        return [pid for pid in below(self.process.pid) if kind in command(pid)]

    def rows(self) -> list[dict[str, Any]]:
        """The rows that it printed, at its end."""
        assert self.process.wait(_DEADLINE_S) == 0, self.err.read_text()
        return list(json.loads(self.out.read_text())["rows"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Sweep] = []

    def begin(*options: str) -> Sweep:
        started.append(Sweep(tmp_path, *options))
        return started[-1]

    yield begin
    for one in started:
        with suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


def stamps(folder: Path) -> dict[str, int]:
    """When each result was written; a file that is being written has another name."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("[!.]*.json")}


def below(root: int) -> list[int]:
    """The processes that a process started, and those that they did."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # ended meanwhile
            parents[int(entry.name)] = int(fields[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found[1:]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def kill_two_in_turn(running: Sweep, backend: str, expected: Sequence[Any]) -> None:
    """Kill a worker, and another when the sweep has gone on; all answers must be there still."""
    early: dict[str, int] = {}
    for count in (2, 6):
        found = running.wait_for(count)
        assert early.items() <= found.items()
        early = found
        os.kill(running.workers(WORKER[backend])[-1], signal.SIGKILL)
    assert len(early) < len(expected) - 2, "the sweep was over before a worker was killed"
    assert running.rows() == expected
    # What was answered before a kill was not asked again.
    assert early.items() <= stamps(running.kept).items()
    assert len(stamps(running.kept)) == len(expected)


@pytest.mark.exhaustive
def test_two_workers_killed_lose_nothing(start: Any, expected: list[dict[str, Any]]) -> None:
    kill_two_in_turn(start("--workers", "2", "--json"), "local", expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("backend", ["ray", "dask"])
def test_two_workers_of_a_cluster_killed_lose_nothing(
    start: Any, expected: list[dict[str, Any]], backend: str, workers: int
) -> None:
    pytest.importorskip({"ray": "ray", "dask": "distributed"}[backend])
    running = start("--workers", f"{workers}", "--json", "--backend", backend)
    kill_two_in_turn(running, backend, expected)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_that_was_ended_goes_on(
    start: Any, expected: list[dict[str, Any]], ending: signal.Signals
) -> None:
    first = start("--workers", "2", "--json")
    first.wait_for(3)
    first.process.send_signal(ending)
    assert first.process.wait(_DEADLINE_S) == (1 if ending == signal.SIGINT else -ending)
    assert first.out.read_text() == ""
    if ending == signal.SIGINT:
        said = f"Not finished: stopped. What is answered is kept in {first.kept}\n"
        assert first.err.read_text() == said
    early = stamps(first.kept)
    assert 3 <= len(early) < len(expected)
    again = start("--workers", "2", "--json")
    assert again.rows() == expected
    assert early.items() <= stamps(again.kept).items()


@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["local", "ray", "dask"])
def test_a_question_that_kills_its_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    if backend != "local":
        pytest.importorskip({"ray": "ray", "dask": "distributed"}[backend])
    monkeypatch.setattr(workers, "_ask", deadly)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # where workers find it
    monkeypatch.setattr(workers, "PATIENCE_S", 20.0)
    training = {"seq_length": 4096, "global_batch_size": 64}
    plan = {"model": "llama-3.1-8b", "cluster": "1x8xh100-sxm", "training": training, "plan": {}}
    questions = {f"fine {i}": plan for i in range(20)}
    once = {"once": plan | {"kills": 1, "tries": str(tmp_path / "once")}}
    found = dict(answers(once | questions, backend, 2))
    assert found == dict.fromkeys([*once, *questions], ask(plan))
    assert len((tmp_path / "once").read_text().split()) == 2
    always = {"always": plan | {"kills": 10**6, "tries": str(tmp_path / "always")}}
    got: list[str] = []
    with pytest.raises(WorkersLost, match="workers died 3 times"):
        got.extend(key for key, _ in answers(always | questions, backend, 2))
    # Nothing else is held up or lost, beyond what was asked beside it at the end.
    assert len(got) == len(set(got)) >= len(questions) - 4
    assert "always" not in got


@pytest.mark.exhaustive
def test_no_cluster_at_the_address(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Dask; Ray goes on trying for minutes."""
    pytest.importorskip("distributed")
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "127.0.0.1:9")
    running = start("--backend", "dask", "--json")
    assert running.process.wait(_DEADLINE_S) == 2
    (problem,) = json.loads(running.out.read_text())["errors"]
    assert (problem["pointer"], problem["got"]) == ("/backend", "127.0.0.1:9")
