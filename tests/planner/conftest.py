"""The command line, as it is or in a data folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import cli
from tests.fixtures.commands import Planner


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Planner:
    """Run one command: exit code, what it prints and what it complains; never a traceback."""

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.run(words)
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return run


@pytest.fixture
def planner(ask: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planner:
    """The same in a folder of its own."""
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    return ask
