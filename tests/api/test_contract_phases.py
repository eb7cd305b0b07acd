"""Every phase of schemathesis, by its own command line, against a service in a process of its own.

Two of its checks ask for what a schema cannot say: that all it allows is accepted, and all it does
not is refused.  test_openapi.py asks more of each operation.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.job_server import Place

pytestmark = pytest.mark.exhaustive
BIN = Path(sys.executable).parent
EXCLUDED = "positive_data_acceptance,negative_data_rejection"
MOST_S = 900  # of a phase; those that draw go on as long
FAIR_S = 600  # that a call may wait on a busy machine


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that takes jobs, runs none, and ends a question after two seconds of a core."""
    folder = tmp_path_factory.mktemp("contract") / "data"
    folder.mkdir()
    place = Place(folder, max_runs=0, max_queued_jobs=100_000, max_question_cpu_s=2)
    try:
        yield str(place.serve().http.base_url).rstrip("/")
    finally:
        place.clear()


@pytest.mark.parametrize("phase", ["examples", "coverage", "fuzzing", "stateful"])
def test_holds_in_every_phase(address: str, phase: str, tmp_path: Path) -> None:
    program = shutil.which("schemathesis", path=str(BIN)) or "schemathesis"
    report = tmp_path / "report.json"
    done = subprocess.run(
        [
            program, "run", f"{address}/openapi.json", "--phases", phase, "--max-time", str(MOST_S),
            "--checks", "all", "--exclude-checks", EXCLUDED, "--request-timeout", str(FAIR_S),
            "--report-json-path", str(report), "--continue-on-failure", "--no-color",
        ],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:]
    assert json.loads(report.read_text())
    assert "test cases" in done.stdout.lower()
