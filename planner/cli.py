"""The command line: `planner plan`, `estimate`, `why`, `emit`, `timeline`, `catalog` and others.

Everything heavy is imported inside a command, so that `planner --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from planner.commands import admin_commands
from planner.commands import catalog as catalog_commands
from planner.commands import lint as lint_commands
from planner.commands import sites as site_commands
from planner.commands import size as sizing_command
from planner.commands import sweep as sweep_commands
from planner.commands import timeline as timeline_commands
from planner.commands.accuracy import accuracy
from planner.commands.calibrate import calibrate
from planner.commands.compare import compare
from planner.commands.dryrun import dryrun
from planner.commands.failures import FINE, NOTHING_FITS, guarded
from planner.commands.options import request_options
from planner.commands.ranks import ranks
from planner.commands.rl import rl
from planner.commands.sensitivity import sensitivity
from planner.commands.server import answered, choose, repeated, set_apart
from planner.commands.shared import (
    LIMITS,
    PLAN,
    Json,
    Report,
    RequestFile,
    RequestOption,
    figure,
    nothing_fits,
    read_request,
    source_of,
)
from planner.commands.tune import tune
from planner.commands.validate import validate
from planner.commands.validations import validations
from planner.terminal.progress_bar import bar

if TYPE_CHECKING:
    from planner.documents.answer import PlanAnswer
    from planner.documents.request import PlanRequest
    from planner.mixed_clusters.answer import MixedAnswer

_LAUNCHERS = "launcher: torchrun, deepspeed, slurm, kubernetes, jobset, trainjob, skypilot"


_SERVER = (
    "address of a service to ask (or PLANNER_SERVER; key: PLANNER_API_KEY, PLANNER_API_KEY_FILE)"
)


def _launchers(incomplete: str) -> list[str]:
    """What completes the name of a launcher."""
    from planner.frameworks.launchers import LAUNCHERS

    return [name for name in LAUNCHERS if name.startswith(incomplete)]


app = typer.Typer(
    name="planner",
    no_args_is_help=True,
    help="The fastest way to train a model on a cluster that fits, and why.",
    epilog="Exit codes: 0 success, 1 internal error, 2 bad input, 3 a run deviates from its "
    "prediction, 4 nothing fits or a script cannot run.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
    server: Annotated[str | None, typer.Option(metavar="URL", help=_SERVER)] = None,
) -> int:
    if version:
        from planner.version import __version__

        print(__version__)
        raise typer.Exit(FINE)
    if context.invoked_subcommand is None and server is not None:
        raise typer.BadParameter("--server goes before a command")
    choose(server, context.invoked_subcommand or "")
    return FINE


@app.command()
@request_options(LIMITS)
def plan(
    *,
    request_file: RequestFile = None,
    request: RequestOption = None,
    report: Report = None,
    png: Annotated[Path | None, figure("png", "memory, time, speed against memory")] = None,
    pdf: Annotated[Path | None, figure("pdf", "the same")] = None,
    svg: Annotated[Path | None, figure("svg", "the same")] = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Search for the fastest plan that fits."""
    from planner.answers import plan_answers
    from planner.commands import next_steps
    from planner.documents.problems import refuse
    from planner.drawing.best_timeline import best_timeline, timeline_here
    from planner.drawing.page import paper, write_page
    from planner.drawing.plan_figure import plan_figure
    from planner.drawing.rendering import drawing
    from planner.terminal import output, screens
    from planner.terminal.plan_rows import asked_of

    source = source_of(request_file, request)
    asked = read_request(source, option_values, limits=True, mixed_cluster=True)
    figures = {"png": png, "pdf": pdf, "svg": svg}
    if len(asked.cluster.groups) > 1:
        if any(figures.values()):
            raise refuse("", "usage", "figures are of plans on equal nodes; use --report")
        return _plan_mixed(asked, report, json)
    with bar("searching"):
        answer = answered(
            lambda: plan_answers.find(asked),
            lambda service: cast("PlanAnswer", service.plan(asked.document())),
        )
    if answer.best:
        output.write_figures(figures, partial(drawing, partial(plan_figure, answer)))
    if report is not None:
        shown = screens.plan_screen(answer, asked_of(asked), paper())
        pictures = best_timeline(
            answer, lambda of: answered(lambda: timeline_here(of), lambda there: there.timeline(of))
        )
        write_page(report, f"A plan for {asked.model.name}", shown, pictures)
    if json:
        output.print_json(answer)
    else:
        screen = output.Screen()
        screen.print(screens.plan_screen(answer, asked_of(asked), screen))
        screen.print("\n[bold]Next[/bold]")
        for line in next_steps.after_plan(asked, answer, source, option_values):
            screen.print(f"  {repeated(line)}", soft_wrap=True, markup=False)
    return NOTHING_FITS if answer.best is None else FINE


@app.command()
@request_options(PLAN)
def estimate(
    *,
    request_file: RequestFile = None,
    request: RequestOption = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Time and memory of one plan."""
    from planner.answers import plan_answers
    from planner.terminal import output, screens
    from planner.terminal.plan_rows import asked_of
    from planner.validate import results

    asked = read_request(source_of(request_file, request), option_values, need_plan=True)
    answer = answered(
        lambda: plan_answers.estimate(asked, asked.named_plan),
        lambda service: service.estimate(asked.document()),
    )
    if json:
        output.print_json(answer)
    else:
        screen = output.Screen()
        screen.print(screens.estimate_screen(answer, asked_of(asked), screen))
        for kept in results.about(asked)[:1]:
            screen.print(f"\n{kept.sentence}  (planner validations {kept.id})", soft_wrap=True)
    return FINE if answer.estimate.fits else NOTHING_FITS


@app.command()
@request_options(PLAN)
def why(
    *,
    request_file: RequestFile = None,
    request: RequestOption = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Why a plan cannot run, does not fit or is not the best, and what would."""
    from planner.answers import plan_answers
    from planner.terminal import output, screens
    from planner.terminal.plan_rows import asked_of

    asked = read_request(source_of(request_file, request), option_values, need_plan=True)
    with bar("searching"):
        answer = answered(
            lambda: plan_answers.why(asked, asked.named_plan),
            lambda service: service.explanation(asked.document()),
        )
    output.show(answer, json, partial(screens.why_screen, answer, asked_of(asked)))
    return FINE


@app.command("emit")
@request_options(LIMITS)
def emit_files(
    *,
    request_file: RequestFile = None,
    request: RequestOption = None,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="write all files into this folder")
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=_LAUNCHERS, autocompletion=_launchers),
    ] = None,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Launch files of a framework, for the request's plan or else the best one."""
    from planner.answers.emission import NothingFits, emit
    from planner.documents.saving import write_files
    from planner.frameworks.bash_writer import one_script
    from planner.terminal.output import print_json

    if output == "":
        raise typer.BadParameter("--output needs a folder")
    asked = read_request(
        source_of(request_file, request), option_values, limits=True, keep_plan=True
    )
    try:
        with bar("searching"):
            bundle = answered(
                lambda: emit(asked, launcher),
                lambda service: service.bundle(asked.document(), launcher=launcher),
            )
    except NothingFits as error:
        return nothing_fits(error.problems, json)
    written = [] if output is None else write_files(bundle.files, Path(output))
    if json:
        print_json(bundle)
        return FINE
    if output is None:
        print(bundle.files[bundle.main] if launcher else one_script(bundle), end="")
    for path in written:
        print(path)
    for note in bundle.notes:
        print(f"note: {note.text}", file=sys.stderr)
    return FINE


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535)] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=64, help="processes for HTTP")] = None,
) -> int:
    """Start the HTTP service, on loopback unless told otherwise."""
    from api.serve import run

    return run(host, port, workers)


@app.command()
def mcp() -> int:
    """Offer plan, estimate, why, lint and size as tools to a coding agent, over standard input."""
    from planner import mcp_server

    return mcp_server.serve()


@app.command()
def doctor(
    host: Annotated[str | None, typer.Option(help="address of the service")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535)] = None,
    json: Json = False,
) -> int:
    """Look at this machine: what the planner lacks here, and what to do."""
    from api.settings import Settings, SettingsError
    from planner.commands.doctor import doctor as examined
    from planner.documents.problems import refuse

    try:
        settings = Settings.from_environment().listening(host, port)
    except SettingsError as error:
        raise refuse("", "settings", str(error)) from None
    return examined(settings.host, settings.port, settings.database_url, json)


app.command("model")(catalog_commands.model)
app.command("catalog")(catalog_commands.catalog)
app.command("accuracy")(accuracy)
app.command("backup")(admin_commands.backup)
app.command("restore")(admin_commands.restore)
app.command("compare")(compare)
app.command("size")(sizing_command.size)
app.command("lint")(lint_commands.lint)
app.command("read")(lint_commands.read)
app.command("rl")(rl)
app.command("learn")(site_commands.learn)
app.add_typer(site_commands.app, name="sites")
app.command("tune")(tune)
app.command("sensitivity")(sensitivity)
app.command("validate")(validate)
app.command("validations")(validations)
app.command("calibrate")(calibrate)
app.add_typer(sweep_commands.app, name="sweep")
app.command("ranks")(ranks)
app.command("timeline")(timeline_commands.timeline)
app.command("compare-schedules")(timeline_commands.compare_schedules)
app.command("dryrun")(dryrun)


def main() -> None:
    """Entry point of the `planner` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code, whatever happens."""
    # A terminal that cannot show a sign gets a question mark, not an error.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if not {"--help", "-h"}.isdisjoint(arguments):
        from planner.commands.help_text import fold_names

        fold_names()
    root, arguments = set_apart(arguments)
    first = next((one for one in arguments if not one.startswith("-")), "")
    if first in ("read", "lint"):
        arguments = lint_commands.script_arguments(arguments)
    command = _built(_application(first))
    return guarded(
        lambda: command.main([*root, *arguments], prog_name="planner", standalone_mode=False),
        [*arguments, *root],
    )


_built = cache(typer.main.get_command)


@cache
def _application(name: str) -> typer.Typer:
    """The application with only this command, or with all where none has that name.

    Building all of them takes longer than a small answer.
    """
    chosen = [
        command
        for command in app.registered_commands
        if command.callback and (command.name or command.callback.__name__) == name
    ]
    if not chosen:
        return app
    alone = copy(app)
    alone.registered_commands, alone.registered_groups = chosen, []
    return alone


def _plan_mixed(request: PlanRequest, report: Path | None, json: bool) -> int:
    """The best use of nodes that differ."""
    from planner import mixed_clusters
    from planner.drawing.page import write_page
    from planner.terminal import output
    from planner.terminal.mixed_screen import mixed_screen

    with bar("searching"):
        answer = answered(
            lambda: mixed_clusters.find(request),
            lambda service: cast("MixedAnswer", service.plan(request.document())),
        )
    if report is not None:
        write_page(report, f"A plan for {request.model.name}", mixed_screen(answer))
    output.show(answer, json, lambda screen: mixed_screen(answer))
    return FINE if answer.options else NOTHING_FITS


if __name__ == "__main__":
    main()
