"""Every place that the table breaks is there, with a test that notices."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.mutants.__main__ import not_once, places
from tests.mutants.other_source import ROOT


def test_every_place_stands_once_and_has_a_test_of_its_own() -> None:
    broken = places()
    assert len(broken) >= 60
    assert len(set(broken)) == len(broken)
    assert not_once(broken) == []
    assert [one for one in broken if one.text == one.becomes] == []
    assert [one.test for one in broken if "test_pinned" in one.test] == []


@pytest.mark.slow
def test_every_test_of_the_table_is_there(request: pytest.FixtureRequest) -> None:
    here = {item.nodeid for item in request.session.items}
    here |= {test.partition("[")[0] for test in here}
    # Where only a part of the tests runs, the others are collected apart.
    others = dict.fromkeys(one.test for one in places() if one.test not in here)
    assert not others or _collect(*others) == ""


def _collect(*ids: str) -> str:
    """What pytest has against collecting tests."""
    command = (sys.executable, "-m", "pytest", "-n", "0", "-q", "--collect-only", *ids)
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return (found.stdout + found.stderr)[-2000:] if found.returncode else ""


@pytest.mark.exhaustive
def test_every_broken_place_is_noticed() -> None:
    """`-s` shows the table."""
    command = (sys.executable, "-m", "tests.mutants")
    assert subprocess.run(command, cwd=ROOT, timeout=2 * 3600).returncode == 0
