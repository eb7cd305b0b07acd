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
        kept = results.everything()
        if json:
            output.print_document({"validations": [one.model_dump(mode="json") for one in kept]})
            return FINE
        for one in kept:
            print(f"{one.id}  {one.request['model']['name']}: {one.sentence}")
        if not kept:
            print("none yet: `planner validate` keeps what it finds")
        return FINE
    one = results.find(name)
    if json:
        output.print_document(one.model_dump(mode="json"))
        return FINE
    from planner.presentation.terminal.validation_screen import validation_screen
    from planner.running.validate.report import ValidationReport

    screen = output.Screen()
    screen.print(validation_screen(ValidationReport.model_validate(one.report), screen))
    return FINE
