"""Reports of runs: nothing in them says whose they are, and many are scored together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.data_folder import VARIABLE
from planner.documents.run_report import ReportedRun, RunReport

LOGS = Path(__file__).parents[3] / "fixtures" / "logs"
NODES = (4, 8, 16)


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """A site with a telling name, whose logs have telling names."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    logs = []
    for nodes in NODES:
        logs.append(tmp_path / f"secret-{nodes}.log")
        logs[-1].write_bytes((LOGS / f"megatron_gpt_{nodes}_nodes.log").read_bytes())
    words = ["--cluster", "128x4xv100", "--site", "manhattan", "--yes"]
    assert run(["learn", *map(str, logs), *words]) == 0
    capsys.readouterr()
    return "manhattan"


def exported(site: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The report as it is shown."""
    assert run(["sites", "report", site, *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_it_has_the_runs_and_nothing_of_whose_they_are(
    site: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = exported(site, capsys)
    kept = json.loads((tmp_path / "data" / "sites" / f"{site}.json").read_text())["runs"]
    assert len(report["runs"]) == len(kept) == len(NODES)
    for told, own in zip(report["runs"], kept, strict=True):
        assert told["measured_s"] == pytest.approx(own["step_s"], rel=1e-3)
        assert told["predicted_s"] == pytest.approx(own["estimated_s"], rel=1e-3)
        assert told["accelerators"] == 4 * next(n for n in NODES if f"-{n}.log" in own["file"])
        assert told["plan"]["tp"] == own["request"]["plan"]["tp"]
    text = json.dumps(report)
    for secret in (site, "secret", own["id"], own["learned_at"][:10], str(tmp_path), "128x4xv100"):
        assert secret in json.dumps(kept) + site + str(tmp_path)  # it was there to be told
        assert secret not in text


def test_it_is_shown_before_it_is_written(
    site: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    shown = exported(site, capsys, "--output", str(file))
    assert not file.exists()
    assert exported(site, capsys, "--output", str(file), "--yes") == shown
    assert json.loads(file.read_text()) == shown


def test_a_model_and_an_accelerator_of_ones_own_are_not_named(
    site: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "data" / "sites" / f"{site}.json"
    kept = json.loads(path.read_text())
    first, second = kept["runs"][0]["request"], kept["runs"][1]["request"]
    first["model"]["name"] = "oppenheimer-70b"
    first["cluster"]["groups"][0]["accelerator"] |= {"id": "gadget-9", "name": "Gadget 9"}
    gpt3 = {"num_layers": 96, "hidden_size": 12288, "num_attention_heads": 96, "vocab_size": 50257,
            "num_query_groups": 96, "ffn_hidden_size": 49152, "head_dim": 128}  # fmt: skip
    second["model"] |= {**gpt3, "name": "mine"}
    path.write_text(json.dumps(kept))
    one, other, _ = exported(site, capsys)["runs"]
    assert (one["model"], one["accelerator"]) == ("unlisted", "unlisted")
    assert other["model"] == "gpt3-175b"


def test_reports_of_many_are_scored_together(
    site: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    report = exported(site, capsys)
    (folder / "a.json").write_text(json.dumps(report))
    slow = report["runs"][0] | {"measured_s": 2 * report["runs"][0]["predicted_s"], "experts": True}
    (folder / "b.json").write_text(json.dumps(report | {"runs": [report["runs"][1], slow]}))
    assert run(["accuracy", "--reports", str(folder), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["files"], answer["runs"], answer["repeated"]) == (2, 4, 1)
    assert answer["by_kind"]["experts on v100-sxm2-32gb"]["bias_ln"] == pytest.approx(
        -0.6931, rel=1e-3
    )
    assert answer["by_kind"]["dense on v100-sxm2-32gb"]["runs"] == len(NODES)
    assert run(["accuracy", "--reports", str(folder)]) == 0
    assert "4 runs of 2 reports, 1 repeated" in capsys.readouterr().out
    assert run(["accuracy", "--reports", str(folder), "--source", "x"]) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "b.json"),
        ('{"format": "parallel-planner runs 9", "runs": []}', "/format"),
        ('{"runs": [{"measured_s": 1}]}', "/runs/0/predicted_s"),
        ("[" * 100_000, "b.json"),
        (json.dumps({"runs": [{"predicted_s": -1.0}]}), "/runs/0/predicted_s"),
    ],
)
def test_what_is_no_report_is_refused_by_file_and_place(
    text: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "b.json").write_text(text)
    assert run(["accuracy", "--reports", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "b.json" in error


def test_its_fields_are_these() -> None:
    """A field more is a decision: it may tell whose run it is."""
    assert set(RunReport.model_fields) == {"format", "runs"}
    assert set(ReportedRun.model_fields) == {
        "model", "experts", "parameters", "accelerator", "accelerators", "accelerators_per_node",
        "code_base", "precision", "seq_length", "global_batch_size", "plan", "assumed", "version",
        "calibrated", "predicted_s", "measured_s", "steps", "memory_quantity",
        "predicted_peak_bytes", "measured_peak_bytes",
    }  # fmt: skip
