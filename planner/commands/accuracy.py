"""`planner accuracy`: what the model predicts of published runs, and how far off it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.commands.failures import FINE
from planner.commands.shared import Json
from planner.presentation.terminal.progress_bar import counted

if TYPE_CHECKING:
    from planner.learning.accuracy.predict import Prediction

MAX_SHOTS = 100


def accuracy(
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="measured runs as CSV; else those shipped")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="KEY", help="only the rows of this source, each on a line")
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="every row, with what was assumed")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="the same as a page")] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="a calibration, for rows of the profile it extends"),
    ] = None,
    shots: Annotated[
        str | None,
        typer.Option(metavar="K,...", help="errors once K runs of a source were seen: 0,1,3,5"),
    ] = None,
    reports: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="score reports of `planner sites report` instead"),
    ] = None,
    json: Json = False,
) -> int:
    """Predicted against published: time, memory and ranking of measured runs."""
    if reports is not None:
        others = {"--data": data, "--source": source, "--rows": rows, "--html": html}
        others |= {"--profile": profile, "--shots": shots}
        if stated := [name for name, value in others.items() if value]:
            raise typer.BadParameter(f"--reports has its own runs: {stated[0]} does not go with it")
        return _score_reports(reports, json)
    from planner.documents.saving import write_picture
    from planner.evidence.published_runs.runs import PUBLISHED_RUNS
    from planner.learning.accuracy.compute import answer_of
    from planner.presentation.terminal import output

    path = PUBLISHED_RUNS if data is None else data
    shown = _counts(shots) if shots is not None else ()
    answer = answer_of(path.name, _predictions(path, source, profile), shown)
    if html is not None:
        from planner.presentation.drawing.accuracy_page import page

        write_picture(html, page(answer).encode())
    if json:
        output.print_json(answer)
        return FINE
    from planner.presentation.terminal.accuracy_screen import accuracy_screen, rows_screen

    screen = output.Screen()
    if rows or source is not None:
        for line in rows_screen(answer):
            screen.print(line, soft_wrap=True)
        screen.print()
    screen.print(accuracy_screen(answer, screen))
    if html is not None:
        screen.print(f"\nwrote {html}", soft_wrap=True, markup=False)
    elif not rows and source is None:
        screen.print("\nEvery row: --rows, --source KEY; as a page: --html FILE", markup=False)
    return FINE


def _score_reports(folder: Path, json: bool) -> int:
    from planner.learning.accuracy.reports import score_reports
    from planner.presentation.terminal import output
    from planner.presentation.terminal.reports_screen import reports_screen

    answer = score_reports(folder)
    output.show(answer, json, lambda screen: reports_screen(answer))
    return FINE


def _counts(text: str) -> tuple[int, ...]:
    """The numbers of runs to show; raises RequestError."""
    from planner.documents.problems import refuse

    items = text.split(",")
    if not all(re.fullmatch("[0-9]{1,3}", item) and int(item) <= MAX_SHOTS for item in items):
        detail = f"numbers from 0 to {MAX_SHOTS}, such as 0,1,3,5"
        raise refuse("/shots", "not_allowed", detail, text)
    return tuple(sorted({int(item) for item in items}))


def _predictions(path: Path, source: str | None, profile: str | None) -> Iterator[Prediction]:
    """A prediction of each row, with a bar on standard error where it takes long."""
    from planner.documents.typed_values import looked_up
    from planner.evidence.published_runs.runs import runs_in
    from planner.evidence.uncertainty import profiles
    from planner.learning.accuracy.predict import predict

    chosen = looked_up("/profile", lambda: profiles.find(profile)) if profile else None
    total = _count_rows(path, source)
    runs = (run for run in runs_in(path) if source in (None, run.source_key))
    return counted("predicting", (predict(run, profile=chosen) for run in runs), total)


def _count_rows(path: Path, source: str | None) -> int:
    """How many rows there are; raises RequestError where the file or the source is no good."""
    from planner.documents.problems import nearest, refuse
    from planner.evidence.published_runs.runs import count_runs, runs_in

    if source is None:
        return count_runs(path)
    known: dict[str, int] = {}
    for run in runs_in(path):
        known[run.source_key] = known.get(run.source_key, 0) + 1
    if source not in known:
        detail = f"no row of {path.name} has this source; it has {', '.join(list(known)[:20])}"
        close = nearest(source, known)
        raise refuse("/source", "unknown_source", detail, source, did_you_mean=close)
    return known[source]
