"""Long work says how far it is, and ends when it is told to."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.answers import mixed_clusters
from planner.answers.plans import plan_answers
from planner.answers.sensitivities.analysis import parse_sensitivity, sensitivity
from planner.answers.sizing.compute import size
from planner.answers.sizing.request import parse_sizing
from planner.cli import run
from planner.inputs.requests.parser import parse_request
from planner.presentation.terminal import progress_bar
from planner.progress import Step, Stopped, Watch, step, watched, within_a_step

SMALL: dict[str, Any] = {
    "model": "gpt2",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 1024, "global_batch_size": 64},
}
GROUPS = [{"accelerator": "h100-sxm", "nodes": 1}, {"accelerator": "a100-sxm-80gb", "nodes": 1}]
MIXED = {"cluster": {"groups": GROUPS}, "search": {"tp": 1, "cp": 1, "micro_batch_size": 1}}
VARIED = {"search": {"tp": 1, "pp": 1}, "sensitivity": {"inputs": ["memory_bytes"]}}
SIZED = {"sizing": {"accelerators": ["h100-sxm", "a100-sxm-80gb"], "sizes": [4, 8]}}
TOKENS = SMALL["training"] | {"tokens": 1e9}


def _sensitivity() -> object:
    asked = parse_sensitivity(SMALL | VARIED)
    return sensitivity(asked.request, asked.sensitivity)


def _size() -> object:
    asked = {"model": "gpt2", "training": TOKENS, **SIZED}
    return size(parse_sizing(asked))


WORK: dict[str, Callable[[], object]] = {
    "search": lambda: plan_answers.find(parse_request(SMALL)),
    "mixed": lambda: mixed_clusters.find(parse_request(SMALL | MIXED, mixed_cluster=True)),
    "sensitivity": _sensitivity,
    "sizing": _size,
}


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_steps_lead_to_the_end(work: Callable[[], object]) -> None:
    seen: list[Step] = []
    with watched(Watch(seen.append)):
        work()
    known = [one for one in seen if one.total]
    assert known, "no step was told"
    assert len({one.total for one in known}) == 1, "the goal moved"
    done = [one.done for one in known]
    assert done == sorted(done)
    assert done[-1] <= known[-1].total


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_told_to_stop_it_stops_at_the_next_step(work: Callable[[], object]) -> None:
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return asked == 2

    with pytest.raises(Stopped), watched(Watch(stopped=stopped)):
        work()
    assert asked == 2


def test_a_search_tells_its_best_so_far() -> None:
    seen: list[Step] = []
    with watched(Watch(seen.append)):
        answer = plan_answers.find(parse_request(SMALL))
    assert answer.best is not None
    assert seen[-1].done == seen[-1].total
    assert seen[-1].best == {
        "plan": answer.best.plan.model_dump(mode="json"),
        "iteration_time_s": pytest.approx(answer.best.iteration_time_s),
        "peak_bytes": pytest.approx(answer.best.memory.peak_bytes),
    }


def test_a_part_shows_nothing_and_stops() -> None:
    seen: list[Step] = []
    with watched(Watch(seen.append, lambda: len(seen) > 1)):
        with within_a_step():
            step(1, 9)
        step(1, 2)
        step(2, 2)
        with within_a_step(), pytest.raises(Stopped):
            step(2, 9)
    assert seen == [Step(1, 2), Step(2, 2)]
    step(1, 1)  # nobody watches


@pytest.mark.exhaustive
def test_a_bar_is_for_a_terminal_that_waits(tmp_path: Path) -> None:
    """On standard error, where that is a terminal; standard output has the document alone."""
    ours, theirs = pty.openpty()
    program = (
        "import sys; from planner import cli; "
        "from planner.presentation.terminal import progress_bar; "
        "progress_bar.PATIENCE_S = -1.0; "
        "sys.exit(cli.run(['plan', '--model', 'gpt2', '--cluster', '1x8xh100-sxm', "
        "'--seq-length', '1024', '--global-batch-size', '64', '--json']))"
    )
    document = tmp_path / "plan.json"
    with document.open("wb") as out:
        running = subprocess.Popen([sys.executable, "-c", program], stdout=out, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the terminal's other end is closed
        pass
    assert running.wait() == 0
    assert json.loads(document.read_text())["best"]
    assert b"searching" in shown


def test_no_bar_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_bar, "PATIENCE_S", -1.0)
    words = ["--model", "gpt2", "--cluster", "1x8xh100-sxm"]
    assert run(["plan", *words, "--seq-length", "1024", "--global-batch-size", "64"]) == 0
    assert capsys.readouterr().err == ""
