"""From a log of steps of reinforcement learning to what a site learns: its engines, its updates."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from planner.answers.reinforcement.documents import PART, ReinforcementRequest
from planner.answers.reinforcement.layouts import Layout, layouts
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.documents.plan_report import Document
from planner.documents.problems import Problem, RequestError, refuse
from planner.evidence.uncertainty import site_storage as storage
from planner.evidence.uncertainty.learned_steps import LearnedStep
from planner.evidence.uncertainty.site import LearnedRun
from planner.evidence.uncertainty.site_pricing import run_of_plan
from planner.frameworks.base import one_line
from planner.inputs.logs.rl_steps import MeasuredSteps, read_steps
from planner.version import __version__

UPDATE = "policy_training"


class LearnedStepAnswer(Document):
    """What a log's steps teach a site.

    step: of the engines.  update: an optimizer step, as a run of its plan; None where the request
    has no plan or the log no time of it, and why.
    """

    site: str
    kept: bool
    known: bool
    step: LearnedStep
    update: LearnedRun | None
    notes: tuple[str, ...]


def learned_step(
    lines: Iterable[str], name: str, document: dict[str, Any], site: str
) -> LearnedStepAnswer:
    """What the log says of a step that ran as the document says; nothing is kept.

    document: as of `planner rl`; its lengths are those of the log, where it has them.  Raises
    RequestError.
    """
    storage.check_name(site)
    measured = read_steps(lines, name)
    rl = _as_measured(document, measured)
    best = layouts(rl)[0]
    taken = measured.parts_s.get("generation")
    if not taken or best.name != "synchronous":
        fault = "times no generation" if not taken else f"is of a step {best.name}"
        detail = f"{name} {fault}: a rate is learned where steps wait for their responses"
        raise refuse("/log", "no_rate", detail)
    digest = _digest(measured)
    stored = storage.find_or_new(site)
    step = LearnedStep(
        id=digest, file=one_line(name)[:200], trainer=measured.trainer,
        learned_at=datetime.now(UTC), request=rl.document(), steps=measured.steps,
        generation_s=taken, estimated_s=best.engines.seconds, version=__version__,
    )  # fmt: skip
    update, notes = _update(rl, best, measured, step, stored)
    return LearnedStepAnswer(
        site=site, kept=False, known=digest in {s.id for s in stored.steps}, step=step,
        update=update, notes=tuple(notes),
    )  # fmt: skip


def keep(answer: LearnedStepAnswer) -> LearnedStepAnswer:
    """Keep with the site what it does not have yet.  Raises RequestError."""
    storage.learn_steps(answer.site, (answer.step,))
    if answer.update is not None:
        storage.learn(answer.site, (answer.update,))
    return answer.model_copy(update={"kept": True})


def _as_measured(document: dict[str, Any], measured: MeasuredSteps) -> ReinforcementRequest:
    """The step with the log's lengths, anywhere: at no site, without a stated rate."""
    part = document.get(PART)
    if not isinstance(part, dict):
        return parse_reinforcement(document)  # says what is wrong with it
    values = {name: value for name, value in part.items() if name != "generation_tokens_per_s"}
    for name in ("response_tokens", "prompt_tokens"):
        if (mean := getattr(measured, name)) is not None:
            values[name] = max(1, round(mean))
    longest = values.get("max_response_tokens")
    if isinstance(longest, int) and (values.get("response_tokens") or 0) > longest:
        detail = f"is less than the mean response of the log, {values['response_tokens']:,} tokens"
        pointer = f"/{PART}/max_response_tokens"
        raise RequestError([
            Problem(pointer=pointer, code="contradicts_log", detail=detail, got=longest)
        ])  # fmt: skip
    rest = {name: value for name, value in document.items() if name != "site"}
    return parse_reinforcement({**rest, PART: values})


def _update(
    rl: ReinforcementRequest, best: Layout, measured: MeasuredSteps, step: LearnedStep, site: Any
) -> tuple[LearnedRun | None, list[str]]:
    """The measured update as one iteration of its plan, with every sequence full."""
    taken, trained = measured.parts_s.get(UPDATE), best.trained
    if not taken:
        return None, ["the update is not learned: the log has no time of it"]
    if rl.request.plan is None:
        return None, ["the update is not learned: the step has no plan (`plan: {tp: ...}`)"]
    request = trained.request.model_copy(update={"plan": trained.plan})
    run: dict[str, Any] = {
        "id": step.id, "file": step.file, "code_base": measured.trainer,
        "learned_at": step.learned_at, "steps": measured.steps,
        "step_s": taken / (trained.filled * trained.optimizer_steps),
        "assumed": ("an iteration is the update of a step over its optimizer steps",),
    }  # fmt: skip
    return run_of_plan(request, site, run), []


def _digest(measured: MeasuredSteps) -> str:
    """A digest of what the log says."""
    text = json.dumps(measured.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
