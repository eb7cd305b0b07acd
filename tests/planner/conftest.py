"""The command line in a data folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import cli
from tests.fixtures.commands import Planner


@pytest.fixture
def planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Planner:
    """Run one command in a folder of its own: exit code, what it prints and what it complains."""
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.run(words)
        out, err = capsys.readouterr()
        return code, out, err

    return run
