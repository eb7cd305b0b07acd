"""`planner tune --here`: real runs on CPU processes, until the tuning ends by its own rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import cli
from planner.evidence.uncertainty import site_storage as storage

SINGLE = ("precision", "gradient_dtype", "gradient_reduce_dtype", "optimizer_state_dtype")
TINY: dict[str, Any] = {
    "model": {
        "name": "tiny", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
        "num_query_groups": 4, "ffn_hidden_size": 128, "vocab_size": 256,
    },
    "cluster": "local",
    "training": {
        "seq_length": 64, "global_batch_size": 8, "master_weights_dtype": "fp32",
        **dict.fromkeys(SINGLE, "fp32"),
    },
    "search": {"recompute": "none", "micro_batch_size": {"min": 2}, "cp": 1},
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    return tmp_path


def test_another_framework_does_not_run_here(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "tiny.json", "--site", "lab", "--here", "--framework", "deepspeed"]
    assert cli.run(words) == 2
    assert "runs on this machine are of pytorch, not deepspeed" in capsys.readouterr().err


def test_a_larger_plan_than_this_machine_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    larger = {"cluster": "1x8xh100-sxm", "training": {"seq_length": 64, "global_batch_size": 16}}
    (folder / "tiny.json").write_text(json.dumps(TINY | larger))
    assert cli.run(["tune", "tiny.json", "--site", "lab", "--here"]) == 2
    assert "this machine runs a smaller plan only" in capsys.readouterr().err
    assert storage.names() == ()


@pytest.mark.exhaustive
def test_ends_by_its_own_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["tune", "tiny.json", "--site", "lab", "--here", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ending"]["code"] == "rule"
    assert answer["next"] is None
    runs = storage.find("lab").runs
    assert 1 <= answer["runs"] == len(runs) < len(answer["candidates"])
    measured = [one for one in answer["candidates"] if one["measured_s"] is not None]
    assert len(measured) == len(runs)
    assert answer["best"] == min(measured, key=lambda one: one["measured_s"])["id"]
    # Asked again, it knows that it has ended, and runs nothing.
    assert cli.run(["tune", "tiny.json", "--site", "lab", "--here", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == len(runs)
