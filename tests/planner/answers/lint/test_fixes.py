"""Better plans written into the scripts, and findings for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.answers.lint import fixes
from planner.answers.lint.findings import CODES, FlagChange
from planner.answers.lint.lint import found_in, lint
from planner.answers.lint.sarif import sarif
from planner.frameworks.sources import files_at
from planner.inputs.requests.parser import parse_cluster
from tests.fixtures.canonical import canonical
from tests.planner.answers.lint.test_scripts import PLANTED, SCRIPTS

MENDED = ("no_overlap", "hand_split", "local_layers", "exposed", "gpt_857m", "llama3_8b")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", MENDED)
def test_what_is_written_is_read_as_the_better_plan(name: str) -> None:
    cluster = parse_cluster(PLANTED[name][0])
    files = files_at([str(SCRIPTS / f"{name}.sh")])
    answer = lint(files, cluster)
    better = fixes.change_to_write(answer)
    assert better is not None
    found = fixes.fixed_files(files, better.changes)
    assert [one.option for one in found.left if one.option.startswith("--")] == []
    case, _ = found_in(found.files, cluster)
    assert canonical(case.plan, case.model) == canonical(better.report.plan, case.model)
    text = fixes.difference(files, found.files)
    assert text.startswith(f"--- a/{name}.sh\n+++ b/{name}.sh\n@@")
    assert fixes.difference(files, files) == ""


@pytest.mark.parametrize(
    ("line", "option", "before", "after", "wanted"),
    [
        ("  --tp 4 \\", "--tp", "4", "8", "  --tp 8 \\"),
        ("  --tp=${TP} --pp 2", "--tp", "4", "8", "  --tp=8 --pp 2"),
        ('ARGS="--tp 4"', "--tp", "4", "8", 'ARGS="--tp 8"'),
        ("  --tp 4 --sp \\", "--sp", "", None, "  --tp 4 \\"),
        ("  --layout 't|t' )", "--layout", "t|t", "tt|L", "  --layout 'tt|L' )"),
        ("  stage: 1  # states", "zero.stage", "1", "2", "  stage: 2  # states"),
        ('  "stage": 1,', "zero.stage", "1", "2", '  "stage": 2,'),
        ("  --tp-size 4", "--tp", "4", "8", None),
        ("  $ARGS", "--tp", "4", "8", None),
    ],
)
def test_one_option_of_a_line(
    line: str, option: str, before: str, after: str | None, wanted: str | None
) -> None:
    change = FlagChange(option=option, before=before, after=after, why="", file="a.sh", line=1)
    found = fixes.fixed_files({"a.sh": line}, [change])
    assert found.files["a.sh"] == (line if wanted is None else wanted)
    assert found.left == (() if wanted is not None else (change,))


def test_an_option_more_stands_before_what_ends_the_line() -> None:
    more = FlagChange(option="--sp", before=None, after="", why="")
    for line, wanted in (
        ("--micro-batch-size 1 \\", "--micro-batch-size 1 --sp \\"),
        ("A=(--micro-batch-size 1)", "A=(--micro-batch-size 1 --sp)"),
        ('A="--micro-batch-size 1" # why', 'A="--micro-batch-size 1 --sp" # why'),
    ):
        assert fixes.fixed_files({"a.sh": line}, [more]).files["a.sh"] == wanted


def test_findings_as_sarif() -> None:
    cluster = parse_cluster(PLANTED["old_style"][0])
    _, findings = found_in(files_at([str(SCRIPTS / "old_style.sh")]), cluster)
    document = sarif(findings)
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert {one["id"] for one in rules} <= CODES.keys()
    assert len(run["results"]) == len(findings)
    for one, finding in zip(run["results"], findings, strict=True):
        assert rules[one["ruleIndex"]]["id"] == one["ruleId"] == finding.code
        assert one["level"] in ("error", "warning", "note")
        (place,) = one["locations"]
        region = place["physicalLocation"].get("region", {})
        assert region.get("startLine", 0) == finding.line
    assert sarif([])["runs"][0]["results"] == []


def test_each_file_of_a_hook_is_a_launch_or_skipped(ask: Any, tmp_path: Path) -> None:
    script = (SCRIPTS / "exposed.sh").read_text()
    (tmp_path / "run.sh").write_text(script)
    (tmp_path / "clean.sh").write_text("rm -rf build\n")
    names = [str(tmp_path / name) for name in ("clean.sh", "run.sh")]
    code, out, _ = ask("lint", *names, "--each", "--cluster", "8x8xh100-sxm", "--sarif")
    assert code == 0
    assert {one["ruleId"] for one in json.loads(out)["runs"][0]["results"]} >= {
        "gradient_reduce_exposed"
    }
    code, out, _ = ask("lint", names[1], "--cluster", "8x8xh100-sxm", "--diff", "--fix")
    assert code == 0
    assert "+++ b/run.sh" in out
    assert "--overlap-grad-reduce" in (tmp_path / "run.sh").read_text()
    assert (tmp_path / "clean.sh").read_text() == "rm -rf build\n"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["few_micro_batches", "llama3_70b", "slurm_template", "ds_3d"])
def test_what_is_written_brings_no_error(name: str) -> None:
    """Changes that a text cannot take without breaking are left to be made by hand."""
    cluster = parse_cluster("16x8xh100-sxm")
    files = files_at([str(SCRIPTS / f"{name}.sh")])
    answer = lint(files, cluster)
    better = fixes.change_to_write(answer)
    assert better is not None
    known = {one.text for one in answer.findings if one.severity == "error"}
    _, after = found_in({**files, **better.files}, cluster)
    assert {one.text for one in after if one.severity == "error"} <= known
    assert better.files or better.by_hand == better.changes


def test_the_only_assignment_of_a_variable_is_changed() -> None:
    files = files_at([str(SCRIPTS / "few_micro_batches.sh")])
    better = fixes.change_to_write(lint(files, parse_cluster("16x8xh100-sxm")))
    assert better is not None
    (change,) = [one for one in better.changes if one.option == "CUDA_DEVICE_MAX_CONNECTIONS"]
    (text,) = better.files.values()
    assert f"export CUDA_DEVICE_MAX_CONNECTIONS={change.after}" in text


def test_a_file_that_would_break_is_not_changed_and_that_is_said(ask: Any, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text((SCRIPTS / "slurm_template.sh").read_text())
    _, _, said = ask("lint", str(script), "--cluster", "16x8xh100-sxm", "--fix")
    assert "no file is changed" in said
    assert "by hand: " in said
    assert script.read_text() == (SCRIPTS / "slurm_template.sh").read_text()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("    micro_batch_size: int = 4,", "    micro_batch_size: int = 8,"),
        ("    micro_batch_size = 4", "    micro_batch_size = 8"),
        ("a = T(micro_batch_size=4, lr=1)", "a = T(micro_batch_size=8, lr=1)"),
        (
            "{'eval_micro_batch_size': 2, 'micro_batch_size': 4}",
            "{'eval_micro_batch_size': 2, 'micro_batch_size': 8}",
        ),
        ("    micro_batch_size: int = field(default=4)", None),
        ("    eval_micro_batch_size = 4", None),
    ],
)
def test_one_argument_of_a_line_of_python(line: str, wanted: str | None) -> None:
    change = FlagChange(
        option="micro_batch_size", before="4", after="8", why="", file="a.py", line=1
    )
    found = fixes.fixed_files({"a.py": line}, [change])
    assert found.files["a.py"] == (line if wanted is None else wanted)
    assert found.left == (() if wanted is not None else (change,))
