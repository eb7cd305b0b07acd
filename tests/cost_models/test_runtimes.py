"""Runtimes are data: the same for one plan as in a batch, each with its sources."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from cost_models.plans import VOCABULARIES, ParallelPlan
from cost_models.runtimes import RUNTIMES, traits
from cost_models.runtimes.base import TRAITS
from cost_models.sources import SOURCES


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_runtime_says_what_and_when_it_is(name: str) -> None:
    runtime = RUNTIMES[name]
    assert runtime.name == name
    assert runtime.title
    assert runtime.version
    assert set(runtime.sources) <= set(SOURCES)
    assert runtime.sources
    assert runtime.lineage in RUNTIMES


def test_a_batch_of_several_has_the_traits_of_each() -> None:
    codes = np.array([2, 0, 1, 0, 5, 3, 4])
    many = traits(codes)
    for i, code in enumerate(codes):
        alone = traits(np.asarray(code))
        own = RUNTIMES[VOCABULARIES["runtime"][code]]
        for name in TRAITS:
            assert getattr(many, name)[i] == getattr(alone, name) == float(getattr(own, name))


def test_every_trait_tells_runtimes_apart() -> None:
    """A trait that all of them share is a constant of the physics, not of a runtime."""
    alike = [n for n in TRAITS if len({float(getattr(r, n)) for r in RUNTIMES.values()}) == 1]
    assert alike == []


def test_plans_name_the_runtimes_of_the_registry() -> None:
    schema = ParallelPlan.model_json_schema()["properties"]["runtime"]
    assert schema["enum"] == list(RUNTIMES) == list(VOCABULARIES["runtime"])
    assert schema["default"] == "megatron"


def test_a_plan_that_was_saved_with_a_stack_has_that_runtime() -> None:
    assert ParallelPlan.model_validate({"stack": "torch"}) == ParallelPlan(runtime="torch")
    with pytest.raises(ValidationError, match="stack"):
        ParallelPlan.model_validate({"stack": "torch", "runtime": "megatron"})
