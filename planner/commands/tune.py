"""`planner tune`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE
from planner.commands.options import request_options
from planner.commands.shared import LAUNCHERS, LIMITS, Json, read_document

if TYPE_CHECKING:
    from planner.documents.request import PlanRequest
    from planner.evidence.uncertainty.site import Site
    from planner.running.autotune.answer import TuneAnswer
    from planner.running.autotune.next_run import Budget, Question

_PANEL = "Tuning"
_EMIT = "write the launch files of the next run into a folder of its own in here"
_HERE_HELP = "run them on this machine (--cluster local), one after the other, until it ends"
_SKIP = "a plan that cannot run here, by its id or the start of it; as often as is needed"


@request_options(LIMITS)
def tune(
    *,
    source: str | None,
    runs: Annotated[
        int | None,
        typer.Option(help="runs to make in all", min=1, max=1000, rich_help_panel=_PANEL),
    ] = None,
    gpu_hours: Annotated[
        float | None, typer.Option(help="to spend on runs in all", min=0.0, rich_help_panel=_PANEL)
    ] = None,
    emit: Annotated[
        Path | None, typer.Option(metavar="DIR", help=_EMIT, rich_help_panel=_PANEL)
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(metavar="NAME", help=LAUNCHERS, rich_help_panel=_PANEL)
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(metavar="ID", help=_SKIP, rich_help_panel=_PANEL)
    ] = None,
    here: Annotated[bool, typer.Option("--here", help=_HERE_HELP, rich_help_panel=_PANEL)] = False,
    json: Json = False,
    option_values: Mapping[str, Any],
) -> int:
    """Which of the best plans to run next; asked again, with what a site has learned since.

    Ends where a plan more than 1 % faster than the best measured one is unlikely (5 %).
    """
    from planner.presentation.terminal import output
    from planner.presentation.terminal.progress_bar import bar
    from planner.presentation.terminal.tune_screen import tune_screen
    from planner.running.autotune.next_run import Budget, bound, question, tune

    if launcher is not None and emit is None:
        raise typer.BadParameter("--launcher needs --emit")
    if here and (emit is not None or skip):
        raise typer.BadParameter("--here goes with neither --emit nor --skip")
    request, site = _request_and_site(read_document(source, option_values, limits=True))
    if here:
        return _tune_locally(request, site, Budget(runs, gpu_hours), json)
    request = bound(request)
    with bar("searching"):
        known = question(request, site, skip or ())
    if not known.plans:
        return _print_nothing_fits(json)
    answer = tune(known, Budget(runs, gpu_hours))
    script = ""
    if answer.next is not None and emit is not None:
        answer, script = _write_run(known, answer, emit, launcher)
    if json:
        output.print_json(answer)
        return FINE
    screen = output.Screen()
    screen.print(tune_screen(answer, request))
    for line in _after_run(answer, script, str(option_values.get("cluster", request.cluster.name))):
        screen.print(f"  {line}", soft_wrap=True, markup=False)
    return FINE


def _request_and_site(document: dict[str, Any]) -> tuple[PlanRequest, Site]:
    """The request, and its site: a new one where nothing is kept yet.  Raises RequestError."""
    from planner.documents.problems import RequestError, refuse, wrong_type
    from planner.documents.typed_values import looked_up
    from planner.evidence.uncertainty import site_storage as storage
    from planner.inputs.requests.parser import parse_request

    name = document.pop("site", None)
    if name is None:
        raise refuse("/site", "missing", "is required: --site NAME, where its runs are kept")
    if not isinstance(name, str):
        raise RequestError([wrong_type("/site", "a string", name)])
    site = looked_up("/site", partial(storage.find_or_new, name))
    if site.name in storage.names():
        document["site"] = site.name
    return parse_request(document), site


def _tune_locally(request: PlanRequest, site: Site, budget: Budget, json: bool) -> int:
    """Run plans on this machine until the tuning ends."""
    from planner.commands.validate import running
    from planner.presentation.terminal import output
    from planner.presentation.terminal.tune_screen import tune_screen
    from planner.running.jobs.tuning import bound_here, tuned_here

    request = bound_here(request)
    with running(json) as progress:
        answer = tuned_here(request, site.name, budget, progress)
    output.show(answer, json, lambda screen: tune_screen(answer, request))
    return FINE


def _print_nothing_fits(json: bool) -> int:
    from planner.commands.shared import nothing_fits
    from planner.documents.problems import problem

    reason = problem("", "nothing_fits", "nothing fits; `planner plan` says why")
    return nothing_fits((reason,), json)


def _write_run(
    question: Question, answer: TuneAnswer, folder: Path, launcher: str | None
) -> tuple[TuneAnswer, str]:
    """The answer with its files written, and where the framework's own script is."""
    from planner.running.autotune.script import bundle_of, write_once

    run = answer.next
    assert run is not None
    plan = next(c.plan for c in answer.candidates if c.id == run.id)
    bundle, script = bundle_of(question.request, plan, run, launcher)
    files = write_once(bundle, folder / run.id)
    emitted = run.model_copy(update={"files": files, "notes": bundle.notes})
    return answer.model_copy(update={"next": emitted}), str(folder / run.id / script)


def _after_run(answer: TuneAnswer, script: str, cluster: str) -> Iterator[str]:
    """What to do with the next run."""
    import shlex

    if answer.next is None:
        return
    if not answer.next.files:
        yield "--emit DIR writes its launch files"
        return
    yield f"wrote {answer.next.files[0]}"
    options = ["LOG", "--script", script, "--cluster", cluster, "--site", answer.site, "--yes"]
    yield f"then: planner learn {shlex.join(options)}"
    yield "and the same `planner tune` again"
