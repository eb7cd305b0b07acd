"""Seconds from the shell to the answer, with a cold process each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.fixtures.job_server import ENDLESS, Place, Server, eventually

PLANNER = str(Path(sys.executable).with_name("planner"))
PLAN = (
    "plan --model llama-3.1-70b --cluster 8x8xh100-sxm --seq-length 8192 --global-batch-size 1024"
)


@pytest.mark.parametrize("words", ["--help", PLAN], ids=["help", "plan"])
def test_cold_start(benchmark: BenchmarkFixture, words: str) -> None:
    command = [PLANNER, *words.split()]

    def run() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    benchmark.pedantic(run, rounds=3, warmup_rounds=1)


def test_service_is_ready(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """From the shell until it says that it is ready, each time after a kill in the midst of a job.

    The job goes on beside the calls, so it does not delay them.
    """
    folder = tmp_path / "data"
    folder.mkdir()
    place = Place(folder)
    servers: list[Server] = []

    def run() -> None:
        servers.append(place.serve())
        assert servers[-1].http.get("/readyz").status_code == 200

    def kill() -> None:
        if servers:
            if len(servers) == 1:
                servers[0].start("sweeps", ENDLESS)
            eventually(place.runs, "the job runs")
            servers[-1].kill()

    try:
        benchmark.pedantic(run, setup=kill, rounds=3)
    finally:
        place.clear()
