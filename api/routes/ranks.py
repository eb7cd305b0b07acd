"""Which rank of a plan sits where."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.dependencies import Body
from api.openapi.examples import ESTIMATE_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.answers import ranks as placing
from planner.frameworks.rank_orders import ORDERS
from planner.request_parsing.parser import parse_request

router = APIRouter(prefix="/ranks", tags=["ranks"])
Order = Annotated[str, Query(max_length=64, description=f"one of {', '.join(ORDERS)}")]


@router.post(
    "",
    response_model=placing.RanksAnswer,
    responses=declare(400, 408, 413, 415, 422),
    openapi_extra=request_body(ESTIMATE_EXAMPLES),
)
def ranks(document: Body, order: Order = "megatron") -> Response:
    """Coordinates, process groups and the links they cross, in a framework's rank order."""
    request = parse_request(document, need_plan=True)
    assert request.plan is not None
    answer = placing.ranks(request, request.plan, order)
    return Response(answer.model_dump_json(), media_type="application/json")
