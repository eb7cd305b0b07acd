"""`planner sweep` and `planner sweep merge`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from planner.commands.failures import FINE, OUR_FAULT
from planner.commands.server import as_a_job, only_here, service
from planner.commands.shared import Json, load, read_model
from planner.presentation.terminal.progress_bar import counted

if TYPE_CHECKING:
    from planner.commands.server import Client
    from planner.running.sweeps.grid import Grid
    from planner.running.sweeps.question import Result
    from planner.running.sweeps.run import SweepAnswer

_TABLES = "Tables"
_BACKENDS = "local, ray ($RAY_ADDRESS) or dask ($DASK_SCHEDULER_ADDRESS); else on this machine"
_GridFile = Annotated[str, typer.Argument(metavar="GRID|-", help="base and axes, YAML or JSON")]
_Csv = Annotated[
    Path | None, typer.Option(metavar="FILE", help="all rows", rich_help_panel=_TABLES)
]
_Parquet = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="the same (extra `parquet`)", rich_help_panel=_TABLES),
]


class _RunUnlessNamed(TyperGroup):
    """Runs a sweep if the first argument is a grid instead of the name of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and args[0] in self.commands
        return super().parse_args(ctx, args if named else ["run", *args])


app = typer.Typer(
    cls=_RunUnlessNamed, help="Ask every request of a grid, on all cores or on a cluster."
)


@app.command("run")
def sweep(
    grid: _GridFile,
    *,
    results: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="where results are kept; default: GRID.results"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="INT", help="at a time; default: one per core")
    ] = None,
    backend: Annotated[str, typer.Option(metavar="NAME", help=_BACKENDS)] = "local",
    shard: Annotated[
        str, typer.Option(metavar="K/N", help="ask only the K-th of N parts; then `sweep merge`")
    ] = "1/1",
    csv: _Csv = None,
    parquet: _Parquet = None,
    json: Json = False,
) -> int:
    """Ask every request of a grid, on all cores; run again, it goes on where it ended.

    `planner sweep merge GRID DIR...` makes one table of the results of shards.
    """
    from planner.running.sweeps.run import sweep as run
    from planner.running.sweeps.workers import WorkersLost

    if (client := service()) is not None:
        if (results, workers, backend, shard) != (None, None, "local", "1/1"):
            only_here("--results, --workers, --backend or --shard")
        answer = _sweep_on_service(client, grid)
        code = _show(answer, csv, parquet, json)
        return OUR_FAULT if answer.outcomes.get("not_asked") else code
    parsed = _grid(grid)
    folder = _results(grid) if results is None else results
    try:
        answer = run(parsed, folder, backend=backend, workers=workers, shard=shard, watch=_watch)
    except (KeyboardInterrupt, WorkersLost) as error:
        reason = str(error) or "stopped"
        print(f"Not finished: {reason}. What is answered is kept in {folder}", file=sys.stderr)
        return OUR_FAULT
    return _show(answer, csv, parquet, json)


@app.command()
def merge(
    grid: _GridFile,
    results: Annotated[list[Path], typer.Argument(metavar="DIR...", help="folders of results")],
    *,
    csv: _Csv = None,
    parquet: _Parquet = None,
    json: Json = False,
) -> int:
    """One table of a grid from the results of its shards; asks nothing."""
    from planner.documents.problems import refuse, shown
    from planner.running.sweeps.run import merge as merged

    for folder in results:
        if not folder.is_dir():
            raise refuse("", "no_file", f"no folder {shown(str(folder))!r}")
    return _show(merged(_grid(grid), results), csv, parquet, json)


def _sweep_on_service(client: Client, source: str) -> SweepAnswer:
    """The answer of a sweep that a service runs as a job."""
    from planner.running.sweeps.run import SweepAnswer

    document = load(source)
    base, folder = document.get("base"), Path() if source == "-" else Path(source).parent
    if isinstance(base, dict) and isinstance(named := base.get("model"), str):
        document["base"] = {**base, "model": read_model(named, folder)}
    return as_a_job(client, "sweeps", document, "sweep", SweepAnswer)


def _grid(source: str) -> Grid:
    from planner.running.sweeps.grid import parse_grid

    folder = Path() if source == "-" else Path(source).parent
    return parse_grid(load(source), lambda name: read_model(name, folder))


def _results(source: str) -> Path:
    return Path("sweep.results") if source == "-" else Path(source).with_suffix(".results")


def _watch(
    results: Iterator[tuple[str, Result]], done: int, total: int
) -> Iterator[tuple[str, Result]]:
    return counted("sweeping", results, total, done, patience_s=0.0)


def _show(answer: SweepAnswer, csv: Path | None, parquet: Path | None, json: bool) -> int:
    """Write and print the answer; the exit code is nonzero if a question hit an internal error."""
    from planner.documents.saving import write_picture
    from planner.presentation.terminal import output

    code = OUR_FAULT if answer.outcomes.get("failed") else FINE

    # All files are made before any is written, so that a refusal leaves no partial output.
    files = {
        path: make()
        for path, make in ((csv, answer.csv), (parquet, answer.parquet))
        if path is not None
    }
    for path, data in files.items():
        write_picture(path, data)
    if json:
        output.print_json(answer)
        return code
    from planner.presentation.terminal.sweep_screen import sweep_screen

    screen = output.Screen()
    screen.print(sweep_screen(answer, screen.width))
    for path in files:
        screen.print(f"wrote {path}", soft_wrap=True, markup=False)
    if not files:
        screen.print("All columns of all rows: --csv FILE, --parquet FILE", markup=False)
    return code
