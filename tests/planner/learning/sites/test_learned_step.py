"""What a site learns from logs of reinforcement learning, and what its answers make of it."""

from __future__ import annotations

import json
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

import pytest

import planner as package
from planner.data_folder import VARIABLE
from planner.documents.problems import RequestError
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.learned_steps import (
    AT_FIRST_SIGHT,
    COVERED,
    WITHIN,
    generation_belief,
)
from planner.learning.sites.learned_step import LearnedStepAnswer, keep, learned_step
from tests.fixtures.commands import Planner
from tests.planner.inputs.logs.test_rl_steps import ASKED, LOGS

LOG = LOGS / "verl_gh200_sglang.log"
STEP = {**ASKED, "plan": {"dp": 4, "recompute": "full"}}


@pytest.fixture(autouse=True)
def own_sites(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is kept here is no site of another test."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))


def learned(document: dict[str, Any] | None = None, name: str = LOG.name) -> LearnedStepAnswer:
    return learned_step((LOGS / name).read_text().splitlines(), name, document or STEP, "lab")


def test_steps_narrow_the_doubt_down_to_that_of_one_step() -> None:
    step = learned().step
    assert generation_belief(()).doubt == pytest.approx(exp(COVERED * AT_FIRST_SIGHT))
    # One step of a site: what is common to the site is known as well as one step says it.
    of_site = AT_FIRST_SIGHT**2 - WITHIN**2
    found = generation_belief((step,))
    assert found.mean == pytest.approx(step.ln * of_site / AT_FIRST_SIGHT**2)
    left = of_site * WITHIN**2 / AT_FIRST_SIGHT**2
    assert found.deviation == pytest.approx(sqrt(left + WITHIN**2))
    many = generation_belief((step,) * 1000)
    assert many.mean == pytest.approx(step.ln, rel=1e-2)
    assert many.deviation == pytest.approx(WITHIN, rel=1e-2)


def test_a_log_teaches_engines_and_updates() -> None:
    found = learned()
    assert found.step.generation_s == 74.02  # as the log prints it
    asked = {**STEP, "reinforcement": {**ASKED["reinforcement"], "generation": "same"}}
    assert found.step.estimated_s == pytest.approx(
        package.rl(asked).parts_s["generation"], rel=0.01
    )
    assert found.update is not None
    before = package.rl(STEP)
    keep(found)
    after = package.rl({**STEP, "site": "lab"})
    factor = generation_belief((found.step,)).factor
    ratio = after.parts_s["generation"] / before.parts_s["generation"]
    assert ratio == pytest.approx(factor)
    # The update moves from the estimate towards what was measured, and is more certain.
    measured = log(14.302 / before.parts_s["policy_training"])
    moved = log(after.parts_s["policy_training"] / before.parts_s["policy_training"])
    assert 0.2 < moved / measured < 1.0
    assert after.interval_s[1] / after.interval_s[0] < before.interval_s[1] / before.interval_s[0]
    (note,) = [note.text for note in after.notes if note.code == "site"]
    assert f"{factor:.2f} times as long as modelled" in note
    assert "1 step of site lab" in note


def test_without_a_plan_the_engines_alone_are_learned() -> None:
    found = learned(dict(ASKED))
    assert found.update is None
    assert "the step has no plan" in found.notes[0]


def test_what_has_no_rate_is_refused() -> None:
    asynchronous = {
        **ASKED,
        "cluster": "2x4xh100-sxm",
        "reinforcement": {**ASKED["reinforcement"], "staleness": 2, "max_response_tokens": 4096,
                          "generation": "other", "generation_nodes": 1},
    }  # fmt: skip
    with pytest.raises(RequestError, match="a rate is learned where steps wait"):
        learned(asynchronous, "nemo_rl_async.log")
    short = {**ASKED, "reinforcement": {**ASKED["reinforcement"], "max_response_tokens": 300}}
    with pytest.raises(RequestError, match="less than the mean response of the log, 325 tokens"):
        learned(short)


def test_on_the_command_line(planner: Planner, tmp_path: Path) -> None:
    source = tmp_path / "step.json"
    source.write_text(json.dumps(STEP))
    words = ["learn", str(LOG), "--site", "lab", "--step", str(source)]
    _, out, _ = planner(*words)
    assert "times the" in out
    assert out.endswith("nothing is kept: --yes keeps it, with site lab\n")
    assert storage.names() == ()
    planner(*words, "--yes")
    (step,) = storage.find("lab").steps
    _, out, _ = planner(*words, "--yes")
    assert "has this log already" in out
    _, out, _ = planner("sites", "show", "lab")
    assert f"step {step.id}" in out
    planner("sites", "forget", "lab", step.id)
    assert storage.find("lab").steps == storage.find("lab").runs == ()
    code, _, err = planner("learn", str(LOG), "--site", "lab")
    assert code == 2
    assert "give --cluster, or --step" in err
