"""`planner validations`."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.commands.failures import FINE
from planner.commands.shared import Json


def validations(
    name: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="of a validation, as the list prints it")
    ] = None,
    json: Json = False,
) -> int:
    """Results of `planner validate` that are kept, the latest first."""
    from planner.presentation.terminal import output
    from planner.running.validate import results

    if name is None:
        stored = results.everything()
        if json:
            output.print_document({"validations": [v.model_dump(mode="json") for v in stored]})
            return FINE
        for validation in stored:
            print(f"{validation.id}  {validation.request['model']['name']}: {validation.sentence}")
        if not stored:
            print("none yet: `planner validate` keeps what it finds")
        return FINE
    validation = results.find(name)
    if json:
        output.print_document(validation.model_dump(mode="json"))
        return FINE
    from planner.presentation.terminal.validation_screen import validation_screen
    from planner.running.validate.report import ValidationReport

    screen = output.Screen()
    screen.print(validation_screen(ValidationReport.model_validate(validation.report), screen))
    return FINE
