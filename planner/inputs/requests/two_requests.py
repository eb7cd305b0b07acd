"""Two requests in one document: what `planner compare` and POST /v1/comparisons are asked."""

from __future__ import annotations

from functools import partial
from typing import Any

from planner.documents.problems import Gathered, RequestError, refuse, unknown_field
from planner.documents.request import PlanRequest
from planner.documents.typed_values import plain_object
from planner.inputs.requests.parser import parse_request

SIDES = ("a", "b")


def parse_both(document: Any) -> tuple[PlanRequest, PlanRequest]:
    """The two requests of {"a", "b"}, each with its plan.  Raises RequestError for both at once."""
    sides = plain_object(document)
    problems = Gathered(unknown_field("", name, SIDES) for name in sides if name not in SIDES)

    def parse_side(side: str) -> PlanRequest:
        if sides.get(side) is None:
            raise refuse("", "missing", "is required")
        return parse_request(sides[side], need_plan=True)

    a, b = (problems.of(partial(parse_side, side), f"/{side}") for side in SIDES)
    if problems or a is None or b is None:
        raise RequestError(problems)
    return a, b
