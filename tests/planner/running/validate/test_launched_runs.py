"""Runs that executors really start: on this machine, as two nodes of it, and under Slurm."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner import frameworks
from planner.documents.problems import RequestError
from planner.frameworks.launchers import launched
from planner.running.validate import executors
from planner.running.validate.executors import Status, follow, remote
from planner.running.validate.report import ValidationReport
from planner.running.validate.run import Options
from tests.fixtures.launches import written
from tests.fixtures.slurm import absent, two_node_slurm
from tests.fixtures.validation import HOSTILE, ended, small_run, trained


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return str(one.getsockname()[1])


def test_started_by_hand_is_watched_by_what_it_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made = executors.render("torchrun", [small_run((2, 2))])
    (note,) = made.notes
    assert note.text.splitlines() == [
        f"on node {node}: NODE_RANK={node} MASTER_ADDR=<address of node 0> bash launch.sh"
        for node in (0, 1)
    ]
    handle = executors.start("torchrun", [small_run((2, 2))], folder)
    through = executors.get("torchrun")
    (folder / "rank-3.json").write_text("{}")
    assert through.poll(handle) == (
        Status(state="unknown", detail="started by hand: 1 of 4 ranks have left their results"),
    )
    with pytest.raises(RequestError, match="end it there"):
        through.cancel(handle)
    for rank in range(4):
        (folder / f"rank-{rank}.json").write_text("{}")
    assert through.poll(handle)[0].state == "succeeded"


@pytest.mark.exhaustive
def test_two_nodes_meet_when_each_runs_its_line(tmp_path: Path) -> None:
    """Two torchruns of one rank each, as if on two machines."""
    folder = tmp_path / "a run $(touch pwned) 'x'"
    handle = executors.start("torchrun", [small_run((2, 1), name=HOSTILE)], folder)
    common = {
        **os.environ, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port(),
        "PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    nodes = [
        subprocess.Popen(
            ["bash", str(folder / "launch.sh")], env={**common, "NODE_RANK": str(node)},
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for node in (1, 0)
    ]  # fmt: skip
    for node in nodes:
        said, _ = node.communicate(timeout=1800)
        assert node.returncode == 0, said
    assert follow(handle)[0].state == "succeeded"
    trained(handle)
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.exhaustive
def test_a_local_run_outlives_who_started_it(tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    code = (
        "import sys; from pathlib import Path; from planner.running.validate import executors; "
        "from tests.fixtures.validation import small_run; "
        "executors.start('local', [small_run((1, 1))], Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, timeout=1800)
    handle = executors.started(folder)
    assert follow(handle) == (Status(state="succeeded"),)
    trained(handle)


@pytest.mark.slow
def test_a_cancelled_local_run_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    endless = {"job.json": json.dumps({"steps": 1000, "profiled_steps": 1, "memory": False})}
    run = small_run((1, 1))
    handle = executors.start(
        "local", [run.model_copy(update={"files": {**run.files, **endless}})], folder
    )
    through = executors.get("local")
    while not (folder / "rank-0.beat").exists():
        (status,) = through.poll(handle)
        assert status.state == "running"
        time.sleep(0.2)
    pid = json.loads((folder / "rank-0.beat").read_text())["pid"]
    through.cancel(handle)
    through.cancel(handle)
    assert through.poll(handle)[0].state == "cancelled"
    assert ended(pid)


# --- Slurm ---------------------------------------------------------------------------------------


@pytest.mark.exhaustive
class TestSlurm:
    """A real one: two nodes, both this machine."""

    @pytest.fixture
    def slurm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        if missing := absent():
            pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
        (tmp_path / "slurm").mkdir()
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm" / "slurm.conf"))
        return lambda **options: two_node_slurm(tmp_path / "slurm", **options)

    def test_two_nodes_train(self, slurm: Callable[..., Any], tmp_path: Path) -> None:
        folder = tmp_path / "a run $(touch pwned) 'x'"
        request = small_run((2, 1), name=HOSTILE.replace("\n", " ")).request
        options = Options(warmup_steps=1, steps=3)
        with slurm():
            remote.submit("slurm", [request], options, folder)
            handle = executors.started(folder)
            (report,) = remote.reports(handle, options.tolerance)
            asked = ["sbatch", "--test-only", str(folder / "job.sbatch")]
            tested = subprocess.run(asked, capture_output=True, text=True)
            assert tested.returncode == 0, tested.stderr
        assert isinstance(report, ValidationReport)
        assert [one.rank for one in report.ranks] == [0, 1]
        assert report.losses[-1] < report.losses[0]
        (log,) = folder.glob("*.out")
        assert {line[0] for line in log.read_text().splitlines()} == {"0", "1"}
        assert not list(tmp_path.rglob("pwned"))

    def test_an_emitted_bundle_trains(
        self, slurm: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        request = small_run((2, 1)).request
        assert request.plan is not None
        made = launched(frameworks.get("pytorch").write(request, request.plan), request, "slurm")
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        monkeypatch.setenv("TRAIN_ITERS", "3")
        (tmp_path / "bundle").mkdir()
        written(tmp_path / "bundle", made)
        with slurm():
            subprocess.run(
                ["sbatch", "--wait", made.main], cwd=tmp_path / "bundle", check=True, timeout=1800
            )
        (log,) = (tmp_path / "bundle").glob("*.out")
        (summary,) = re.findall(r"^0: (\{.*\})$", log.read_text(), re.M)
        losses = json.loads(summary)["losses"]
        assert len(losses) == 3
        assert losses[-1] < losses[0]

    def test_an_array_trains_each_plan_in_its_folder(
        self, slurm: Callable[..., Any], tmp_path: Path
    ) -> None:
        folder = tmp_path / "runs"
        broken = small_run((1, 1))
        files = {**broken.files, "train.py": "raise SystemExit('no such plan')\n"}
        runs = [
            small_run((1, 1)), broken.model_copy(update={"files": files}), small_run((1, 1)),
        ]  # fmt: skip
        with slurm():
            handle = executors.start("slurm", runs, folder)
            states = follow(handle)
        assert [one.state for one in states] == ["succeeded", "failed", "succeeded"]
        assert "failed" in states[1].detail
        for task in (0, 2):
            assert executors.missing(folder / str(task), 1) == []
        (log,) = (folder / "1").glob("*.out")
        assert "no such plan" in log.read_text()

    def test_a_cancelled_job_leaves_no_process(
        self, slurm: Callable[..., Any], tmp_path: Path
    ) -> None:
        folder = tmp_path / "run"
        run = small_run((1, 1))
        endless = json.dumps({"steps": 1000, "profiled_steps": 1, "memory": False})
        files = {**run.files, "job.json": endless}
        with slurm():
            handle = executors.start("slurm", [run.model_copy(update={"files": files})], folder)
            through = executors.get("slurm")
            while not (folder / "rank-0.beat").exists():
                assert through.poll(handle)[0].state in ("waiting", "running")
                time.sleep(0.2)
            pid = json.loads((folder / "rank-0.beat").read_text())["pid"]
            through.cancel(handle)
            assert follow(handle)[0].state == "cancelled"
            through.cancel(handle)
            assert ended(pid)

    def test_a_job_that_slurm_has_forgotten_is_known_by_its_results(
        self, slurm: Callable[..., Any], tmp_path: Path
    ) -> None:
        """Without accounts squeue forgets a job some time after its end."""
        folder = tmp_path / "run"
        with slurm(forgets_s=2):
            handle = executors.start("slurm", [small_run((1, 1))], folder)
            follow(handle)
            known = ["squeue", "--noheader", "--states=all", f"--jobs={handle.id}"]
            while subprocess.run(known, capture_output=True).stdout:
                time.sleep(1)
            assert follow(handle) == (Status(state="succeeded"),)
            (folder / "rank-0.json").unlink()
            assert follow(handle) == (
                Status(state="failed", detail="ended without the results of ranks 0"),
            )
