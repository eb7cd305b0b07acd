"""Two requests in one document: what `planner compare` and POST /v1/comparisons are asked."""

from __future__ import annotations

from typing import Any

from planner.documents.loading import plain
from planner.documents.problems import (
    Problem,
    RequestError,
    join,
    unknown_field,
    wrong_type,
)
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request

SIDES = ("a", "b")


def parse_both(document: Any) -> tuple[PlanRequest, PlanRequest]:
    """The two requests of {"a", "b"}, each with its plan.  Raises RequestError for both at once."""
    document = plain(document)
    if not isinstance(document, dict):
        raise RequestError([wrong_type("", "an object", document)])
    problems = [unknown_field("", name, SIDES) for name in document if name not in SIDES]
    requests = []
    for side in SIDES:
        if document.get(side) is None:
            problems.append(Problem(pointer=join("", side), code="missing", detail="is required"))
            continue
        try:
            requests.append(parse_request(document[side], need_plan=True))
        except RequestError as error:
            problems += error.under(join("", side)).problems
    if problems:
        raise RequestError(problems)
    return requests[0], requests[1]
