"""The plans of a sensitivity, held against whole searches."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cost_models.estimate import CostModel
from cost_models.plans import ParallelPlan
from planner.answers.plans.competition import fastest, prepared
from planner.answers.plans.emission import NothingFits
from planner.answers.sensitivities.analysis import sensitivity
from planner.answers.sensitivities.documents import SensitivityAnswer, SensitivitySpec
from planner.answers.sensitivities.format import difference
from planner.answers.sensitivities.inputs import Input, changed, inputs_of
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import search
from tests.fixtures.small_requests import requests
from tests.planner.answers.sensitivities.test_sensitivities import ASK


def best_of_all(
    request: PlanRequest, model: CostModel, framework: str | None, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """The best plan by a whole search, priced with a given cost model."""
    asked, rules = prepared(request.for_framework(framework))
    with monkeypatch.context() as patched:
        patched.setattr("planner.search.exhaustive.cost_model", lambda _: model)
        return next(iter(search(asked, rules, top_k=1).best), None)


def same(one: ParallelPlan | None, other: ParallelPlan | None) -> bool:
    if one is None or other is None:
        return one is other
    return not difference(one, other)


def check_by_searching(
    request: PlanRequest, answer: SensitivityAnswer, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Every point's plan, and both sides of every change of plan, by whole searches."""
    inputs = {one.name: one for one in inputs_of(request) if isinstance(one, Input)}
    resolution = answer.request["sensitivity"]["resolution"]
    searched = 0
    framework = fastest(request).framework
    for one in answer.inputs:
        own = inputs[one.name]
        sides = [(p.factor, p.plan) for p in one.points]
        for change in one.changes:
            sides += [(change.factor_before, change.before), (change.factor_after, change.after)]
            assert not same(change.before, change.after)
            if not own.whole:
                ratio = abs(math.log(change.factor_after / change.factor_before))
                assert ratio <= math.log1p(resolution) * (1 + 1e-9)
        for factor, plan in sides:
            case = changed(request, own, factor)
            assert same(best_of_all(case.request, case.model, framework, monkeypatch), plan), (
                own,
                factor,
            )
            searched += 1
        if one.all_changes and one.points:
            # From the base outward, the changes lead from each sampled plan to the next.
            for outward in (
                [p for p in reversed(one.points) if p.factor < 1],
                [p for p in one.points if p.factor > 1],
            ):
                at, log = answer.best.plan, 0.0
                for point in outward:
                    reach = math.log(point.factor)
                    for change in sorted(one.changes, key=lambda c: abs(math.log(c.factor_after))):
                        far = math.log(change.factor_after)
                        if far * reach > 0 and abs(log) < abs(far) <= abs(reach) + 1e-12:
                            assert same(change.before, at)
                            at = change.after
                    assert same(at, point.plan)
                    log = reach
    return searched


@pytest.mark.exhaustive
def test_plans_are_those_of_whole_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = parse_request(ASK)
    spec = SensitivitySpec(
        inputs=(
            "network_bandwidth_bytes_per_s", "matrix_efficiency", "memory_bytes", "seq_length",
        ),
        resolution=0.1,
    )  # fmt: skip
    answer = sensitivity(asked, spec)
    assert any(one.changes for one in answer.inputs)
    assert check_by_searching(asked, answer, monkeypatch) > 16


@pytest.mark.exhaustive
@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    requests(most_layers=3, worlds=((1, 2), (2, 2)), batches=(4, 6)),
    st.lists(st.sampled_from([0.0625, 0.3, 0.9, 1.0, 1.5, 16.0]), min_size=1, max_size=2),
    st.lists(st.integers(0, 100), min_size=1, max_size=3),
)
def test_drawn_requests_are_planned_as_whole_searches_do(
    request: PlanRequest, factors: list[float], drawn: list[int]
) -> None:
    assume(set(factors) != {1.0})
    known = [one.name for one in inputs_of(request) if isinstance(one, Input)]
    names = tuple({known[i % len(known)]: i for i in drawn})
    spec = SensitivitySpec(inputs=names, factors=tuple(factors), resolution=0.5)
    try:
        answer = sensitivity(request, spec)
    except NothingFits:
        assume(False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        check_by_searching(request, answer, monkeypatch)
    for one in answer.inputs:
        for point in one.points:
            assert (point.fixed is None) == bool(point.reasons)
