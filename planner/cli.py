"""The command line: `planner plan`, `estimate`, `why`, `emit`, `timeline`, `catalog` and others.

Everything heavy is imported inside a command, so that `planner --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Annotated

import typer

from planner.commands import admin_commands
from planner.commands import catalog as catalog_commands
from planner.commands import cluster as cluster_commands
from planner.commands import lint as lint_commands
from planner.commands import sites as site_commands
from planner.commands import sweep as sweep_commands
from planner.commands.accuracy import accuracy
from planner.commands.calibrate import calibrate
from planner.commands.dryrun import dryrun
from planner.commands.failures import FINE, guarded
from planner.commands.question import command_of
from planner.commands.server import choose, set_apart
from planner.commands.shared import Json
from planner.commands.tune import tune
from planner.commands.typed_words import repeated, written_out
from planner.commands.validate import validate
from planner.commands.validations import validations
from planner.questions.registry import QUESTIONS

# What a service answers: questions, what it keeps, and jobs.  All others are about this machine.
_ANSWERED_THERE = {one.command for one in QUESTIONS.values()} | {
    "catalog", "cluster", "sites", "validate", "sweep",
}  # fmt: skip
_SERVER = (
    "address of a service to ask (or PLANNER_SERVER; key: PLANNER_API_KEY, PLANNER_API_KEY_FILE)"
)


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
    command = context.invoked_subcommand or ""
    choose(server, command, remote=command in _ANSWERED_THERE)
    return FINE


for _question in QUESTIONS.values():
    if _question.command:
        app.command(_question.command)(command_of(_question))


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
    """Offer plan, estimate, why, lint, size and fit as tools to an agent, over standard input."""
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


app.command("catalog")(catalog_commands.catalog)
app.command("accuracy")(accuracy)
app.command("backup")(admin_commands.backup)
app.command("restore")(admin_commands.restore)
app.add_typer(cluster_commands.app, name="cluster")
app.add_typer(site_commands.app, name="sites")
app.command("tune")(tune)
app.command("validate")(validate)
app.command("validations")(validations)
app.command("calibrate")(calibrate)
app.add_typer(sweep_commands.app, name="sweep")
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
    if not {"--help", "-h", "--help-all"}.isdisjoint(arguments):
        from planner.commands.help_text import fold_names

        fold_names()
    root, arguments = set_apart(arguments)
    first = next((one for one in arguments if not one.startswith("-")), "")
    if first in ("read", "lint"):
        arguments = lint_commands.script_arguments(arguments)
    command = _built(_application(first))
    arguments = written_out(command, arguments)
    if "--json" not in arguments:
        for sentence in repeated(command, arguments):
            print(f"note: {sentence}", file=sys.stderr)
    code = guarded(
        lambda: command.main([*root, *arguments], prog_name="planner", standalone_mode=False),
        [*arguments, *root],
    )
    if (plugins := sys.modules.get("cost_models.plugins")) is not None:
        for problem in plugins.problems():
            print(f"Left out, of plugin {problem}", file=sys.stderr)
    return code


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


if __name__ == "__main__":
    main()
