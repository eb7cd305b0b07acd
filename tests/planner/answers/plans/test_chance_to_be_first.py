"""How likely each of a search's first plans is the fastest of them."""

from __future__ import annotations

import io
from dataclasses import replace
from math import pi, sqrt
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from cost_models.plans import ParallelPlan
from planner import plan
from planner.answers.plans.chance_to_be_first import best_expected, contenders, selection
from planner.answers.plans.competition import prepared
from planner.answers.plans.plan_answers import why
from planner.answers.plans.two_plans import side_by_side
from planner.documents.answer import PlanAnswer
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.beliefs import Belief, chances_fastest
from planner.evidence.uncertainty.error_band import SURE, comparison, posterior_at
from planner.evidence.uncertainty.error_features import ErrorFeatures, error_features
from planner.evidence.uncertainty.posterior import posterior
from planner.inputs.requests.parser import parse_request
from planner.inputs.requests.two_requests import parse_both
from planner.presentation.terminal.tables import ranking
from planner.search.exhaustive import search
from planner.search.outcome import CONTENDERS, Priced

ASKED: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "cluster": "2x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 256},
    "search": {"pp": 1, "cp": 1, "framework": "megatron"},
}


@pytest.fixture(scope="module")
def asked() -> PlanRequest:
    return parse_request(ASKED)


@pytest.fixture(scope="module")
def first(asked: PlanRequest) -> list[Priced]:
    return search(*prepared(asked)).contenders


@pytest.fixture(scope="module")
def answer() -> PlanAnswer:
    return plan(ASKED)


def slowed(priced: Priced, times: float) -> Priced:
    return Priced(priced.plan, {name: times * s for name, s in priced.parts_s.items()})


def features(asked: PlanRequest, priced: Priced) -> ErrorFeatures:
    return error_features(asked.model, asked.cluster, asked.training, priced.plan, priced.parts_s)


@pytest.mark.slow
def test_the_first_plans_have_chances(answer: PlanAnswer) -> None:
    """Ten of them, however many are listed; the ones listed come first."""
    found = answer.contenders
    assert len(found) == CONTENDERS > len(answer.plans)
    assert [one.id for one in found[: len(answer.plans)]] == [one.id for one in answer.plans]
    for one, report in zip(found, answer.plans, strict=False):
        assert one.iteration_time_s == pytest.approx(report.iteration_time_s)
    assert sum(one.chance_best for one in found) == pytest.approx(1.0)
    assert plan(ASKED).contenders == found


def test_equal_plans_tie(asked: PlanRequest, first: list[Priced]) -> None:
    found = contenders(asked, [first[0]] * 4)
    for one in found:
        assert one.chance_best == pytest.approx(0.25, abs=0.03)
    assert [one.tie for one in found] == [False, True, True, True]
    assert best_expected(found) is None


def test_a_plan_twice_as_slow_is_not_the_best(asked: PlanRequest, first: list[Priced]) -> None:
    best, other = contenders(asked, [first[0], slowed(first[0], 2.0)])
    assert best.chance_best > 0.999
    assert other.chance_slower > 0.999
    assert not other.tie
    # And one that comes first but is surely slower than the next is no tie either.
    _, faster = contenders(asked, [slowed(first[0], 2.0), first[0]])
    assert not faster.tie
    assert best_expected(contenders(asked, [slowed(first[0], 2.0), first[0]])) == faster.id


def test_a_chance_is_that_of_the_comparison(asked: PlanRequest, first: list[Priced]) -> None:
    """Of two plans: as `why` and lint say it, and as it is drawn."""
    for other in (first[4], slowed(first[0], 1.05)):
        pair = [first[0], other]
        seconds = [sum(one.parts_s.values()) for one in pair]
        said = comparison(
            seconds[0], features(asked, pair[0]), seconds[1], features(asked, pair[1])
        )
        best, second = contenders(asked, pair)
        assert second.chance_slower == pytest.approx(said.chance)
        assert best.chance_best == pytest.approx(said.chance, abs=0.02)
        assert second.tie == (1.0 - SURE < said.chance < SURE)


def test_the_shorter_of_two_equal_estimates_is_too_short(
    asked: PlanRequest, first: list[Priced]
) -> None:
    """By E[max(0, D)] = s / sqrt(2 pi), of a difference D with the deviation s."""
    other = replace(first[0], plan=changed(first[0], 16))
    apart = posterior_at(None).difference(features(asked, first[0]), features(asked, other))
    found = selection(asked, [first[0], other])
    assert found is not None
    assert found.plans == 2
    assert found.share == pytest.approx(apart / sqrt(2 * pi), rel=0.05)
    assert found.expected_time_s == pytest.approx(first[0].iteration_time_s * (1 + found.share))
    more = selection(asked, [first[0], other, replace(other, plan=changed(first[0], 32))])
    assert more is not None
    assert more.share > 1.2 * found.share


def changed(one: Priced, micro_batch_size: int) -> ParallelPlan:
    return one.plan.model_copy(update={"micro_batch_size": micro_batch_size})


def test_a_plan_far_ahead_is_not_first_by_error(asked: PlanRequest, first: list[Priced]) -> None:
    far = slowed(first[0], 2.0)
    found = selection(asked, [first[0], replace(far, plan=changed(far, 64))])
    assert found is not None
    assert abs(found.share) < 0.001


def test_plans_that_agree_in_all_that_is_told_are_one(
    asked: PlanRequest, first: list[Priced]
) -> None:
    assert selection(asked, [first[0], slowed(first[0], 1.001)]) is None
    assert selection(asked, []) is None


def test_wider_doubt_flattens() -> None:
    middle = np.log([1.0, 1.05, 1.1, 1.2])
    chances = [
        chances_fastest(Belief(middle, np.eye(4) * width**2).draws())
        for width in (0.01, 0.1, 1.0, 10.0)
    ]
    spread = [float(np.ptp(found)) for found in chances]
    assert spread == sorted(spread, reverse=True)
    assert spread[0] > 0.95
    assert spread[-1] < 0.06
    for found in chances:
        assert found.sum() == pytest.approx(1.0)
    # What all share cancels.
    shared = chances_fastest(Belief(middle, np.eye(4) * 0.01**2 + 1.0).draws())
    assert shared == pytest.approx(chances[0], abs=0.02)


def test_the_quick_covariance_is_the_joint_one(asked: PlanRequest, first: list[Priced]) -> None:
    several = [features(asked, priced) for priced in first]
    theirs = [replace(one, groups=(*one.groups[:3], "?", "?")) for one in several]
    _, usual = posterior().joint(theirs)
    assert posterior().shared_covariance(several) == pytest.approx(usual)


def test_a_search_for_memory_has_none() -> None:
    answer = plan({**ASKED, "search": {**ASKED["search"], "objective": "memory_headroom"}})
    assert answer.best is not None
    assert answer.contenders == ()


def test_the_list_says_which_plans_cannot_be_told_apart(answer: PlanAnswer) -> None:
    screen = Console(width=100, file=io.StringIO())
    with screen.capture() as shown:
        screen.print(ranking(answer, parse_request(ASKED).search, 100))
    text = " ".join(shown.get().split())
    assert "best?" in text
    ties = [str(i) for i, one in enumerate(answer.contenders[:5], 1) if one.tie]
    assert ties
    verb = "is" if len(ties) == 1 else "are"
    assert f"{ties[-1]} {verb} statistically tied with 1: measure before you choose" in text
    assert answer.best_expected is None
    assert "best on average" not in text
    other = answer.model_copy(update={"best_expected": answer.contenders[2].id})
    with screen.capture() as shown:
        screen.print(ranking(other, parse_request(ASKED).search, 100))
    assert "best on average: 3" in " ".join(shown.get().split())


def test_why_and_compare_say_how_likely_a_plan_is_faster(answer: PlanAnswer) -> None:
    second, best = answer.plans[1], answer.plans[0]
    found = why(parse_request(ASKED), second.plan)
    assert found.chance_slower == pytest.approx(answer.contenders[1].chance_slower)
    assert why(parse_request(ASKED), best.plan).chance_slower is None
    sides = [{**ASKED, "plan": one.plan.model_dump(mode="json")} for one in (best, second)]
    both = side_by_side(*parse_both({"a": sides[0], "b": sides[1]}))
    assert both.chance_b_faster == pytest.approx(1.0 - answer.contenders[1].chance_slower)
    sides[1]["training"] = {**ASKED["training"], "seq_length": 2048}
    assert side_by_side(*parse_both({"a": sides[0], "b": sides[1]})).chance_b_faster is None
