"""What the commands of the command line share: reading what is asked.

Everything heavy is imported inside a function, so that `planner --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands.failures import FINE, NOTHING_FITS
from planner.commands.options import merge
from planner.commands.server import split_service_names

if TYPE_CHECKING:
    from planner.documents.problems import Problem
    from planner.documents.request import PlanRequest
    from planner.frameworks.base import Bundle

PLAN = "The plan"
LIMITS = "Limits of the search: a value (8), a range (1..8), or a choice (1,2,4)"
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="write the answer as one HTML page")
]
LAUNCHERS = "launcher: torchrun, deepspeed, slurm, kubernetes, jobset, trainjob, skypilot"
Json = Annotated[bool, typer.Option("--json", help="print one JSON document and nothing else")]


def figure(kind: str, text: str, panel: str = "Figures for papers (need the extra `plot`)") -> Any:
    """The option that names the file of a figure."""
    return typer.Option(f"--{kind}", metavar="FILE", help=text, rich_help_panel=panel)


def load(source: str | None) -> dict[str, Any]:
    """The document in a file or on standard input; an empty one where none is named."""
    from planner.documents.loading import load_document

    return {} if source is None else load_document(source)


def read_request(
    source: str | None,
    option_values: Mapping[str, Any],
    *,
    limits: bool = False,
    need_plan: bool = False,
    keep_plan: bool = False,
    document: Mapping[str, Any] | None = None,
    mixed_cluster: bool = False,
) -> PlanRequest:
    """The request of a file, with options over it; mixed_cluster: nodes may differ."""
    from planner.inputs.requests.parser import parse_request

    merged = read_document(
        source, option_values, limits=limits, keep_plan=keep_plan, document=document
    )
    known, names = split_service_names(merged)
    request = parse_request(known, need_plan=need_plan, mixed_cluster=mixed_cluster)
    return request.model_copy(update=names)


def read_document(
    source: str | None,
    option_values: Mapping[str, Any],
    *,
    limits: bool = False,
    keep_plan: bool = False,
    document: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document of a file, with options over it; a model may be the path of a config.json.

    limits: options on plan fields bound the search, unless keep_plan and the file has a plan.
    document: what is in the source, where it has been read.
    """
    document = dict(load(source) if document is None else document)
    folder = Path() if source in (None, "-") else Path(str(source)).parent
    if isinstance(named := document.get("model"), str):
        document["model"] = read_model(named, folder)
    if keep_plan and document.get("plan") is not None:
        limits = False
    document = merge(document, option_values, limits=limits)
    if "model" in option_values:
        document["model"] = read_model(option_values["model"], Path())
    return document


def read_model(name: str, folder: Path) -> Any:
    """The document in a model file or in a folder's config.json, or else the name as it is.

    Raises RequestError where the name is that of another file or folder and of no preset.
    """
    from planner.documents.loading import CONFIG_MARKS, load_document
    from planner.documents.problems import RequestError

    path = folder / name
    if name.strip() and path.is_dir() and (path / "config.json").is_file():
        path /= "config.json"
    elif path.suffix not in (".json", ".yaml", ".yml"):
        _refuse_other(name, path)
        return name
    try:
        document = load_document(path)
    except RequestError as error:
        raise error.under("/model") from None
    if not CONFIG_MARKS.isdisjoint(document) and not document.get("_name_or_path"):
        # A config.json lies in a folder named after the model.
        called = path.resolve().parent.name if path.stem == "config" else path.stem
        document["_name_or_path"] = called
    return document


def _refuse_other(name: str, path: Path) -> None:
    """Refuse a file or folder that holds no model, unless a preset has its name."""
    from cost_models.catalog.models import model
    from cost_models.catalog.names import UnknownName
    from planner.documents.problems import refuse, shown

    if not name.strip() or not path.exists():
        return
    try:
        model(name)
    except UnknownName:
        here = f"no config.json in {shown(name)!r}"
        detail = here if path.is_dir() else f"{shown(name)!r} is no config.json"
        raise refuse("/model", "no_config", detail) from None


def print_bundle(bundle: Bundle, folder: Path | None, json: bool, *, as_script: bool) -> int:
    """Write the files into a folder, or print them; the exit code.

    as_script: all files are printed as one script, else the main one alone.
    """
    from planner.documents.saving import write_files
    from planner.frameworks.bash_writer import one_script
    from planner.presentation.terminal.output import print_json

    written = [] if folder is None else write_files(bundle.files, folder)
    if json:
        print_json(bundle)
        return FINE
    if folder is None:
        print(one_script(bundle) if as_script else bundle.files[bundle.main], end="")
    for path in written:
        print(path)
    for note in bundle.notes:
        kind = "warning" if note.code == "cannot_be_said" else "note"
        print(f"{kind}: {note.text}", file=sys.stderr)
    return FINE


def nothing_fits(problems: tuple[Problem, ...], json: bool) -> int:
    """Say that there is no plan to go on with; the exit code."""
    from planner.documents.problems import problem_document
    from planner.presentation.terminal.output import print_document

    if json:
        print_document(problem_document(problems))
    else:
        (problem,) = problems
        print(problem.detail[0].upper() + problem.detail[1:], file=sys.stderr)
    return NOTHING_FITS
