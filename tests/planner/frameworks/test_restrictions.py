"""The rules, axes and words that are made from the values a framework leaves of single fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cost_models.plans import RECOMPUTE_MODULES, VOCABULARIES, ParallelPlan, Plans
from planner import frameworks
from planner.constraints import Context, Rule, judged
from planner.frameworks import restrictions
from planner.frameworks.base import Field, cannot, says
from planner.frameworks.read_results import has_effect
from tests.fixtures.frameworks import CASES, NAMES

RUNTIME = {"runtime": cannot("it is its own runtime", "torch")}
REQUEST, _ = next(iter(CASES["pytorch"].values()))
CONTEXT = Context(REQUEST.model, REQUEST.cluster, REQUEST.training)


def made(**fields: Field) -> tuple[Rule, ...]:
    """The rules of a framework with these restrictions."""
    return restrictions.rules(fields)


def passes(rule: Rule, **fields: Any) -> bool:
    return bool(rule.legal(CONTEXT, Plans.of(ParallelPlan(**fields))))


def others(name: str, only: tuple[Any, ...]) -> list[Any]:
    """Some values of a field that a restriction excludes."""
    kind = ParallelPlan.model_fields[name].annotation
    numbers = (1, 2, 4) if ParallelPlan().model_dump()[name] == 1 else (0, 1, 2, 3)
    every: tuple[Any, ...] = VOCABULARIES.get(name, (False, True) if kind is bool else numbers)
    if name == "recompute_modules":
        every = tuple((module,) for module in RECOMPUTE_MODULES)
    if name.endswith("stage_layers") and not isinstance(only[0], int):
        every = ()
    return [value for value in every if value not in only]


def test_a_value_is_refused_only_where_it_has_an_effect() -> None:
    (rule,) = made(cp_kind=cannot("only Ulysses", "a2a"))
    assert rule.code == "cp_seq"
    assert passes(rule, cp=2, cp_kind="a2a")
    assert passes(rule, cp=1, cp_kind="p2p")
    assert not passes(rule, cp=2, cp_kind="p2p")
    (rule,) = made(overlap_grad_reduce=cannot("always overlapped", True))
    assert passes(rule, dp=1, overlap_grad_reduce=False)
    assert not passes(rule, dp=2, overlap_grad_reduce=False)


def test_fields_with_one_reason_are_refused_once() -> None:
    why = "layers are split evenly"
    (rule,) = made(
        first_stage_layers=cannot(why, 0), last_stage_layers=cannot(why, 0), pp=says("--pp")
    )
    plan = ParallelPlan(pp=2, first_stage_layers=3, last_stage_layers=4)
    assert rule.explain(CONTEXT, plan) == (
        "layers are split evenly: first_stage_layers is 0, not 3; last_stage_layers is 0, not 4"
    )


def test_a_refusal_names_what_is_left_and_the_reason() -> None:
    (rule,) = made(zero_stage=says("--zero", note="FSDP shards everything", only=(3, 0)))
    text = "zero_stage is 3 or 0, not 2 (FSDP shards everything)"
    assert rule.explain(CONTEXT, ParallelPlan(zero_stage=2)) == text
    (rule,) = made(compile=cannot("its kernels are fused", False))
    text = "its kernels are fused: compile is false, not true"
    assert rule.explain(CONTEXT, ParallelPlan(compile=True)) == text


def test_a_rule_is_asked_as_soon_as_its_columns_exist() -> None:
    (rule,) = made(pp=cannot("there is no pipeline", 1))
    legal, read = judged(rule, CONTEXT, Plans.build(pp=[1, 2, 4]))
    assert legal.tolist() == [True, False, False]
    assert (rule.level, read) == ("degrees", {"pp"})


def test_an_axis_is_made_where_a_search_would_try_or_hold_other_values() -> None:
    fields = {
        **RUNTIME,
        "zero_stage": says("--zero", only=(3, 0)),
        "cross_entropy": cannot("an fp32 copy of the logits", "unfused"),
        "overlap_tp": cannot("never overlapped", False),
        "compile": cannot("its kernels are fused", False),
        "attention_kernel": says("--attention", only=("flash", "unfused")),
    }
    assert restrictions.axes(fields) == {
        "runtime": ("torch",), "zero_stage": (3, 0), "cross_entropy": ("unfused",),
        "overlap_tp": (False,),
    }  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_value_left_out_is_refused_where_it_has_an_effect(name: str) -> None:
    framework = frameworks.get(name)
    request, plan = next(iter(CASES[name].values()))
    context = Context(request.model, request.cluster, request.training)
    for field, said in framework.fields.items():
        for value in others(field, said.only) if said.only else ():
            other = plan.model_copy(update={field: value})
            effect = bool(has_effect(field, Plans.of(other), request.model))
            refused = [
                rule
                for rule in restrictions.rules({field: said})
                if not np.all(rule.legal(context, Plans.of(other)))
            ]
            assert bool(refused) == effect, (field, value)
            if effect:
                texts = [one.text for one in framework.reasons(request, other)]
                assert any(f"{field} is " in text for text in texts), (field, value, texts)
