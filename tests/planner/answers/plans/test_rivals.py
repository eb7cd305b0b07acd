"""The best plan against the best that splits the work otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.catalog.hardware import parse_shorthand
from cost_models.catalog.models import model as preset
from cost_models.estimate import Estimates
from cost_models.plans import ParallelPlan, Plans
from cost_models.spec import TrainingSpec
from planner.answers.plans.competition import prepared
from planner.answers.plans.other_degrees import _claim, _sentence, moved
from planner.answers.plans.plan_answers import find
from planner.documents.answer import PlanAnswer
from planner.documents.formats import share
from planner.documents.request import Bounds, PlanRequest, SearchSpec
from planner.search.best_other_degrees import DEGREES, differing
from planner.search.exhaustive import search


def asked(**search: object) -> PlanRequest:
    return PlanRequest(
        model=preset("llama-3.1-8b"),
        cluster=parse_shorthand("1x8xh100-sxm"),
        training=TrainingSpec(seq_length=8192, global_batch_size=64),
        search=SearchSpec.model_validate({"framework": "megatron", **search}),
    )


@pytest.fixture(scope="module")
def answer() -> PlanAnswer:
    return find(asked())


def test_no_other_degrees_are_faster() -> None:
    seen: dict[tuple[int, ...], float] = {}

    def visit(plans: Plans, estimates: Estimates) -> None:
        columns = [np.broadcast_to(getattr(plans, name), (len(plans),)) for name in DEGREES]
        for *degrees, seconds in zip(*columns, estimates.iteration_time_s, strict=True):
            key = tuple(map(int, degrees))
            seen[key] = min(seen.get(key, np.inf), float(seconds))

    request, rules = prepared(asked())
    outcome = search(request, rules, visit=visit)
    assert outcome.rival is not None
    first, second = sorted(seen, key=lambda key: seen[key])[:2]
    assert tuple(getattr(outcome.best[0], name) for name in DEGREES) == first
    assert tuple(getattr(outcome.rival, name) for name in DEGREES) == second


@pytest.mark.slow
def test_what_is_told_of_a_rival(answer: PlanAnswer) -> None:
    best, rival = answer.best, answer.rival
    assert best is not None
    assert rival is not None
    names = differing(best.plan, rival.plan)
    assert names
    for plan in (best.plan, rival.plan):
        for name in names:
            assert f"{DEGREES[name]}{getattr(plan, name)}" in rival.sentence
    assert rival.iteration_time_s == pytest.approx(best.iteration_time_s * (1 + rival.slower_by))
    assert rival.slower_by >= 0
    assert sum(rival.saved_s.values()) > 0
    assert (" probably beat" in rival.claim) == (rival.chance_slower < 0.95)
    assert rival.claim.endswith(f" by {share(rival.slower_by)}")
    assert rival.sentence.startswith(f"{rival.claim}: ")


@pytest.mark.slow
def test_no_rival_where_degrees_are_given_or_time_is_not_sought() -> None:
    fixed = {name: Bounds(values=(value,)) for name, value in
             (("tp", 2), ("cp", 1), ("pp", 1), ("ep", 1), ("zero_stage", 1))}  # fmt: skip
    assert find(asked(limits=fixed)).rival is None
    narrow = {"pp": Bounds(values=(1,)), "cp": Bounds(values=(1,))}
    assert find(asked(limits=narrow, objective="memory_headroom")).rival is None


def test_a_sentence_tells_a_gain() -> None:
    best = {"tp_comm": 1.0, "cp_comm": 0.6, "bubble": 1.0, "forward": 5.0}
    assert moved(best, best | {"tp_comm": 15.2, "cp_comm": 0.0}) == pytest.approx(
        {"tp_comm": 14.2, "cp_comm": -0.6}
    )
    # What costs more than the first saves is set off by the next.
    other = {"tp_comm": 4.0, "cp_comm": -3.4, "bubble": 3.5, "forward": 5.0}
    assert set(moved(best, other)) == {"tp_comm", "cp_comm", "bubble"}
    claim = _claim(ParallelPlan(tp=4), ParallelPlan(tp=8), 0.098, sure=True)
    assert _sentence(claim, {"tp_comm": 14.2, "cp_comm": -0.628}) == (
        "TP 4 beats TP 8 by 9.8 %: saves 14.2 s of TP communication, costs 628 ms of CP "
        "communication"
    )
    both = ParallelPlan(tp=4, cp=2), ParallelPlan(tp=8, cp=1)
    claim = _claim(*both, 0.001, sure=False)
    assert _sentence(claim, {}) == "TP 4 and CP 2 probably beat TP 8 and CP 1 by 0.1 %"
    assert _claim(*both, 0.0004, sure=False) == "TP 4 and CP 2 are as fast as TP 8 and CP 1"
