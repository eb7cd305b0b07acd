"""The screen of each kind of answer: what a notebook shows and what `print` prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from rich.console import Console, Group, RenderableType
from rich.text import Text

from cost_models.parameters import total_parameters
from planner.answers.fits.answer import FitAnswer
from planner.answers.fits.by_card import CardsAnswer, parse_cards
from planner.answers.fits.request import parse_fit
from planner.answers.lint.findings import LintAnswer
from planner.answers.mixed_clusters.answer import MixedAnswer
from planner.answers.pipelines.all_schedules import ComparisonAnswer
from planner.answers.pipelines.timeline import TimelineAnswer
from planner.answers.plans.ranks import RanksAnswer
from planner.answers.reinforcement.documents import ReinforcementAnswer
from planner.answers.reinforcement.measured import MeasuredAnswer
from planner.answers.reinforcement.parsing import parse_reinforcement
from planner.answers.sensitivities.analysis import PART
from planner.answers.sensitivities.documents import SensitivityAnswer
from planner.answers.sizing.answer import SizingAnswer
from planner.answers.sizing.request import parse_sizing
from planner.documents.answer import EstimateAnswer, PlanAnswer, WhyAnswer
from planner.documents.request import PlanRequest
from planner.evidence.uncertainty.site_corrections import SiteAnswer
from planner.frameworks.base import Bundle
from planner.inputs.machines.reader import MachineAnswer
from planner.inputs.requests.model_import import ModelAnswer
from planner.inputs.requests.models import parse_model
from planner.inputs.requests.parser import parse_request
from planner.learning.accuracy.accuracy_answer import AccuracyAnswer
from planner.learning.accuracy.reports import ReportsAnswer
from planner.learning.sites.learn_answer import LearnAnswer
from planner.learning.sites.learned_step import LearnedStepAnswer
from planner.presentation.terminal.accuracy_screen import accuracy_screen
from planner.presentation.terminal.dryrun_screen import dryrun_screen
from planner.presentation.terminal.fit_screen import cards_screen, fit_screen
from planner.presentation.terminal.lint_screen import lint_screen
from planner.presentation.terminal.machine_text import machine_text
from planner.presentation.terminal.measured_step_screen import measured_screen
from planner.presentation.terminal.mixed_screen import mixed_screen
from planner.presentation.terminal.plan_rows import asked_of
from planner.presentation.terminal.ranks_screen import ranks_screen
from planner.presentation.terminal.reinforcement_screen import reinforcement_screen
from planner.presentation.terminal.reports_screen import reports_screen
from planner.presentation.terminal.screens import estimate_screen, plan_screen, why_screen
from planner.presentation.terminal.sensitivity_screen import sensitivity_screen
from planner.presentation.terminal.site_screens import (
    learn_screen,
    learned_step_screen,
    site_screen,
)
from planner.presentation.terminal.sizing_screen import sizing_screen
from planner.presentation.terminal.sweep_screen import sweep_screen
from planner.presentation.terminal.tables import model_screen
from planner.presentation.terminal.timeline_screen import comparison_screen, timeline_screen
from planner.presentation.terminal.tune_screen import tune_screen
from planner.presentation.terminal.validation_screen import validation_screen
from planner.running.autotune.answer import TuneAnswer
from planner.running.sweeps.run import SweepAnswer
from planner.running.validate.dryrun.run import DryRunReport
from planner.running.validate.report import ValidationReport


def _request_rows(answer: Any) -> Any:
    # A sensitivity's request has a part of its own.
    document = {name: part for name, part in answer.request.items() if name != PART}
    return asked_of(parse_request(document))


def _parameters(answer: LintAnswer) -> float:
    return total_parameters(parse_model(answer.request["model"])[0])


def _files(bundle: Bundle) -> RenderableType:
    """Each file under its name."""
    return Group(
        *(Group(Text(name, "bold"), Text(text)) for name, text in bundle.files.items()),
        *(Text(f"note: {note.text}") for note in bundle.notes),
    )


# Of each kind of answer its screen, for a console.
SCREENS: dict[type[BaseModel], Callable[[Any, Console], RenderableType]] = {
    PlanAnswer: lambda a, console: plan_screen(a, _request_rows(a), console),
    EstimateAnswer: lambda a, console: estimate_screen(a, _request_rows(a), console),
    WhyAnswer: lambda a, console: why_screen(a, _request_rows(a), console),
    FitAnswer: lambda a, _: fit_screen(a, parse_fit(a.request)),
    CardsAnswer: lambda a, _: cards_screen(a, parse_cards(a.request)),
    SizingAnswer: lambda a, _: sizing_screen(a, parse_sizing(a.request)),
    MixedAnswer: lambda a, _: mixed_screen(a),
    TimelineAnswer: timeline_screen,
    SensitivityAnswer: lambda a, console: sensitivity_screen(a, _request_rows(a), console),
    ReinforcementAnswer: lambda a, console: reinforcement_screen(
        a, parse_reinforcement(a.request), console
    ),
    MeasuredAnswer: lambda a, console: measured_screen(
        a, parse_reinforcement(a.step.request), console
    ),
    RanksAnswer: ranks_screen,
    ComparisonAnswer: comparison_screen,
    SweepAnswer: lambda a, console: sweep_screen(a, console.width),
    LintAnswer: lambda a, console: lint_screen(a, _parameters(a), "script", console),
    AccuracyAnswer: accuracy_screen,
    ReportsAnswer: lambda a, _: reports_screen(a),
    ModelAnswer: lambda a, _: model_screen(a),
    ValidationReport: validation_screen,
    DryRunReport: lambda a, _: Group(*dryrun_screen(a)),
    SiteAnswer: lambda a, _: site_screen(a),
    LearnAnswer: lambda a, _: learn_screen(a),
    LearnedStepAnswer: lambda a, _: learned_step_screen(a),
    MachineAnswer: lambda a, _: Text(machine_text(a)),
    TuneAnswer: lambda a, _: tune_screen(a, PlanRequest.model_validate(a.request)),
    Bundle: lambda a, _: _files(a),
}
