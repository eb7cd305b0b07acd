"""24 questions: what is recommended can be launched, leaves room, and stands beside recipes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import planner
from tools.accuracy.advice import TABLES, Question, Recipe, Row, advise, questions
from tools.accuracy.advice_page import line, page, pick_cells, recipe_cells

QUESTIONS = questions()
# Seconds each; the others take 0.1 to 0.8.
HEAVY = {
    "gpt-oss-h100", "hybrid-h200", "235b-h100", "v3-gb200", "v3-h100", "175b-a100", "405b-h100",
    "405b-24k-h100",
}  # fmt: skip


def tiers(asked: Sequence[Question]) -> list[Any]:
    """Every second question: a page that is out of date is so in most lines."""
    light = [one.name for one in asked if one.name not in HEAVY][::2]
    return [
        pytest.param(one, marks=() if one.name in light else pytest.mark.exhaustive)
        for one in asked
    ]


SMALL = Question(
    name="small",
    kind="small",
    model="llama-3.1-8b",
    cluster="1x8xh100-sxm",
    training={"seq_length": 8192, "global_batch_size": 64},
)


def recipe(**plan: object) -> Recipe:
    return Recipe(by="NVIDIA", source="a test", framework="megatron", plan=plan)


def test_the_questions_are_spread() -> None:
    assert len({one.name for one in QUESTIONS}) == len(QUESTIONS) == 24
    assert {one.kind for one in QUESTIONS} == {"dense", "experts", "long context", "small"}
    requests = [one.request for one in QUESTIONS]
    groups = [one.cluster.groups[0] for one in requests]
    parts = {group.accelerator.id.partition("-")[0] for group in groups}
    assert {"a100", "h100", "h200", "b200", "gb200", "mi300x", "tpu"} <= parts
    counts = [group.accelerators for group in groups]
    for low, high in ((1, 8), (9, 256), (257, 16_384)):
        assert sum(low <= count <= high for count in counts) >= 5
    assert len({one.framework for one in QUESTIONS} - {None}) >= 4
    assert any(one.framework is None for one in QUESTIONS)
    long = [one for one in QUESTIONS if one.kind == "long context"]
    assert len(long) >= 3
    assert all(one.training["seq_length"] >= 32_768 for one in long)
    assert {one.recipe.by for one in QUESTIONS if one.recipe} == {"AMD", "Meta", "NVIDIA"}


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("question", tiers(QUESTIONS), ids=lambda one: one.name)
def test_advice(question: Question) -> None:
    row = advise(question)
    assert row.pick is not None
    assert row.filled is not None
    assert row.filled <= 0.95
    assert row.files, row.launch_refusal
    assert row.answer.frameworks
    launched(row)
    text = TABLES["pretraining"][1].read_text(encoding="utf-8")
    again = "python -m tools.accuracy.advice --write"
    assert line(pick_cells(row)) in text, again
    if question.recipe is not None:
        compared(row, question.recipe)
        assert line(recipe_cells(row)) in text, again


def launched(row: Row) -> None:
    """Each of the three picks has files, as a user gets them."""
    assert row.answer.launch is not None
    asked = {
        "model": row.question.model,
        "cluster": row.question.cluster,
        "training": row.question.training,
        "search": {"framework": row.answer.launch.framework},
    }
    assert row.answer.best is not None
    for report in [one.plan for one in row.answer.picks] or [row.answer.best]:
        plan = report.plan.model_dump(mode="json")
        assert planner.emit(asked, plan=plan).files


def compared(row: Row, recipe: Recipe) -> None:
    """The recipe has a price and a source, and where our plan is another one, a reason."""
    beside = row.beside
    assert row.pick is not None
    assert beside is not None
    assert beside.report is not None
    assert beside.gap is not None
    assert beside.gap == beside.report.iteration_time_s / row.pick.iteration_time_s - 1.0
    assert "@" in recipe.source or "arXiv" in recipe.source
    assert bool(beside.reason) == (beside.plan != row.pick.plan)
    assert bool(beside.reason) or beside.gap == 0.0


@pytest.mark.slow
def test_a_question_without_a_plan() -> None:
    """The row says why, and the page still has a line for it."""
    question = SMALL.model_copy(update={"model": "llama-3.1-405b", "recipe": recipe(dp=8)})
    row = advise(question)
    assert row.pick is None
    assert row.launch_refusal == "nothing fits"
    assert "nothing fits" in pick_cells(row)
    assert "nothing fits" in recipe_cells(row)
    assert page("pretraining", [row]).count("nothing fits") == 2


def test_a_model_that_the_framework_cannot_build() -> None:
    row = advise(SMALL.model_copy(update={"model": "mistral-7b", "framework": "deepspeed"}))
    assert row.pick is None
    assert row.launch_refusal.startswith("DeepSpeed cannot build it")
    assert row.launch_refusal in pick_cells(row)


@pytest.mark.slow
def test_a_plan_that_no_framework_runs() -> None:
    row = advise(SMALL.model_copy(update={"model": "falcon-40b"}))
    assert row.pick is not None
    assert row.files == ()
    assert row.launch_refusal == "no framework here runs it"
    assert f"not launched: {row.launch_refusal}" in pick_cells(row)[2]


@pytest.mark.slow
def test_a_recipe_that_cannot_run() -> None:
    """No price, but the reason of the rule."""
    row = advise(SMALL.model_copy(update={"recipe": recipe(tp=3, dp=2)}))
    assert row.beside is not None
    assert row.beside.report is None
    assert row.beside.gap is None
    assert any("3" in text for text in row.beside.refusals)
    assert recipe_cells(row)[3] == "–"


@pytest.mark.slow
def test_a_recipe_that_runs_out_of_memory() -> None:
    row = advise(SMALL.model_copy(update={"recipe": recipe(dp=8, micro_batch_size=8)}))
    assert row.beside is not None
    assert any("GiB over" in text for text in row.beside.refusals)


@pytest.mark.slow
def test_a_recipe_that_recomputes_for_nothing() -> None:
    """The setting of ours that would help most in it is named."""
    first = advise(SMALL)
    assert first.pick is not None
    slow = first.pick.plan.model_dump(mode="json") | {
        "recompute": "full",
        "recompute_modules": (),
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    row = advise(SMALL.model_copy(update={"recipe": recipe(**slow)}))
    assert row.beside is not None
    assert row.beside.gap is not None
    assert row.beside.gap > 0.1
    assert row.beside.reason.startswith("recompute ")
    assert "beats recompute full, uniform 1" in row.beside.reason
    assert "alone would save" in row.beside.reason


TUNING = questions("tuning")


def test_the_questions_on_fine_tuning_are_spread() -> None:
    assert len({one.name for one in TUNING}) == len(TUNING) == 30
    kinds = Counter(one.kind for one in TUNING)
    assert set(kinds) == {"full", "lora", "qlora"}
    assert min(kinds.values()) >= 8
    publishers = Counter(one.recipe.by for one in TUNING if one.recipe)
    assert len(publishers) >= 4
    assert sum(publishers.values()) == 30
    counts = Counter(one.request.cluster.accelerators for one in TUNING)
    assert set(counts) <= {1, 2, 4, 8}
    assert counts[1] >= 15
    cards = {one.request.cluster.groups[0].accelerator.id for one in TUNING}
    assert len(cards) >= 6


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("question", tiers(TUNING), ids=lambda one: one.name)
def test_advice_on_fine_tuning(question: Question) -> None:
    """As the page has it; what fits has files that start, and the recipe is priced beside it."""
    row = advise(question)
    text = TABLES["tuning"][1].read_text(encoding="utf-8")
    again = "python -m tools.accuracy.advice tuning --write"
    assert line(pick_cells(row)) in text, again
    assert line(recipe_cells(row)) in text, again
    if row.pick is None:
        assert row.launch_refusal
        return
    assert row.files, row.launch_refusal
    assert row.beside is not None
    assert row.beside.report is not None
