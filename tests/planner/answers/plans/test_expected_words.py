"""Launch files say in their header what a run is expected to show: the numbers of the answer."""

from __future__ import annotations

import re

import pytest

import planner
from planner.documents.answer import PlanAnswer
from planner.documents.plan_report import PlanReport
from planner.frameworks.base import Bundle
from tests.fixtures.frameworks import CASES, NAMES

EXPECTED = re.compile(
    r"# Expected: (\S+ \w+) per iteration \((\S+ \w+) to (\S+ \w+): 80 % interval\), "
    r"(\S+) tokens/s; (\S+) of (\S+) GiB at the peak\."
)
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
ASKED = {
    "model": "llama-3.2-1b",
    "cluster": "2x8xh100-sxm",
    "training": {"seq_length": 2048, "global_batch_size": 64},
}


def header(text: str) -> list[str]:
    """The comments under the first line of a script, up to its first other line."""
    first, *lines = text.splitlines()
    assert first.startswith("#!")
    ends = (place for place, line in enumerate(lines) if not line.startswith("#"))
    return lines[: next(ends)]


def number(words: str) -> float:
    """A number of the header, times in seconds."""
    value, _, unit = words.partition(" ")
    return float(value.replace(",", "")) * SECONDS.get(unit, 1.0)


def check_expected(bundle: Bundle, answered: PlanReport) -> None:
    """One line of the header, and no other line of that file, has the numbers of the answer."""
    text = bundle.files[bundle.main]
    (line,) = (one for one in header(text) if one.startswith("# Expected:"))
    assert text.count("Expected:") == 1
    found = EXPECTED.fullmatch(line)
    assert found is not None, line
    *speeds, peak, capacity = map(number, found.groups())
    band, memory = answered.error_band, answered.memory
    times = [answered.iteration_time_s, band.low_s, band.high_s]
    assert speeds == pytest.approx([*times, answered.tokens_per_s], rel=0.0051)  # three digits
    held = [memory.peak_bytes / 2**30, memory.capacity_bytes / 2**30]
    assert [peak, capacity] == pytest.approx(held, rel=0.0, abs=0.0501)  # one decimal


@pytest.mark.parametrize("name", NAMES)
def test_of_each_framework(name: str) -> None:
    request, plan = next(iter(CASES[name].values()))
    document = request.document() | {
        "plan": plan.model_dump(mode="json"), "search": {"framework": name},
    }  # fmt: skip
    bundle = planner.emit(document)
    assert bundle.framework == name
    check_expected(bundle, planner.estimate(document).estimate)


@pytest.mark.slow
def test_of_a_plan_that_was_searched_for() -> None:
    """The recommended plan is written unless another is asked for, and each has its own numbers."""
    asked = {**ASKED, "search": {"framework": "megatron"}}
    answer = planner.plan(asked)
    assert isinstance(answer, PlanAnswer)
    picks = {one.name: one.plan for one in answer.picks}
    assert len({one.iteration_time_s for one in picks.values()}) > 1
    check_expected(planner.emit(asked), picks["recommended"])
    for name, answered in picks.items():
        check_expected(planner.emit(asked, pick=name.replace(" ", "-")), answered)


@pytest.mark.parametrize("launcher", ["torchrun", "slurm", "kubernetes"])
def test_of_the_script_that_a_launcher_starts(launcher: str) -> None:
    asked = {**ASKED, "plan": {"tp": 2}, "search": {"framework": "megatron"}}
    bundle = planner.emit(asked, launcher=launcher)
    script = bundle.model_copy(update={"main": "launch.sh"})
    check_expected(script, planner.estimate(asked).estimate)
