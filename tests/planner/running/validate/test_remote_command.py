"""`planner validate --launcher`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from planner import cli
from planner.commands.failures import FINE
from planner.commands.validate import OUTSIDE
from planner.running.validate import executors
from tests.fixtures.crds import refusals
from tests.fixtures.validation import IMAGE, small_run


class TestCommand:
    @pytest.fixture
    def ask(self, tmp_path: Path) -> Callable[..., int]:
        """`planner validate` of a small request, with more words."""
        path = tmp_path / "request.json"
        path.write_text(json.dumps(small_run((1, 1)).request.document()))
        return lambda *words: cli.run(["validate", "--request", str(path), *words])

    def test_writes_what_can_be_submitted(
        self, ask: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "run"
        assert ask("--launcher", "slurm", "--output", str(folder), "--steps", "7") == 0
        names = {"job.sbatch", "launch.sh", "request.json", "train.py", "job.json"}
        assert {path.name for path in folder.iterdir()} == names
        assert json.loads((folder / "job.json").read_text())["steps"] == 7
        assert "sbatch job.sbatch" in capsys.readouterr().err

    def test_prints_it(self, ask: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
        assert ask("--launcher", "trainjob", "--image", IMAGE) == 0
        *_, made = yaml.safe_load_all(capsys.readouterr().out)
        assert refusals(made) == []
        assert ask("--launcher", "torchrun") == 0
        assert capsys.readouterr().out.startswith("#!/usr/bin/env bash\n")

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            (("--launcher", "slrm"), "did you mean slurm"),
            (("--launcher", "slurm", "--submit"), "needs a folder"),
            (("--submit",), "--submit needs --launcher"),
            (("--launcher", "slurm", "--check-numerics"), "compared on this machine"),
            (("--launcher", "jobset", "--image", "x y"), "--image: "),
            (("--follow", "/nonexistent"), "has no handle.json"),
        ],
    )
    def test_refuses(
        self,
        words: tuple[str, ...],
        why: str,
        ask: Callable[..., int],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        assert ask(*words) == 2
        assert why in capsys.readouterr().err

    @pytest.mark.exhaustive
    def test_submits_follows_and_reports(
        self, ask: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """That a figure is right is for other tests: it may be outside."""
        folder = str(tmp_path / "run")
        words = ("--launcher", "local", "--output", folder, "--steps", "2", "--submit", "--json")
        judged = ask(*words)
        assert judged in (FINE, OUTSIDE)
        report = json.loads(capsys.readouterr().out)
        assert report["environment"]["processes"] == 1
        assert report["losses"][-1] < report["losses"][0]
        assert cli.run(["validate", "--follow", folder, "--json"]) == judged
        again = json.loads(capsys.readouterr().out)
        assert again["ranks"] == report["ranks"]

    @pytest.mark.exhaustive
    def test_says_why_a_run_has_no_result(
        self, ask: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = small_run((1, 1))
        files = {**run.files, "train.py": "raise SystemExit('no such plan')\n"}
        executors.start("local", [run.model_copy(update={"files": files})], tmp_path / "run")
        assert cli.run(["validate", "--follow", str(tmp_path / "run")]) == 1
        said = capsys.readouterr().err
        assert "The run failed" in said
        assert "no such plan" in said
