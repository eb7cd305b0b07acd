"""`planner sweep`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import csv
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from planner import cli, sweep
from planner.documents.request import PlanRequest
from planner.running.sweeps import question
from planner.running.sweeps.run import SweepAnswer
from tests.fixtures.commands import Planner
from tests.planner.inputs.requests.test_parser import LLAMA_CONFIG
from tests.planner.running.sweeps.test_sweep import BASE, PLANS


@pytest.fixture
def ask(ask: Planner) -> Planner:
    return lambda *words: ask("sweep", *map(str, words))


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(PLANS))
    return path


def test_the_document_is_that_of_python(ask: Any, grid: Path) -> None:
    code, out, err = ask(grid, "--workers", 1, "--json")
    assert (code, err) == (0, "")
    assert SweepAnswer.model_validate_json(out) == sweep(PLANS, workers=1)
    assert len(list(grid.with_suffix(".results").iterdir())) == 15


@pytest.mark.slow
def test_tables(ask: Any, grid: Path, tmp_path: Path) -> None:
    written = [tmp_path / "t.csv", tmp_path / "t.parquet"]
    code, out, _ = ask(grid, "--workers", 1, "--csv", written[0], "--parquet", written[1])
    assert code == 0
    assert out.startswith("15 requests · ")
    assert out.endswith(f"wrote {written[0]}\nwrote {written[1]}\n")
    rows = sweep(PLANS, workers=1).rows
    assert pyarrow.parquet.read_table(written[1]).to_pylist() == list(rows)
    with written[0].open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [cells["iteration_time_s"] for cells in read] == [
        "" if row["iteration_time_s"] is None else str(row["iteration_time_s"]) for row in rows
    ]


def test_shards_and_their_merge(ask: Any, grid: Path, tmp_path: Path) -> None:
    for shard in ("1/2", "2/2"):
        folder = tmp_path / shard[0]
        code, out, _ = ask(grid, "--shard", shard, "--workers", 1, "--results", folder)
        assert code == 0
        assert out.startswith(f"{8 if shard == '1/2' else 7} requests")
    code, out, _ = ask("merge", grid, tmp_path / "1", tmp_path / "2", "--json")
    assert SweepAnswer.model_validate_json(out) == sweep(PLANS, workers=1)
    code, out, _ = ask("merge", grid, tmp_path / "1")
    assert code == 0
    assert "7 not asked yet" in out.split("\n\n")[0]


def test_the_screen_says_why_not(ask: Any, grid: Path) -> None:
    _, out, _ = ask(grid, "--workers", 1)
    assert max(map(len, out.splitlines())) <= 80
    counts, _, _ = out.partition("\n\n")
    assert counts.startswith("15 requests · ")
    assert counts.endswith(" 3 whose plan cannot run")
    lines = out.splitlines()
    assert "One whose plan cannot run: plan.tp 3, training.global_batch_size 64" in lines
    (row,) = (line for line in lines if line.split()[:2] == ["8", "64"])
    expected = next(r for r in sweep(PLANS, workers=1).rows if r["plan.tp"] == 8)
    assert f"{expected['tokens_per_s']:,.0f}" in row
    assert row.rstrip().endswith("tp 8 pp 1 dp 1 zero 1 mbs 1")


def test_models_in_files_lie_beside_the_grid(ask: Any, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    document = {
        "base": BASE | {"plan": {}},
        "axes": {"model": ["mine/config.json", "llama-3.1-8b"]},
    }
    (tmp_path / "grid.yaml").write_text(json.dumps(document))
    code, out, _ = ask(tmp_path / "grid.yaml", "--workers", 1, "--json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [row["model"] for row in rows] == ["mine/config.json", "llama-3.1-8b"]
    assert all(row["iteration_time_s"] for row in rows)
    document["axes"] = {"model": ["llama-3.1-8b", "other.json"]}
    (tmp_path / "grid.yaml").write_text(json.dumps(document))
    code, _, err = ask(tmp_path / "grid.yaml")
    assert code == 2
    assert "/axes/model/1: cannot read" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument"),
        (["GRID", "--shard", "3"], "--shard: must be as 3/64, got '3'"),
        (["GRID", "--shard", "5/4"], "--shard: must be 1/4 to 4/4, got 5/4"),
        (["GRID", "--shard", "0/4"], "--shard: must be 1/4 to 4/4, got 0/4"),
        (["GRID", "--shard", "x/y"], "--shard: must be as 3/64"),
        (["GRID", "--backend", "dark"], "must be one of local, ray, dask; got dark; did you mean"),
        (["GRID", "--workers", "0"], "--workers"),
        (["GRID", "--results", "GRID"], "cannot keep results in"),
        (["GRID", "--workers", "1", "--csv", "no/folder/x.csv"], "cannot write no/folder/x.csv"),
        (["nowhere.yaml"], "cannot read 'nowhere.yaml'"),
        (["merge", "GRID"], "Missing argument"),
        (["merge", "GRID", "nowhere"], "no folder 'nowhere'"),
    ],
)
def test_bad_usage(ask: Any, grid: Path, arguments: list[str], said: str) -> None:
    code, out, err = ask(*(str(grid) if word == "GRID" else word for word in arguments))
    assert (code, out) == (2, "")
    assert said in err


def test_bad_grid_as_document(ask: Any, grid: Path) -> None:
    grid.write_text(json.dumps(PLANS | {"axes": {"training.seq_length": [4096, "x"]}}))
    code, out, _ = ask(grid, "--json")
    assert code == 2
    (problem,) = json.loads(out)["errors"]
    assert (problem["pointer"], problem["got"]) == ("/axes/training.seq_length/1", "x")


@pytest.mark.slow
def test_a_bar_on_the_terminal(grid: Path) -> None:
    """On standard error, where that is a terminal; standard output has the document alone."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "planner.cli", "sweep", str(grid), "--workers", "1", "--json"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the terminal's other end is closed
        pass
    assert running.stdout is not None
    assert len(json.loads(running.stdout.read())["rows"]) == 15
    assert running.wait() == 0
    assert b"sweeping" in shown
    assert b"0/15" in shown


def test_a_fault_of_ours_in_one_question_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other rows are there all the same."""
    answered = question._answer

    def failing(request: PlanRequest) -> question.Result:
        if request.training.global_batch_size == 64:
            raise ZeroDivisionError("division by zero")
        return answered(request)

    monkeypatch.setattr(question, "_answer", failing)
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({"base": BASE, "axes": {"training.global_batch_size": [64, 128]}}))
    assert cli.run(["sweep", str(path), "--workers", "1", "--json"]) == 1
    outcomes = [row["outcome"] for row in json.loads(capsys.readouterr().out)["rows"]]
    assert outcomes == ["failed", "fits"]
