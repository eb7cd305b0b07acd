"""A torch that the training script can't run on is refused before anything starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from planner.documents.problems import RequestError
from planner.running.validate.run import require_torch


def installed(folder: Path, number: str) -> str:
    """A folder that says it holds this torch."""
    described = folder / f"torch-{number}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {number}\n")
    return str(folder)


@pytest.mark.parametrize("number", ["2.11.0", "2.11.0+cu130", "1.13.1"])
def test_an_older_one_is_refused_with_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setattr(sys, "path", [installed(tmp_path, number), *sys.path])
    with pytest.raises(RequestError, match=r"needs torch 2\.13 or later") as refused:
        require_torch()
    assert number.split("+")[0] in str(refused.value)


@pytest.mark.parametrize("number", ["2.13.0", "2.14.0.dev20261120", "3.0.0"])
def test_a_newer_one_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    monkeypatch.setattr(sys, "path", [installed(tmp_path, number), *sys.path])
    require_torch()
