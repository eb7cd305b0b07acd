"""The trainer of a way to tune: of those that fit, the one that reaches the longest sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cost_models.plans import FIELDS, ParallelPlan
from cost_models.spec import ModelSpec
from planner import frameworks
from planner.answers.fits.attempt import Found, Tried, best_at, loss_of, tried
from planner.answers.fits.request import FitRequest, Tuning
from planner.constraints import Context
from planner.documents.formats import reason_words
from planner.documents.problems import RequestError
from planner.documents.scored_runs import has_runs
from planner.frameworks import FRAMEWORKS
from planner.frameworks.plan_defaults import runnable, usual
from planner.search.outcome import Outcome

MEMORY_TIE_RATIO = 1.01  # memory needs within 1 % count as equal


@dataclass(frozen=True)
class ChosenTrainer:
    """The trainer of a method, or why there is none."""

    trainer: str = ""
    reason: str = ""


def chosen_trainer(asked: FitRequest, method: Tuning, seq_length: int) -> ChosenTrainer:
    """The trainer that `fit` takes for a method at one length."""
    found = chosen(asked, method, seq_length, seq_length)
    if isinstance(found, str):
        return ChosenTrainer(reason=found)
    return ChosenTrainer(found.one.trainer)


@dataclass(frozen=True)
class Chosen:
    """The trainer of a row: what it finds at the first length, and its frugal plan.

    least: the plan that needs the least memory, `needed_bytes`, at a great length, as `frugal`
    trains.  others: the trainers beside it, those that miss by less first.  unmeasured: the title
    of one that fits where this one misses, of which no run is published.
    """

    one: Tried
    first: Found
    frugal: Tried
    least: ParallelPlan
    needed_bytes: float
    others: tuple[Tried, ...] = ()
    unmeasured: str | None = None


def chosen(asked: FitRequest, method: Tuning, seq_length: int, far: int) -> Chosen | str:
    """The trainer that needs least memory at a great length, on a tie the fastest; or why none.

    Of those that fit at the first length.  The least memory far from there decides which reaches
    the longest sequences.  Where none fits at the first length, the one that misses by least.
    """
    able = _able(asked, method, seq_length, far)
    if isinstance(able, str):
        return able
    able.sort(key=lambda each: each.first.missing_bytes)
    # Of trainers that only their code tells of, without a published run, none is taken unasked.
    best = _best([each for each in able if has_runs(each.least.runtime)] or able)
    others = tuple(each.one for each in able if each is not best)
    if best.first.outcome.best or not able[0].first.outcome.best:
        return replace(best, others=others)
    return replace(best, others=others, unmeasured=frameworks.get(able[0].one.trainer).title)


def _able(asked: FitRequest, method: Tuning, seq_length: int, far: int) -> list[Chosen] | str:
    """Every trainer that has a plan, fitting or not; or why none has."""
    able, why = list[Chosen](), dict[str, str]()
    for name in _trainers(method):
        try:
            one = tried(asked, method, name, seq_length)
        except RequestError as error:  # the training does not go with the method
            return error.problems[0].detail
        first = best_at(one, seq_length)
        if found := _least_memory_plan(one, first, far):
            able.append(found)
        else:
            why[name] = why_refused(one, seq_length, first.outcome)
    return able or _common_reason(why, asked.base.model)


def _common_reason(why: dict[str, str], model: ModelSpec) -> str:
    """What most trainers lack, of those that have the model if any has: that tells the most."""
    has = [text for name, text in why.items() if not frameworks.get(name).unsaid(model)]
    ((text, _),) = Counter(has or why.values()).most_common(1)
    return text


def _trainers(method: Tuning) -> Iterator[str]:
    """Those that have the method at all."""
    in_backward = method == "full-in-backward"
    for name, one in ((name, frameworks.get(name)) for name in FRAMEWORKS):
        able = one.adapters and (one.steps_in_backward or not in_backward)
        if able and loss_of(method) in one.losses:
            yield name


def _best(able: list[Chosen]) -> Chosen:
    """The one to take of trainers, those that miss by less first."""
    fitting = [each for each in able if each.first.outcome.best]
    if not fitting:
        return able[0]
    most_bytes = MEMORY_TIE_RATIO * min(each.needed_bytes for each in fitting)
    alike = [each for each in fitting if each.needed_bytes <= most_bytes]
    return min(alike, key=lambda each: each.first.outcome.score)


def _least_memory_plan(one: Tried, first: Found, far: int) -> Chosen | None:
    """A trainer with its plan of least memory at a great length; None where none is legal."""
    plans = [(each, plan) for each in one.each if (plan := each.least(far)) is not None]
    found = [Chosen(one, first, each, plan, each.needed_bytes(far, plan)) for each, plan in plans]
    return min(found, key=lambda each: each.needed_bytes, default=None)


def why_refused(one: Tried, seq_length: int, outcome: Outcome) -> str:
    """Why a trainer has no plan: the rule that most plans break, of a plain one in a sentence.

    The plain one is as the trainer has it by itself, as far as it runs.
    """
    cards = one.request.cluster.accelerators
    if one.method == "full-offload" and cards == 1:
        return "the trainers here offload with FSDP (ZeRO 3), which needs two cards or more"
    rejected = outcome.counts.rejected if outcome.counts else {}
    most = max(rejected, key=lambda code: rejected[code], default="")
    trainer, request = frameworks.get(one.trainer), one.at(seq_length)
    given: dict[str, Any] = {
        "dp": cards, "zero_stage": 0, "micro_batch_size": one.together,
        "offload_optimizer": one.method == "full-offload",
    }  # fmt: skip
    if one.method == "dpo":
        given["cross_entropy"] = "unfused"
    plain = ParallelPlan.model_validate(given | usual(trainer, given, request.model))
    context = Context(request.model, request.cluster, request.training)
    left_out = {name for name in FIELDS if name not in given}
    reasons = trainer.reasons(request, runnable(trainer, context, plain, left_out))
    said = sorted(reasons, key=lambda reason: reason.code != most)
    return said[0].text if said else f"no plan: {reason_words(most)}"
