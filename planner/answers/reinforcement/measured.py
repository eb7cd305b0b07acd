"""A step beside its log: predicted against measured, by phase."""

from __future__ import annotations

from planner.answers.reinforcement.documents import ReinforcementAnswer, ReinforcementRequest
from planner.documents.plan_report import Document
from planner.inputs.logs.rl_steps import MeasuredSteps


class PhaseComparison(Document):
    """Seconds of a phase; ratio: predicted over measured, None where nothing was measured."""

    phase: str
    predicted_s: float
    measured_s: float
    ratio: float | None


class MeasuredAnswer(Document):
    """A step beside its log.

    generation_tokens_per_s: what the log's engines made, each second and accelerator, which
    `--generation-tokens-per-s` takes; None where the log does not say it.
    """

    step: ReinforcementAnswer
    measured: MeasuredSteps
    phases: tuple[PhaseComparison, ...]
    generation_tokens_per_s: float | None


def beside(
    asked: ReinforcementRequest, answer: ReinforcementAnswer, measured: MeasuredSteps
) -> MeasuredAnswer:
    """The answer beside what the log says of the same phases."""
    found = dict(measured.parts_s)
    if measured.step_time_s is not None:
        found["step"] = measured.step_time_s
    phases = tuple(_compared(answer, phase, taken) for phase, taken in found.items())
    made_s, mean = found.get("generation"), measured.response_tokens
    spec, rate = asked.reinforcement, None
    if made_s and mean:
        made = spec.sequences * spec.generated_per_trained * mean
        rate = made / made_s / answer.generation_accelerators
    return MeasuredAnswer(
        step=answer, measured=measured, phases=phases, generation_tokens_per_s=rate
    )


def _compared(answer: ReinforcementAnswer, phase: str, taken: float) -> PhaseComparison:
    """One phase; a name may be of several parts together."""
    said = (
        answer.step_time_s
        if phase == "step"
        else sum(answer.parts_s[part] for part in phase.split(" + "))
    )
    ratio = said / taken if taken else None
    return PhaseComparison(phase=phase, predicted_s=said, measured_s=taken, ratio=ratio)
