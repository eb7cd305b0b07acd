"""Every phase of schemathesis, by its own command line, against a service in a process of its own.

That all a schema allows is accepted is asked of GET alone: what a POST takes depends on the names
in the catalog, on fields that contradict each other, on the budget in the address, and on whether
its Idempotency-Key came before, none of which a schema can say.  test_contract.py asks more of each
operation.
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
EXCLUDED = "positive_data_acceptance"
MOST_S = 900  # of a phase; those that draw go on as long
READS_S = 120
FAIR_S = 600  # that a call may wait on a busy machine
# What a schema forbids may also be too large to be parsed at all (413), which the tool's own list
# of refusals does not have.
CONFIG = """\
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
"""


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
    checks = ("--checks", "all", "--exclude-checks", EXCLUDED, "--max-time", str(MOST_S))
    hold(address, tmp_path, "--phases", phase, *checks)


def test_what_a_schema_allows_of_a_read_is_accepted(address: str, tmp_path: Path) -> None:
    checks = ("--checks", EXCLUDED, "--include-method", "GET", "--max-time", str(READS_S))
    # The events of a job that waits never end.
    checks += ("--exclude-path-regex", "/events$")
    hold(address, tmp_path, "--phases", "coverage,fuzzing", *checks)


def hold(address: str, folder: Path, *options: str) -> None:
    """Run schemathesis with these options; none of its checks may fail."""
    program = shutil.which("schemathesis", path=str(BIN)) or "schemathesis"
    report, config = folder / "report.json", folder / "schemathesis.toml"
    config.write_text(CONFIG)
    done = subprocess.run(
        [
            program, "--config-file", str(config), "run", f"{address}/openapi.json",
            "--request-timeout", str(FAIR_S),
            "--max-response-time", str(FAIR_S), "--report-json-path", str(report),
            "--continue-on-failure", "--no-color", *options,
        ],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:]
    assert json.loads(report.read_text())["test_cases"]["generated"]
