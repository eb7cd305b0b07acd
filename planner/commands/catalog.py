"""`planner model` and `planner catalog`: what is known by name."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from planner.commands.failures import FINE
from planner.commands.server import answered, only_here
from planner.commands.shared import Json, read_model


class Kind(StrEnum):
    """What the catalog holds."""

    models = "models"
    accelerators = "accelerators"
    clusters = "clusters"
    frameworks = "frameworks"
    schedules = "schedules"


def model(
    name: Annotated[
        str, typer.Argument(metavar="NAME|FILE|FOLDER", help="preset, config.json or its folder")
    ],
    trust_remote_code: Annotated[
        bool, typer.Option(help="run the code in the folder to build its model")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write the dims, for --model FILE")
    ] = None,
    json: Json = False,
) -> int:
    """Read a model: a preset or a Hugging Face config.json."""
    from planner.documents.saving import write_files
    from planner.inputs.requests.model_import import described, spelled_out, with_own_code
    from planner.presentation.terminal import output, tables

    document = read_model(name, Path())
    if trust_remote_code:
        only_here("--trust-remote-code")
        answer = with_own_code(document, Path(name))
    else:
        answer = answered(
            lambda: described(document),
            lambda service: service.describe_model(spelled_out(document)),
        )
    if save is not None:
        write_files({save.name: answer.model.model_dump_json(indent=1)}, save.parent)
    output.show(answer, json, lambda screen: tables.model_screen(answer))
    return FINE


def catalog(kind: Annotated[Kind, typer.Argument()] = Kind.models, json: Json = False) -> int:
    """What is known by name: models, accelerators, clusters, frameworks, schedules."""
    from planner.answers.inventory import catalog as listed
    from planner.presentation.terminal import output, tables

    entries = answered(
        listed.LISTINGS[kind], lambda service: getattr(getattr(service, kind)(), kind)
    )
    if json:
        output.print_document({kind: [entry.model_dump(mode="json") for entry in entries]})
    else:
        output.Screen().print(tables.catalog_screen(entries))
    return FINE
