"""`planner compare`: two plans side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from planner.commands.failures import FINE
from planner.commands.server import answered
from planner.commands.shared import Json, read_request

if TYPE_CHECKING:
    from planner.documents.problems import Problem
    from planner.documents.request import PlanRequest


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="request with a plan, as YAML or JSON")],
    b: Annotated[str, typer.Argument(metavar="B", help="another one, or - for standard input")],
    every: Annotated[bool, typer.Option("--all", help="also what is the same")] = False,
    json: Json = False,
) -> int:
    """Two plans side by side: what differs in what is asked, and in what comes of it."""
    from planner.answers.plans.two_plans import side_by_side
    from planner.documents.problems import RequestError
    from planner.inputs.requests.two_requests import SIDES
    from planner.presentation.terminal import output
    from planner.presentation.terminal.tables import comparison_table

    problems: list[Problem] = []
    requests: list[PlanRequest] = []
    for side, source in zip(SIDES, (a, b), strict=True):
        try:
            requests.append(read_request(source, {}, need_plan=True))
        except RequestError as error:
            problems += error.under(f"/{side}").problems
    if problems:
        raise RequestError(problems)
    a_asked, b_asked = requests
    answer = answered(
        lambda: side_by_side(a_asked, b_asked),
        lambda service: service.comparison({"a": a_asked.document(), "b": b_asked.document()}),
    )
    output.show(answer, json, lambda screen: comparison_table(answer, every))
    return FINE
