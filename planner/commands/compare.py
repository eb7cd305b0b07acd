"""`planner compare`: two plans side by side."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from planner.commands.failures import FINE
from planner.commands.server import answered
from planner.commands.shared import Json, read_request


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="request with a plan, as YAML or JSON")],
    b: Annotated[str, typer.Argument(metavar="B", help="another one, or - for standard input")],
    every: Annotated[bool, typer.Option("--all", help="also what is the same")] = False,
    json: Json = False,
) -> int:
    """Two plans side by side: what differs in what is asked, and in what comes of it."""
    from planner.answers.plans.two_plans import side_by_side
    from planner.documents.problems import Gathered, RequestError
    from planner.inputs.requests.two_requests import SIDES
    from planner.presentation.terminal import output
    from planner.presentation.terminal.tables import comparison_table

    problems = Gathered()
    a_asked, b_asked = (
        problems.of(partial(read_request, source, {}, need_plan=True), f"/{side}")
        for side, source in zip(SIDES, (a, b), strict=True)
    )
    if a_asked is None or b_asked is None:
        raise RequestError(problems)
    answer = answered(
        lambda: side_by_side(a_asked, b_asked),
        lambda service: service.comparison({"a": a_asked.document(), "b": b_asked.document()}),
    )
    output.show(answer, json, lambda screen: comparison_table(answer, every))
    return FINE
