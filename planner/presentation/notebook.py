"""What a notebook shows of an answer: its screen, and the pictures that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from rich.console import Group, RenderableType
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
from planner.presentation.drawing.best_timeline import best_timeline
from planner.presentation.drawing.page import WIDTH, fragment, paper
from planner.presentation.drawing.rank_map import ranks_svg
from planner.presentation.drawing.sizing_figure import sizing_figure
from planner.presentation.drawing.svg import svg
from planner.presentation.drawing.tornado_svg import tornado_svg
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

Parts = tuple[RenderableType, list[str]]


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


# Of each kind of answer its screen and its pictures.
PARTS: dict[type[BaseModel], Callable[[Any], Parts]] = {
    PlanAnswer: lambda a: (plan_screen(a, _request_rows(a), paper()), best_timeline(a)),
    EstimateAnswer: lambda a: (estimate_screen(a, _request_rows(a), paper()), []),
    WhyAnswer: lambda a: (why_screen(a, _request_rows(a), paper()), []),
    FitAnswer: lambda a: (fit_screen(a, parse_fit(a.request)), []),
    CardsAnswer: lambda a: (cards_screen(a, parse_cards(a.request)), []),
    SizingAnswer: lambda a: (sizing_screen(a, parse_sizing(a.request)), [sizing_figure(a)]),
    MixedAnswer: lambda a: (mixed_screen(a), []),
    TimelineAnswer: lambda a: (timeline_screen(a, paper()), [svg(a, "light")]),
    SensitivityAnswer: lambda a: (
        sensitivity_screen(a, _request_rows(a), paper()),
        [tornado_svg(a, "light")],
    ),
    ReinforcementAnswer: lambda a: (
        reinforcement_screen(a, parse_reinforcement(a.request), paper()),
        [],
    ),
    MeasuredAnswer: lambda a: (
        measured_screen(a, parse_reinforcement(a.step.request), paper()),
        [],
    ),
    RanksAnswer: lambda a: (ranks_screen(a, paper()), [ranks_svg(a, "light")]),
    ComparisonAnswer: lambda a: (comparison_screen(a, paper()), []),
    SweepAnswer: lambda a: (sweep_screen(a, WIDTH), []),
    LintAnswer: lambda a: (lint_screen(a, _parameters(a), "script", paper()), []),
    AccuracyAnswer: lambda a: (accuracy_screen(a, paper()), []),
    ReportsAnswer: lambda a: (reports_screen(a), []),
    ModelAnswer: lambda a: (model_screen(a), []),
    ValidationReport: lambda a: (validation_screen(a, paper()), []),
    DryRunReport: lambda a: (Group(*dryrun_screen(a)), []),
    SiteAnswer: lambda a: (site_screen(a), []),
    LearnAnswer: lambda a: (learn_screen(a), []),
    LearnedStepAnswer: lambda a: (learned_step_screen(a), []),
    MachineAnswer: lambda a: (Text(machine_text(a)), []),
    TuneAnswer: lambda a: (tune_screen(a, PlanRequest.model_validate(a.request)), []),
    Bundle: lambda a: (_files(a), []),
}


def install() -> None:
    """Have every answer show itself where a notebook asks an object for its HTML."""
    for kind, parts in PARTS.items():
        kind._repr_html_ = lambda answer, of=parts: fragment(*of(answer))  # type: ignore[attr-defined]
