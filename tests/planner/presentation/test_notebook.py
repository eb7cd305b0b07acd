"""What a notebook shows: every answer has a screen there, and each can be shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import planner
from cost_models.spec import ClusterSpec
from planner.answers.fits.by_card import fit_cards, parse_cards
from planner.answers.lint.lint import lint
from planner.answers.pipelines.all_schedules import compare_schedules, parse_comparison
from planner.answers.pipelines.timeline import parse_timeline, timeline
from planner.answers.plans.ranks import ranks
from planner.evidence.uncertainty.site import Site
from planner.evidence.uncertainty.site_corrections import site_answer
from planner.frameworks.sources import files_at
from planner.inputs.requests.model_import import described
from planner.inputs.requests.parser import parse_cluster, parse_request
from planner.learning.sites.learn_answer import LearnAnswer, ReadRun
from planner.learning.sites.learned_step import learned_step
from planner.presentation.answer_screens import SCREENS
from planner.presentation.notebook import html as shown
from planner.running.autotune.next_run import Budget, bound, question, tune
from tests.planner.inputs.logs.test_rl_steps import ASKED as STEP_ASKED
from tests.planner.inputs.logs.test_rl_steps import LOGS
from tests.planner.learning.sites.runs import NAMES, run

ASKED: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 8192, "global_batch_size": 64},
}
PIPELINE = {"stages": 4, "micro_batches": 8, "forward_s": 1, "input_grad_s": 1, "weight_grad_s": 1}
# Shown as their document: a request to go on with, what the page alone draws, and what the service
# keeps.
PLAIN = {"ReadAnswer", "LayersAnswer", "JobAnswer", "SavedPlanAnswer"}


def _ranks() -> BaseModel:
    request = parse_request({**ASKED, "plan": {"tp": 2, "pp": 2}}, need_plan=True)
    assert request.plan is not None
    return ranks(request, request.plan, "megatron")


def _learned() -> BaseModel:
    read = ReadRun(run=run(NAMES[0]), known=False, low_s=None, high_s=None, doubts=())
    return LearnAnswer(site="lab", kept=True, runs=(read,), refused=(), site_runs=1)


def _learned_step() -> BaseModel:
    log = LOGS / "verl_gh200_sglang.log"
    asked = {**STEP_ASKED, "plan": {"dp": 4, "recompute": "full"}}
    return learned_step(log.read_text().splitlines(), log.name, asked, "lab")


def _tuned() -> BaseModel:
    asked = bound(parse_request({**ASKED, "search": {"pp": 1, "cp": 1}}))
    return tune(question(asked, Site(name="lab")), Budget())


def _cards() -> BaseModel:
    part = {"names": ["rtx-4090"], "methods": ["qlora"]}
    return fit_cards(parse_cards({"model": "llama-3.1-8b", "cards": part}))


def _cluster(name: str) -> ClusterSpec:
    return parse_cluster(name)


MADE: dict[str, tuple[Callable[[], BaseModel], str, int]] = {
    "plan": (lambda: planner.plan(ASKED, search={"pp": 2}), "Best plan", 1),
    "estimate": (lambda: planner.estimate(ASKED, plan={"tp": 8}), "Estimate", 0),
    "why": (lambda: planner.why(ASKED, plan={"tp": 8}), "tp 8", 0),
    "ranks": (_ranks, "Traffic of one iteration", 1),
    "timeline": (lambda: timeline(parse_timeline({"schedule": "1f1b", **PIPELINE})), "1F1B", 1),
    "schedules": (
        lambda: compare_schedules(parse_comparison(PIPELINE)), "zb-h1", 0,
    ),
    "lint": (
        lambda: lint(files_at([Path("tests/scripts/few_micro_batches.sh")]),
                     _cluster("16x8xh100-sxm")),
        "script", 0,
    ),
    "cards": (_cards, "on one card", 0),
    "model": (lambda: described("llama-3.1-8b"), "parameters", 0),
    "files": (lambda: planner.emit(ASKED), "launch.sh", 0),
    "site": (lambda: site_answer(Site(name="lab", runs=(run(NAMES[0]),))), "lab", 0),
    "learn": (_learned, NAMES[0], 0),
    "learned step": (_learned_step, "lab", 0),
    "tune": (_tuned, "expected to be the fastest", 0),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_shown(name: str) -> None:
    make, says, pictures = MADE[name]
    answer = make()
    html = shown(answer)
    assert says in html
    assert html.count("<figure>") == pictures


def test_every_answer_has_a_screen() -> None:
    sources = Path(planner.__path__[0]).rglob("*.py")
    found = {
        name
        for source in sources
        for name in re.findall(r"^class (\w+Answer)\(", source.read_text(), re.MULTILINE)
    }
    assert "AccuracyAnswer" in found
    assert found - {kind.__name__ for kind in SCREENS} == PLAIN
