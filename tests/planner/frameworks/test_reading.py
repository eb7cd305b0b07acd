"""Emit, then read back: the same specs, the same plan, and nothing left that was not understood."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cost_models.plans import ParallelPlan
from planner import frameworks
from planner.documents.request import PlanRequest
from planner.frameworks.base import Framework
from tests.fixtures.canonical import canonical
from tests.fixtures.frameworks import ALL_CASES, CASES, DRAWN, NAMES, bundle
from tests.fixtures.tiers import examples

READ = [name for name in NAMES if frameworks.get(name).reads_back]
# What no launch file says: names, the length of the whole training, and what only the planner asks.
UNSAID: dict[str, dict[str, Any]] = {
    "model": {"name": "custom"},
    "training": {"tokens": None},
}


def comes_back(framework: Framework, request: PlanRequest, plan: ParallelPlan) -> None:
    assert framework.read is not None
    made = framework.write(request, plan)
    reading = framework.read(made.files, None)
    assert canonical(reading.plan, request.model) == canonical(plan, request.model)
    said, asked = reading.model, request.model
    # Numerics that nobody states are the framework's own, which some files write out.
    stated = said.numerics.model_copy(
        update=dict.fromkeys(said.numerics.stated - asked.numerics.stated)
    )
    said = said.model_copy(update={"numerics": stated})
    assert said.model_copy(update=UNSAID["model"]) == asked.model_copy(update=UNSAID["model"])
    # A script for a data set of samples says how long it runs, one on mock data does not.
    said_training = reading.training.model_copy(update=UNSAID["training"])
    assert said_training == request.training.model_copy(update=UNSAID["training"])
    assert reading.unknown == ()
    assert reading.refusals == ()
    assert (reading.nodes, reading.accelerators_per_node) == (
        sum(group.nodes for group in request.cluster.groups),
        request.cluster.groups[0].accelerators_per_node,
    )
    # What was read writes the same files again, but for the names and figures nobody said.
    again = framework.write(reading.request(request.cluster), reading.plan)
    flags = [[(flag.name, flag.value) for flag in one.flags] for one in (made, again)]
    assert flags[0] == flags[1]


@pytest.mark.parametrize("name", NAMES)
def test_every_framework_reads_or_says_why_not(name: str) -> None:
    framework = frameworks.get(name)
    assert framework.reads_back != bool(framework.no_reader)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "case"), [row for row in ALL_CASES if row[0] in READ])
def test_the_named_cases_come_back(name: str, case: str) -> None:
    comes_back(frameworks.get(name), *CASES[name][case])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", READ)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_whatever_is_written_comes_back(name: str, data: st.DataObject) -> None:
    a_drawn_launch_comes_back(name, data)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", READ)
@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_whatever_is_written_of_many_comes_back(name: str, data: st.DataObject) -> None:
    a_drawn_launch_comes_back(name, data)


def a_drawn_launch_comes_back(name: str, data: st.DataObject) -> None:
    request, plan = data.draw(DRAWN[name])
    framework = frameworks.get(name)
    legal = not framework.reasons(request, plan)
    event("written" if legal else "refused")
    if legal:
        comes_back(framework, request, plan)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_a_bundle_is_recognised_as_its_own_and_no_other(name: str, case: str) -> None:
    files = bundle(name, case).files
    found = [other for other in READ if frameworks.get(other).recognises(files)]
    assert found == ([name] if name in READ else [])
