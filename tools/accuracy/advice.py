"""What the planner advises, beside what vendors and trainers publish for the same questions.

`python -m tools.accuracy.advice --write` answers 24 questions of pre-training and writes ADVICE.md,
`python -m tools.accuracy.advice tuning --write` 30 of fine-tuning, TUNING_ADVICE.md.  Of a recipe
its plan alone is taken, never what was measured with it: both plans are priced by this model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from cost_models.fields import Spec
from cost_models.plans import ParallelPlan
from cost_models.spec import TrainingSpec
from planner import frameworks
from planner.answers.plans import plan_answers
from planner.answers.plans.emission import emit
from planner.answers.plans.other_degrees import against, choice
from planner.documents.answer import PlanAnswer
from planner.documents.formats import share
from planner.documents.plan_report import PlanReport
from planner.documents.problems import RequestError
from planner.documents.request import Objective, PlanRequest
from planner.frameworks.base import Unsupported
from planner.inputs.requests.parser import parse_request
from planner.search.memory_reasons import memory_reasons

# The questions of each table, and the page that answers them.
_HERE = Path(__file__).parent
TABLES = {
    "pretraining": (_HERE / "advice.json", _HERE / "ADVICE.md"),
    "tuning": (_HERE / "tuning_advice.json", _HERE / "TUNING_ADVICE.md"),
}
# What may differ at equal degrees, each with the fields that belong to it, and the least share of
# a step that one of them must save to be told.
_SETTINGS = (
    ("micro_batch_size",),
    ("recompute", "recompute_modules", "recompute_method", "recompute_num_layers"),
    ("moe_dispatcher",),
    ("overlap_ep",),
    ("overlap_tp",),
)
_WORTH = 0.01
_KERNELS = ("cp_kind", "attention_kernel")


class Recipe(Spec):
    """A plan that a vendor or a trainer publishes: repository, path, commit; or a paper's section.

    framework: the one that it is written for, or the nearest known here.  remarks: what the
    source sets and a plan cannot say, and what was read into it.
    """

    by: str
    source: str
    framework: str
    plan: dict[str, Any]
    remarks: tuple[str, ...] = ()


class Question(Spec):
    """One request in the words of a user, and the recipe for it where there is one."""

    name: str
    kind: Literal["dense", "experts", "long context", "small", "full", "lora", "qlora"]
    model: str
    cluster: str
    training: dict[str, Any]
    framework: str | None = None
    objective: Objective = "tokens_per_s"
    recipe: Recipe | None = None

    @property
    def request(self) -> PlanRequest:
        """The same, resolved."""
        search = {"objective": self.objective, "framework": self.framework}
        return parse_request(
            {
                "model": self.model,
                "cluster": self.cluster,
                "training": self.training,
                "search": {name: value for name, value in search.items() if value},
            }
        )


@dataclass(frozen=True)
class RecipeComparison:
    """A recipe beside the pick.

    report: None where the plan cannot run at all.  gap: how much longer the recipe takes than the
    pick, as a share; below zero where it is faster.  refusals: why a search would not keep it.
    reason: what the faster of the two saves and costs, and the setting of ours that would save
    most in theirs; empty where both are the same plan.
    """

    plan: ParallelPlan
    report: PlanReport | None
    gap: float | None
    refusals: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Row:
    """One question answered.

    pick: the recommended plan, the best where the search is not for time, None where nothing
    fits.  files: what launches it; none where `launch_refusal` says why.
    """

    question: Question
    answer: PlanAnswer
    pick: PlanReport | None
    slower_by: float
    files: tuple[str, ...]
    launch_refusal: str
    beside: RecipeComparison | None

    @property
    def filled(self) -> float | None:
        """The share of the memory that the pick fills at its peak, but for cache."""
        if self.pick is None:
            return None
        return 1.0 - self.pick.memory.free_share


def questions(table: str = "pretraining") -> tuple[Question, ...]:
    """All of one of the TABLES, in its order."""
    rows = json.loads(TABLES[table][0].read_text(encoding="utf-8"))["questions"]
    return tuple(Question.model_validate(row) for row in rows)


def advise(question: Question) -> Row:
    """The answer to a question, launched, and its recipe priced by the same model."""
    answer = plan_answers.find(question.request)
    # A trainer that was found may train otherwise where the question says nothing.
    training = TrainingSpec.model_validate(answer.request["training"])
    request = question.request.model_copy(update={"training": training})
    recommended = next((one for one in answer.picks if one.name == "recommended"), None)
    pick, slower_by = answer.best, 0.0
    if recommended is not None:
        pick, slower_by = recommended.plan, recommended.slower_by
    files, launch_refusal = _launched(request, answer, pick)
    beside = None
    if question.recipe is not None and pick is not None:
        beside = _beside(request, pick, question.recipe)
    return Row(question, answer, pick, slower_by, files, launch_refusal, beside)


def _launched(
    request: PlanRequest, answer: PlanAnswer, pick: PlanReport | None
) -> tuple[tuple[str, ...], str]:
    """The files that launch the pick, or why there are none."""
    if answer.unbuildable is not None:
        return (), answer.unbuildable.sentence
    if pick is None:
        return (), "nothing fits"
    if answer.launch is None:
        return (), "no framework here runs it"
    asked = request.for_framework(answer.launch.framework)
    try:
        bundle = emit(asked.model_copy(update={"plan": pick.plan}))
    except (RequestError, Unsupported) as error:
        return (), str(error)
    return tuple(bundle.files), ""


def _beside(request: PlanRequest, pick: PlanReport, recipe: Recipe) -> RecipeComparison:
    """A recipe priced for the same question, with the framework that it is written for."""
    framework = frameworks.get(recipe.framework)
    asked = request.for_framework(framework.name)
    # What no recipe says, since its framework has one.
    only = {name: framework.axes[name][0] for name in _KERNELS if name in framework.axes}
    plan = ParallelPlan.model_validate({**only, "runtime": framework.runtime, **recipe.plan})
    refusals = [reason.text for reason in framework.reasons(asked, plan)]
    try:
        report = plan_answers.estimate(asked, plan).estimate
    except plan_answers.IllegalPlan:
        return RecipeComparison(plan, None, None, tuple(refusals), "")
    refusals += [reason.text for reason in memory_reasons(asked, report)]
    gap = report.iteration_time_s / pick.iteration_time_s - 1.0
    first, second = sorted((pick, report), key=lambda one: one.iteration_time_s)
    reason = "" if pick.plan == plan else against(request, first, second).sentence
    if alone := _alone(asked, report, pick.plan):
        reason += f"; in their plan {alone}"
    return RecipeComparison(plan, report, gap, tuple(refusals), reason)


def _alone(request: PlanRequest, theirs: PlanReport, ours: ParallelPlan) -> str:
    """The setting of ours that saves most in their plan, all else as they have it; or nothing."""
    values, most, words = theirs.plan.model_dump(), _WORTH, ""
    for fields in _SETTINGS:
        set_so = {**values, **{name: getattr(ours, name) for name in fields}}
        try:
            changed = plan_answers.estimate(request, ParallelPlan.model_validate(set_so)).estimate
        except (ValidationError, plan_answers.IllegalPlan):
            continue  # goes with another degree of ours alone
        saves = 1.0 - changed.iteration_time_s / theirs.iteration_time_s
        if saves > most:
            most, words = saves, f"{choice(ours, fields[0])} alone would save {share(saves)}"
    return words


def answered(questions: Iterable[Question]) -> Iterator[Row]:
    """Each question's row, with a word of progress to standard error."""
    for question in questions:
        print(question.name, file=sys.stderr)
        yield advise(question)


def main() -> None:
    """Answer the questions; print the page, or write it."""
    from tools.accuracy.advice_page import page

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", nargs="?", choices=TABLES, default="pretraining")
    parser.add_argument("--write", action="store_true", help="write its page")
    parser.add_argument("--only", metavar="NAME", help="one question")
    chosen = parser.parse_args()
    every = questions(chosen.table)
    asked = [one for one in every if chosen.only in (None, one.name)]
    if not asked or (chosen.write and chosen.only):
        names = ", ".join(one.name for one in every)
        parser.error(f"--only takes one of {names}, and not beside --write")
    text = page(chosen.table, list(answered(asked)))
    if chosen.write:
        TABLES[chosen.table][1].write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
