"""The tests notice nine in ten of the drawn mutants of the cost model and the search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_nine_in_ten_mutants_are_noticed() -> None:
    """Three of each file; `-s` shows the table and the survivors."""
    pytest.importorskip("mutmut", reason="the extra `mutation` is not installed")
    command = (sys.executable, "-m", "tests.mutation", "--sample", "3", "--least", "0.9")
    assert subprocess.run(command, cwd=ROOT, timeout=4 * 3600).returncode == 0
