"""`planner compare`: two plans side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner import cli
from planner.answers.plans.two_plans import SideBySide, side_by_side
from planner.inputs.requests.two_requests import parse_both
from planner.questions.examples import examples

BOTH: dict[str, Any] = examples("comparison")["short"]["value"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """The two requests in files."""
    for name, request in BOTH.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(request))
    return [str(tmp_path / f"{name}.json") for name in BOTH]


def test_what_differs_is_shown(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compare", *files]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["tp", "4", "8", "2", "x"] in lines
    assert ["pp", "2", "1", "0.5", "x"] in lines
    assert not any(line[:1] == ["hidden_size"] for line in lines)
    assert cli.run(["compare", *files, "--all"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["hidden_size", "4,096", "4,096"] in lines


def test_the_document_is_the_services(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["compare", *files, "--json"]) == 0
    printed = SideBySide.model_validate_json(capsys.readouterr().out)
    assert printed == side_by_side(*parse_both(BOTH))


def test_both_sides_are_mended_at_once(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for file, model in zip(files, ("lama", "gtp2"), strict=True):
        path = Path(file)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model": model}))
    assert cli.run(["compare", *files]) == 2
    said = capsys.readouterr().err
    assert "/a/model" in said
    assert "/b/model" in said
