"""The process of a step: what its end means."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.asker import HERE, CallerIdentity
from planner.running.jobs.settings import JobSettings
from planner.running.jobs.step_process import StepProcess
from planner.running.jobs.step_worker import LEASE_EXPIRED, task_line
from tests.fixtures.job_server import ENDLESS
from tests.planner.learning.sites.runs import NAMES, run

pytestmark = pytest.mark.slow

TASK = {"questions": {"a": ENDLESS["base"] | {"training": {"seq_length": 1024}}}}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05, 0.2])
def test_an_early_stop_is_a_hand_over(
    tmp_path: Path, number: signal.Signals, after_s: float
) -> None:
    until = time.monotonic() + 30
    task = task_line("questions", {}, TASK, tmp_path, JobSettings(), until)
    step_process = StepProcess(task, tmp_path)
    try:
        time.sleep(after_s)
        step_process.process.send_signal(number)
        assert step_process.process.wait(10) == LEASE_EXPIRED
    finally:
        step_process.stop()


def answered(folder: Path, asked: dict[str, Any], asker: CallerIdentity = HERE) -> dict[str, Any]:
    """What a step answers to one question."""
    until = time.monotonic() + 60
    task = task_line(
        "questions", {}, {"questions": {"a": asked}}, folder, JobSettings(run_nice=0), until, asker
    )
    step_process = StepProcess(task, folder)
    try:
        told = {}
        while "result" not in told:
            told = step_process.next(60.0) or {"result": {}}
        return told["result"]["a"]
    finally:
        step_process.stop()


def test_a_sweep_builds_no_model(tmp_path: Path) -> None:
    """Its questions have no budgets of their own."""
    model = {"model_type": "doge", "hidden_size": 64}
    found = answered(tmp_path, {**ENDLESS["base"], "model": model})
    assert found["outcome"] == "bad_input"
    assert "nothing builds it here" in found["reason"]


@pytest.mark.parametrize(
    ("hidden", "seen"), [(frozenset(), True), (frozenset({"lab"}), False), (None, False)]
)
def test_a_step_sees_the_sites_of_its_asker(
    tmp_path: Path, hidden: frozenset[str] | None, seen: bool
) -> None:
    """None: all sites are hidden."""
    storage.learn("lab", (run(NAMES[0]),))
    try:
        asker = CallerIdentity("ann", hidden)
        found = answered(tmp_path, {**ENDLESS["base"], "site": "lab"}, asker)
    finally:
        storage.forget("lab")
    assert (found["outcome"] != "bad_input") is seen, found
