"""`planner validate` from the command line to the report, with torchrun's own processes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cost_models.cost_parts import TIME_PARTS
from planner import cli
from planner.presentation.terminal.validation_screen import validation_screen
from planner.running.validate.report import ValidationReport
from planner.running.validate.run_files import MEANING, PARTS

pytestmark = pytest.mark.slow

REQUEST: dict[str, Any] = {
    "model": {
        "name": "tiny", "num_layers": 2, "hidden_size": 32, "num_attention_heads": 2,
        "num_query_groups": 2, "head_dim": 16, "ffn_hidden_size": 64, "vocab_size": 256,
        "position": "rope", "norm": "rmsnorm", "gated_mlp": True, "tied_embeddings": False,
    },
    "cluster": "local",
    "training": {"seq_length": 16, "global_batch_size": 4, "precision": "fp32"},
    "plan": {
        "pp": 2, "dp": 1, "zero_stage": 0, "micro_batch_size": 1, "attention_kernel": "flash2",
        "runtime": "torch", "cross_entropy": "unfused",
    },
}  # fmt: skip
KEYS = {
    "predicted_iteration_time_s", "measured_iteration_time_s", "predicted_peak_bytes",
    "measured_peak_bytes", "gradient_max_relative_error", "verdict", "environment", "scaled_from",
    "caveats",
}  # fmt: skip


def validate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    request = folder / "request.json"
    request.write_text(json.dumps(REQUEST))
    return subprocess.run(
        [sys.executable, "-m", "planner.cli", "validate", str(request), *words],
        env={**os.environ, "PLANNER_DATA_DIR": str(folder / "kept"), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip


def screen(report: ValidationReport, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), highlight=False)
    console.print(validation_screen(report, console))
    return console.export_text()


@pytest.mark.exhaustive
def test_a_plan_is_run_and_held_against_its_estimate(tmp_path: Path) -> None:
    result = validate(
        tmp_path, "--json", "--check-numerics", "--steps", "4", "--output", str(tmp_path / "run")
    )
    assert result.returncode in (0, 3), result.stderr
    document = json.loads(result.stdout)
    assert document.keys() >= KEYS
    report = ValidationReport.model_validate(document)
    assert (result.returncode == 3) == (report.verdict == "outside")
    time = report.measured_iteration_time_s
    assert time.n == 4
    assert 0 < time.p10 <= time.median <= time.p90
    assert report.gradient_max_relative_error is not None
    assert report.outcomes["gradients"].verdict == "within"
    assert report.losses[-1] < report.losses[0]
    assert report.environment["processes"] == len(report.ranks) == 2
    for number, rank in enumerate(report.ranks):
        assert (rank.rank, rank.stages) == (number, (number,))
        assert rank.parts_s.keys() == PARTS.keys()
        assert sum(rank.parts_s.values()) == pytest.approx(rank.profiled_step_s, rel=0.02)
        assert rank.parts_s["forward"] > 0 < rank.parts_s["backward"]
        assert rank.parts_s["idle"] > 0
        assert rank.amounts is not None
        assert rank.amounts.peak_bytes > rank.amounts.parameter_bytes > 0
    assert sum(term.predicted for term in report.time_terms) == pytest.approx(
        report.predicted_iteration_time_s
    )
    assert "starting 2 processes" in result.stderr
    assert (tmp_path / "run" / "run" / "train.py").exists()
    assert len(list((tmp_path / "kept" / "validations").iterdir())) == 1
    for width in (80, 120):
        text = screen(report, width)
        assert max(map(len, text.splitlines())) <= width
        for word in ("predicted", "measured", "rank 1 stage 1", "loss", report.verdict):
            assert word in text or report.verdict == "within"


def test_every_part_of_the_estimate_has_one_measured() -> None:
    parts = [part for theirs in PARTS.values() for part in theirs]
    assert sorted(parts) == sorted(TIME_PARTS)
    assert MEANING.keys() == PARTS.keys()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--tp", "0"), "--tp: must be >= 1, got 0"),
        (("--schedule", "zb-h1"), "schedule is 1f1b or gpipe or"),
        (("--steps", "0"), "--steps"),
        (("--output", "."), ". is not empty"),
    ],
)
def test_what_cannot_run_is_refused(
    tmp_path: Path, words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(REQUEST))
    assert cli.run(["validate", str(request), *words]) == 2
    assert says in capsys.readouterr().err
