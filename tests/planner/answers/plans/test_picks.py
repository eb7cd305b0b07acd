"""What makes a plan "recommended", and which has the most headroom, of plans that are given."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.plans import ParallelPlan
from planner.answers.plans.explain import report, reports
from planner.answers.plans.picks import picks
from planner.documents.answer import Pick
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.search.exhaustive import cost_model
from planner.search.outcome import Outcome

REQUEST = parse_request(
    {
        "model": "gpt2-medium",
        "cluster": "1x8xh100-sxm",
        "training": {"seq_length": 1024, "global_batch_size": 512},
    }
)


def plan(**fields: Any) -> ParallelPlan:
    return ParallelPlan.model_validate({"dp": 8, "micro_batch_size": 8, **fields})


FASTEST = plan(zero_stage=2)
# ZeRO-3 has as many kinds of parallelism, full recompute too.
ROOMIER = plan(zero_stage=3)
ROOMIEST = plan(recompute="full", recompute_method="uniform", recompute_num_layers=1)


def with_memory(memory_bytes: float) -> PlanRequest:
    (group,) = REQUEST.cluster.groups
    own = group.accelerator.model_copy(update={"memory_bytes": memory_bytes})
    groups = (group.model_copy(update={"accelerator": own}),)
    cluster = REQUEST.cluster.model_copy(update={"groups": groups})
    return REQUEST.model_copy(update={"cluster": cluster})


def picked(other: ParallelPlan, request: PlanRequest = REQUEST) -> dict[str, Pick]:
    """The picks of a search whose fastest plan is FASTEST and whose simplest is the other."""
    model = cost_model(request)
    found = reports(model, request, [FASTEST])
    front = reports(model, request, [FASTEST, ROOMIER, ROOMIEST])
    return {p.name: p for p in picks(request, model, Outcome(simple=[other]), found, front)}


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        # Without ZeRO-2, so with a kind of parallelism less.
        ({"attention_kernel": "flash2", "zero_stage": 0}, True),
        ({"cross_entropy": "unfused"}, False),
    ],
)
def test_a_simpler_plan_is_recommended_up_to_two_per_cent_slower(
    fields: dict[str, Any], chosen: bool
) -> None:
    other = plan(**fields)
    model = cost_model(REQUEST)
    mine, theirs = (report(model, REQUEST, p).iteration_time_s for p in (FASTEST, other))
    assert 1 < theirs / mine < 1.05
    assert (theirs / mine < 1.02) is chosen
    pick = picked(other)["recommended"]
    assert pick.plan.plan == (other if chosen else FASTEST)
    if chosen:
        assert pick.why == "does without ZeRO-2 or 3; statistically tied with the fastest"
        assert pick.slower_by == pytest.approx(theirs / mine - 1)


@pytest.mark.parametrize(("full", "chosen"), [(0.96, ROOMIER), (0.94, FASTEST)])
def test_a_plan_as_simple_is_recommended_where_the_fastest_fills_the_memory(
    full: float, chosen: ParallelPlan
) -> None:
    """From 95 % on, which nothing but its own peak decides."""
    peak = report(cost_model(REQUEST), REQUEST, FASTEST).memory.peak_bytes
    pick = picked(ROOMIER, with_memory(peak / full))["recommended"]
    assert pick.plan.plan == chosen
    assert ("more memory free" in pick.why) is (chosen == ROOMIER)


def test_most_headroom_costs_at_most_a_twentieth_of_the_time() -> None:
    """Full recompute leaves the most memory and takes a third longer."""
    model = cost_model(REQUEST)
    fastest, roomier, roomiest = reports(model, REQUEST, [FASTEST, ROOMIER, ROOMIEST])
    assert roomiest.memory.peak_bytes < roomier.memory.peak_bytes < fastest.memory.peak_bytes
    assert roomiest.iteration_time_s > 1.3 * fastest.iteration_time_s
    assert picked(FASTEST)["most headroom"].plan.plan == ROOMIER


# No published run on A100 has TP with ZeRO-2 or 3.
A100 = parse_request(
    {
        "model": "gpt2-medium",
        "cluster": "1x8xa100-sxm",
        "training": {"seq_length": 1024, "global_batch_size": 512},
    }
)
UNPROVEN = plan(tp=2, dp=4, zero_stage=2)


def recommended(simple: list[ParallelPlan]) -> Pick:
    """Where the fastest is UNPROVEN."""
    model = cost_model(A100)
    (found,) = reports(model, A100, [UNPROVEN])
    picked = picks(A100, model, Outcome(simple=simple), [found], [])
    return {one.name: one for one in picked}["recommended"]


def test_what_no_published_run_combines_is_not_recommended() -> None:
    """However much slower the fastest of what runs have shown is."""
    shown = plan(tp=8, dp=1, recompute="full", recompute_method="uniform", recompute_num_layers=1)
    pick = recommended([shown])
    assert pick.plan.plan == shown
    assert pick.slower_by > 0.1
    assert pick.why == (
        "does without ZeRO-2 or 3 (but with recompute); the fastest has TP with ZeRO-2 or 3, "
        "which no published run of its kind has"
    )


def test_where_nothing_that_was_shown_fits_the_fastest_says_that_it_was_not() -> None:
    pick = recommended([])
    assert pick.plan.plan == UNPROVEN
    assert pick.why == (
        "has TP with ZeRO-2 or 3, which no published run of its kind has: measure it first"
    )
