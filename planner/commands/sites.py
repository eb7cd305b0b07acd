"""`planner learn` and `planner sites`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE
from planner.commands.server import answered, chosen, only_here
from planner.commands.shared import Json

if TYPE_CHECKING:
    from planner.commands.server import Client
    from planner.evidence.uncertainty.site import Site
    from planner.evidence.uncertainty.site_corrections import SiteAnswer
    from planner.learning.sites.learn_answer import LearnAnswer
    from planner.learning.sites.learned_run import LearningRequest

Logs = Annotated[
    list[str],
    typer.Argument(metavar="LOG|-", help="training logs, or a CSV as of `planner accuracy`"),
]
SiteName = Annotated[str, typer.Argument(metavar="NAME")]
_SCRIPT = "the launch script, and the files that it names; fills what the log leaves open"
_WHO = "the name of a key, user:NAME or * for everyone = read, teach or own"
_STEP = "the step of a log of RL (verl, NeMo-RL, slime), as for `planner rl`: teaches its engines"
_SET = "what log and script leave open, such as plan.recompute=full"

app = typer.Typer(
    invoke_without_command=True, help="Sites: what was measured of a cluster, calibration and runs."
)


def learn(
    logs: Logs,
    site: Annotated[str, typer.Option(metavar="NAME", help="name that the runs are kept under")],
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="where it ran, or a part of that")
    ] = None,
    step: Annotated[str | None, typer.Option(metavar="FILE", help=_STEP)] = None,
    script: Annotated[list[str] | None, typer.Option(metavar="FILE", help=_SCRIPT)] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="where the log does not print it")
    ] = None,
    set: Annotated[list[str] | None, typer.Option(metavar="FIELD=VALUE", help=_SET)] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="keep what was read")] = False,
    json: Json = False,
) -> int:
    """Read training logs, show what they say, and keep it with a site."""
    from planner.documents.problems import refuse

    if step is not None:
        return _learn_step(logs, step, site, yes, json)
    if cluster is None:
        raise refuse("/cluster", "missing", "give --cluster, or --step for a log of RL")
    from planner.commands.shared import read_model
    from planner.frameworks.sources import files_at
    from planner.inputs.requests.parser import parse_cluster
    from planner.learning.sites.learn_answer import keep
    from planner.learning.sites.learned_run import LearningRequest, setting
    from planner.presentation.terminal import output
    from planner.presentation.terminal.site_screens import learn_screen

    request = LearningRequest(
        site=site,
        cluster=parse_cluster(cluster),
        model=None if model is None else read_model(model, Path()),
        settings=dict(map(setting, set or [])),
        files=files_at(script) if script else None,
    )
    document = {} if chosen() is None else _document_to_post(logs, request)
    read = answered(lambda: _read_runs(logs, request), lambda client: client.learn(site, document))

    def keep_runs() -> LearnAnswer:
        posted = {**document, "keep": True}
        answer: LearnAnswer = answered(
            lambda: keep(read), lambda client: client.learn(site, posted)
        )
        return answer

    if json:
        output.print_json(keep_runs() if yes else read)
        return FINE
    output.Screen().print(learn_screen(read))
    if read.new and (yes or _confirmed(read)):
        read = keep_runs()
    for line in _ending(read):
        print(line)
    return FINE


def _learn_step(logs: Sequence[str], step: str, site: str, yes: bool, json: bool) -> int:
    """Read a log of steps of reinforcement learning, and keep what it teaches."""
    from planner.commands.shared import read_document
    from planner.documents.problems import refuse
    from planner.learning.sites import learned_step
    from planner.presentation.terminal import output
    from planner.presentation.terminal.site_screens import learned_step_screen

    if chosen() is not None:
        only_here("--step")
    if len(logs) != 1:
        raise refuse("/log", "length", f"one log goes with --step, got {len(logs)}")
    document = read_document(step, {}, limits=True, keep_plan=True)
    with ExitStack() as stack:
        name, lines = _log_lines(logs[0], stack)
        answer = learned_step.learned_step(lines, name, document, site)
    if yes and not answer.known:
        answer = learned_step.keep(answer)
    output.show(answer, json, lambda screen: learned_step_screen(answer))
    return FINE


def _read_runs(logs: Sequence[str], request: LearningRequest) -> LearnAnswer:
    from planner.learning.sites.learn_answer import read_runs

    with ExitStack() as stack:
        return read_runs([_log_lines(path, stack) for path in logs], request)


def _document_to_post(logs: Sequence[str], request: LearningRequest) -> dict[str, Any]:
    """The document by which a service reads a log.  Raises RequestError."""
    if len(logs) > 1:
        only_here("more than one log")
    if len(request.files or ()) > 1:
        only_here("more than one file of --script")
    with ExitStack() as stack:
        name, lines = _log_lines(logs[0], stack)
        text = "\n".join(lines)
    document = {
        "log": text,
        "name": name,
        "cluster": request.cluster.model_dump(mode="json", exclude_none=True),
        "script": next(iter((request.files or {}).values()), None),
        "model": request.model,
        "settings": dict(request.settings or {}),
    }
    return {part: value for part, value in document.items() if value is not None}


def _log_lines(path: str, stack: ExitStack) -> tuple[str, Iterable[str]]:
    """(name, lines) of a file or of standard input.  Raises RequestError."""
    from planner.documents.problems import refuse, shown
    from planner.inputs.logs import lines_of

    if path == "-":
        return "standard input", lines_of(sys.stdin.buffer)
    try:
        if Path(path).is_dir():
            raise refuse("/log", "no_file", f"{shown(path)} is a folder: name its logs")
        return Path(path).name, lines_of(stack.enter_context(Path(path).open("rb")))
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        if hasattr(error, "problems"):
            raise
        reason = getattr(error, "strerror", None) or error
        raise refuse("/log", "no_file", f"cannot read {shown(path)!r}: {reason}") from None


def _confirmed(answer: LearnAnswer) -> bool:
    """Whether a person at a terminal wants it kept."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    subject = "this run" if len(answer.new) == 1 else f"these {len(answer.new)} runs"
    return typer.confirm(f"Keep {subject} with site {answer.site}?")


def _ending(answer: LearnAnswer) -> Iterator[str]:
    count, new = answer.site_runs, len(answer.new)
    site = f"site {answer.site} has {count:,} run{'s' * (count != 1)}"
    if not new:
        yield f"Nothing new: {site}, and has all of these already."
    elif not answer.kept:
        runs = "it" if new == 1 else "them"
        yield f"Nothing is kept: --yes keeps {runs} with site {answer.site}."
    else:
        yield f"Kept: {site} now."
        yield f"  planner sites show {answer.site}"
        yield f"  planner plan --site {answer.site} ..."


@app.callback()
def sites(context: typer.Context, json: Json = False) -> int:
    """Sites that are kept, or one of them."""
    if context.invoked_subcommand is not None:
        return FINE
    from planner.presentation.terminal import output
    from planner.presentation.terminal.site_screens import sites_screen

    answers, damaged = answered(_sites_of_machine, _sites_of_service)
    if json:
        rows = [answer.model_dump(mode="json", exclude={"runs"}) for answer in answers]
        output.print_document({"sites": rows, "damaged": damaged})
        return FINE
    if answers:
        output.Screen().print(sites_screen(answers))
    for problem in damaged:
        print(problem)
    if not (answers or damaged):
        print("no sites yet: `planner learn` or `planner calibrate` makes one")
    return FINE


@app.command()
def show(name: SiteName, json: Json = False) -> int:
    """What a site learned, what it cannot tell yet, and how far off it is."""
    from planner.evidence.uncertainty.site_corrections import site_answer
    from planner.presentation.terminal import output
    from planner.presentation.terminal.site_screens import site_screen

    answer = answered(lambda: site_answer(_find_site(name)), lambda client: client.site(name))
    output.show(answer, json, lambda screen: site_screen(answer))
    return FINE


@app.command()
def forget(
    name: SiteName,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="this run alone")] = None,
) -> int:
    """Forget a site with its calibration, or one of its runs."""
    from planner.evidence.uncertainty import site_storage as storage

    def forget_there(client: Client) -> None:
        client.forget_site(name) if run is None else client.forget_run(name, run)

    answered(lambda: storage.forget(name, run), forget_there)
    print(f"Forgot site {name}." if run is None else f"Forgot run {run} of site {name}.")
    return FINE


@app.command()
def report(
    name: SiteName,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write it there, once you have seen it")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="write without asking")] = False,
) -> int:
    """A site's runs as one document to share: no names, hosts, paths or dates.

    It is shown in full first; nothing is sent anywhere.
    """
    from planner.documents.saving import write_picture
    from planner.learning.sites.shared_report import report_of

    only_here("a report of a site")
    shared = report_of(_find_site(name))
    text = shared.model_dump_json(indent=1, exclude_none=True) + "\n"
    print(text, end="")
    if output is None:
        return FINE
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if yes or (interactive and typer.confirm(f"Write these {len(shared.runs)} runs to {output}?")):
        write_picture(output, text.encode())
        print(f"wrote {output}", file=sys.stderr)
    else:
        print("Nothing is written: --yes writes what is shown.", file=sys.stderr)
    return FINE


@app.command()
def share(
    name: SiteName,
    rights: Annotated[
        list[str] | None, typer.Argument(metavar="[WHO=RIGHT]...", help=f"{_WHO}; none: nobody")
    ] = None,
) -> int:
    """Share a site of a service with these callers, and no others (see --server)."""
    from planner.documents.problems import refuse, shown

    pairs = [pair.rpartition("=") for pair in rights or ()]
    for caller, _, right in pairs:
        if not caller:
            raise refuse("/rights", "no_right", f"{_WHO}, got {shown(right)}", right)
    shared = {caller: right for caller, _, right in pairs}
    if chosen() is None:
        raise refuse("/site", "only_there", "sites have owners on a service alone: see --server")
    site_rights = answered(lambda: None, lambda client: client.share_site(name, {"shared": shared}))
    names = ", ".join(f"{caller} ({right})" for caller, right in site_rights.shared.items())
    print(f"Site {name} of {site_rights.owner} is shared with {names or 'nobody'}.")
    return FINE


def _sites_of_machine() -> tuple[list[SiteAnswer], list[str]]:
    """The sites of this machine, and what is wrong with the others."""
    from planner.evidence.uncertainty import site_storage as storage
    from planner.evidence.uncertainty.site_corrections import site_answer

    known = [site for _, site in storage.everything()]
    answers = [site_answer(site) for site in known if not isinstance(site, str)]
    return answers, [site for site in known if isinstance(site, str)]


def _sites_of_service(client: Client) -> tuple[list[SiteAnswer], list[str]]:
    rows = client.sites().rows
    answers = [client.site(row.name) for row in rows if row.problem is None]
    return answers, [row.problem for row in rows if row.problem is not None]


def _find_site(name: str) -> Site:
    from planner.documents.typed_values import looked_up
    from planner.evidence.uncertainty import site_storage as storage

    return looked_up("/site", partial(storage.find, name))
