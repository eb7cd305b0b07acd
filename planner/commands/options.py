"""The options of the command line that are fields of a request, and the document they make.

Every option is named as its field and says where in the request it belongs.  The table is read
from `fields.json`, which tools/field_table.py writes from the specs: `planner --help`
must not load the physics.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperOption

Part = Literal[
    "", "cluster", "training", "search", "plan", "pipeline", "sizing", "fit", "reinforcement"
]


@dataclass(frozen=True)
class Field:
    """One option: the field's name, the part of the request that has it, and its help.

    boolean: a switch, `--name` or `--no-name`; several: values with commas between.
    """

    name: str
    part: Part
    help: str
    metavar: str = "VALUE"
    boolean: bool = False
    several: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


TABLE = Path(__file__).with_name("fields.json")


_OPTIONS = tuple(Field(**row) for row in json.loads(TABLE.read_text()))


def part_of(name: Part) -> dict[str, Field]:
    """The fields of one part, by name."""
    return {field.name: field for field in _OPTIONS if field.part == name}


# Not of a request for a plan: a pipeline by itself, with times in place of a model; a sizing; what
# fits; a step of reinforcement learning.
PIPELINE = part_of("pipeline")
_OTHER_PARTS = ("pipeline", "sizing", "fit", "reinforcement")
FIELDS = {field.name: field for field in _OPTIONS if field.part not in _OTHER_PARTS}


def _names(kind: str) -> Callable[[str], list[str]]:
    """What completes the name of a catalog entry."""

    def complete(incomplete: str) -> list[str]:
        from planner.answers.inventory.catalog import LISTINGS

        return [entry.id for entry in LISTINGS[kind]() if entry.id.startswith(incomplete)]

    return complete


COMPLETIONS = {
    "model": _names("models"),
    "cluster": _names("clusters"),
    "framework": _names("frameworks"),
    "schedule": _names("schedules"),
}
# What most questions need; the help of a command shows the other fields with --help-all.
_COMMON = {
    "model", "cluster", "nodes", "site", "seq_length", "global_batch_size", "precision",
    "optimizer", "lora_rank", "frozen_dtype", "loss", "tokens", "objective", "framework", "tp",
    "cp", "pp", "dp", "ep", "zero_stage", "micro_batch_size", "recompute", "schedule",
    "offload_optimizer",
}  # fmt: skip


def _help_of_all(context: typer.Context, wanted: bool) -> None:
    if not wanted:
        return
    hidden = [p for p in context.command.params if isinstance(p, TyperOption) and p.hidden]
    for parameter in hidden:
        parameter.hidden = False
    try:
        typer.echo(context.get_help())
    finally:
        for parameter in hidden:
            parameter.hidden = True
    raise typer.Exit


_SOURCES: dict[str, Any] = {
    "request_file": Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE|-]", help="request as YAML or JSON; options are laid over it"
        ),
    ],
    "request": Annotated[
        str | None, typer.Option("--request", metavar="FILE|-", help="the same, as an option")
    ],
}
_HELP_ALL = Annotated[
    bool,
    typer.Option(
        "--help-all", is_eager=True, callback=_help_of_all, help="this, with every field's option"
    ),
]
_PANELS = {
    "": "Model and cluster",
    "cluster": "Model and cluster",
    "training": "Training",
    "search": "Search",
    "pipeline": "A pipeline by itself, without a model",
    "sizing": "Sizing",
    "fit": "What to try",
    "reinforcement": "The step",
}


def request_options(plan_panel: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command a request: its document, and an option per field.

    The command takes them as two arguments: `source`, where the document stands, if there is one,
    and `option_values`, values by field name.
    """
    return _options(FIELDS.values(), plan_panel, "option_values", document=True)


def some_options(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the options of these fields of a request, as its argument `option_values`."""
    return _options([FIELDS[name] for name in names], "", "option_values")


def part_options(part: Part) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command an option per field of a part, as one argument of the part's name."""
    return _options(part_of(part).values(), "", part)


def _options(
    fields: Collection[Field], plan_panel: str, into: str, document: bool = False
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def run(**arguments: Any) -> int:
            values = {field.name: arguments.pop(field.name) for field in fields}
            stated = {name: value for name, value in values.items() if value is not None}
            if document:
                del arguments["help_all"]
                arguments["source"] = _source(*(arguments.pop(name) for name in _SOURCES))
            return command(**{into: stated}, **arguments)

        declared = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [p for p in declared if p.name != into]
        if document:
            shared = (_keyword(name, annotation) for name, annotation in _SOURCES.items())
            parameters = [*shared, *(p for p in parameters if p.name != "source")]
            parameters.append(_keyword("help_all", _HELP_ALL, default=False))
        parameters += [
            _parameter(field, plan_panel, hidden=document and field.name not in _COMMON)
            for field in fields
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _source(argument: str | None, option: str | None) -> str | None:
    """Where the request stands: given as an argument or as an option, not both."""
    if argument is not None and option is not None:
        raise typer.BadParameter("give the request once, as an argument or as --request")
    return argument if option is None else option


def _parameter(field: Field, plan_panel: str, hidden: bool) -> inspect.Parameter:
    panel = _PANELS.get(field.part, plan_panel)
    if field.boolean:
        option = typer.Option(
            help=field.help, rich_help_panel=panel, show_default=False, hidden=hidden
        )
        annotation: Any = Annotated[bool | None, option]
    else:
        # Text, so that a wrong value is reported like one in a file: with its place.
        option = typer.Option(
            help=field.help, metavar=field.metavar, rich_help_panel=panel, show_default=False,
            autocompletion=COMPLETIONS.get(field.name), hidden=hidden,
        )  # fmt: skip
        annotation = Annotated[str | None, option]
    return _keyword(field.name, annotation)


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def merge(
    document: Mapping[str, Any], option_values: Mapping[str, Any], *, limits: bool
) -> dict[str, Any]:
    """The document with the given options laid over it.

    limits: plan fields bound the search (`8`, `1..8`, `1,2,4`); otherwise they make the plan.
    """
    merged = dict(document)
    for name, value in option_values.items():
        parsed = value if isinstance(value, bool) else read(name, value, limits)
        target = _target(FIELDS[name], limits)
        if not target:
            merged[name] = parsed
            continue
        section = {} if merged.get(target) is None else merged[target]
        if target == "cluster" and isinstance(section, str):
            section = {"preset": section}
        # A part that is no object stays as it is: the parser reports it.
        if isinstance(section, dict):
            merged[target] = _without_limit(section, name) | {name: parsed}
    return merged


def _without_limit(section: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of the request without the limit that an option replaces."""
    nested = section.get("limits")
    if not isinstance(nested, dict):
        return section
    return section | {"limits": {key: value for key, value in nested.items() if key != name}}


def _target(field: Field, limits: bool) -> str:
    """The part of the request that an option goes to."""
    return "search" if field.part == "plan" and limits else field.part


def read(name: str, text: str, limits: bool) -> Any:
    """The value an option's text stands for.

    Raises RequestError where it stands for none: an unset variable of a shell, say.
    """
    from planner.documents.loading import scalar
    from planner.documents.problems import join, refuse, shown

    field = FIELDS[name]
    target = _target(field, limits)
    pointer = join("", *filter(None, (target, name)))

    def parsed(item: str) -> Any:
        value = scalar(item.strip(), pointer)
        if value is None:
            detail = f"{field.flag} needs a value" + (f", got {shown(text)!r}" if text else "")
            raise refuse(pointer, "empty", detail)
        return value

    if not target:
        return text if text.strip() else parsed(text)
    if field.several:
        return [parsed(item) for item in text.split(",")]
    if target == "search" and field.part == "plan":
        if ".." in text:
            low, _, high = text.partition("..")
            return {
                end: parsed(item) for end, item in (("min", low), ("max", high)) if item.strip()
            }
        if "," in text:
            return [parsed(item) for item in text.split(",")]
    return parsed(text)


def scalars(values: Mapping[str, Any], pointer: str = "") -> dict[str, Any]:
    """What the texts of options stand for, by name; pointer: where they belong."""
    from planner.documents.loading import scalar
    from planner.documents.problems import join

    return {
        name: scalar(value.strip(), join(pointer, name)) if isinstance(value, str) else value
        for name, value in values.items()
    }


STANDARD_INPUT = "FILE"  # stands for a request that came from there, and is gone


def command_line(
    option_values: Mapping[str, Any], request: str | None, leave_out: Iterable[str]
) -> str:
    """The options that repeat what was asked, for the next command."""
    import shlex

    source = STANDARD_INPUT if request == "-" else request
    options = [] if source is None else ["--request", source]
    for name, value in option_values.items():
        if name in leave_out:
            continue
        flag = FIELDS[name].flag
        if isinstance(value, bool):
            options.append(flag if value else "--no-" + flag[2:])
        else:
            options += [flag, value]
    return shlex.join(options)
