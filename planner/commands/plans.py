"""The commands of questions about a plan that have options or pictures of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE, NOTHING_FITS
from planner.commands.options import request_options
from planner.commands.server import answered, repeated
from planner.commands.shared import (
    LAUNCHERS,
    LIMITS,
    PLAN,
    Json,
    Report,
    figure,
    nothing_fits,
    print_bundle,
    read_request,
)
from planner.presentation.terminal.progress_bar import bar

if TYPE_CHECKING:
    from planner.documents.request import PlanRequest


def _launchers(incomplete: str) -> list[str]:
    """What completes the name of a launcher."""
    from planner.frameworks.launchers import LAUNCHERS

    return [name for name in LAUNCHERS if name.startswith(incomplete)]


@request_options(LIMITS)
def plan(
    *,
    source: str | None,
    report: Report = None,
    png: Annotated[Path | None, figure("png", "memory, time, speed against memory")] = None,
    pdf: Annotated[Path | None, figure("pdf", "the same")] = None,
    svg: Annotated[Path | None, figure("svg", "the same")] = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Search for the fastest plan that fits."""
    from cost_models.spec import TrainingSpec
    from planner.answers.plans import plan_answers
    from planner.commands import next_steps
    from planner.documents.problems import refuse
    from planner.presentation.drawing.best_timeline import best_timeline, timeline_here
    from planner.presentation.drawing.page import paper, write_page
    from planner.presentation.drawing.plan_figure import plan_figure
    from planner.presentation.drawing.rendering import drawing
    from planner.presentation.terminal import output, screens
    from planner.presentation.terminal.plan_rows import asked_of

    request = read_request(source, option_values, limits=True, mixed_cluster=True)
    figures = {"png": png, "pdf": pdf, "svg": svg}
    if len(request.cluster.groups) > 1:
        if any(figures.values()):
            raise refuse("", "usage", "figures are of plans on equal nodes; use --report")
        return _plan_mixed(request, report, json)
    with bar("searching"):
        answer = answered(
            lambda: plan_answers.find(request), lambda service: service.plan(request.document())
        )
    if answer.best:
        output.write_figures(figures, partial(drawing, partial(plan_figure, answer)))
    # A trainer that was found may train otherwise where the request says nothing.
    training = TrainingSpec.model_validate(answer.request["training"])
    summary = asked_of(request.model_copy(update={"training": training}))
    if report is not None:
        shown = screens.plan_screen(answer, summary, paper())
        pictures = best_timeline(
            answer, lambda of: answered(lambda: timeline_here(of), lambda there: there.timeline(of))
        )
        write_page(report, f"A plan for {request.model.name}", shown, pictures)
    if json:
        output.print_json(answer)
    else:
        screen = output.Screen()
        screen.print(screens.plan_screen(answer, summary, screen))
        screen.print("\n[bold]Next[/bold]")
        for line in next_steps.after_plan(request, answer, source, option_values):
            screen.print(f"  {repeated(line)}", soft_wrap=True, markup=False)
    return NOTHING_FITS if answer.best is None else FINE


def _plan_mixed(request: PlanRequest, report: Path | None, json: bool) -> int:
    """The best use of nodes that differ."""
    from planner.answers import mixed_clusters
    from planner.presentation.drawing.page import write_page
    from planner.presentation.terminal import output
    from planner.presentation.terminal.mixed_screen import mixed_screen

    with bar("searching"):
        answer = answered(
            lambda: mixed_clusters.find(request), lambda service: service.plan(request.document())
        )
    if report is not None:
        write_page(report, f"A plan for {request.model.name}", mixed_screen(answer))
    output.show(answer, json, lambda screen: mixed_screen(answer))
    return FINE if answer.options else NOTHING_FITS


@request_options(PLAN)
def estimate(*, source: str | None, json: Json = False, option_values: Mapping[str, Any]) -> int:
    """Time and memory of one plan."""
    from planner.answers.plans import plan_answers
    from planner.presentation.terminal import output, screens
    from planner.presentation.terminal.plan_rows import asked_of
    from planner.running.validate import results

    request = read_request(source, option_values, need_plan=True)
    answer = answered(
        lambda: plan_answers.estimate(request, request.named_plan),
        lambda service: service.estimate(request.document()),
    )
    if json:
        output.print_json(answer)
    else:
        screen = output.Screen()
        screen.print(screens.estimate_screen(answer, asked_of(request), screen))
        for run in results.of_request(request)[:1]:
            screen.print(f"\n{run.sentence}  (planner validations {run.id})", soft_wrap=True)
    return FINE if answer.estimate.fits else NOTHING_FITS


@request_options(LIMITS)
def emit_files(
    *,
    source: str | None,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="write all files into this folder")
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help=LAUNCHERS, autocompletion=_launchers)
    ] = None,
    pick: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="recommended (where left out), fastest, most-headroom, published-recipe",
        ),
    ] = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Launch files of a framework, for the request's plan or else the recommended one."""
    from planner.answers.plans.emission import NothingFits, emit

    if output == "":
        raise typer.BadParameter("--output needs a folder")
    request = read_request(source, option_values, limits=True, keep_plan=True)
    try:
        with bar("searching"):
            bundle = answered(
                lambda: emit(request, launcher, pick),
                lambda service: service.bundle(request.document(), launcher=launcher, pick=pick),
            )
    except NothingFits as error:
        return nothing_fits(error.problems, json)
    folder = None if output is None else Path(output)
    return print_bundle(bundle, folder, json, as_script=not launcher)
