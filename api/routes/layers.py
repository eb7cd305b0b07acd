"""What the layers of a plan are made of."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from api.dependencies import Body
from api.openapi.examples import ESTIMATE_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.answers.layer_contents import LayersAnswer, layers_answer
from planner.request_parsing.parser import parse_request

router = APIRouter(prefix="/layers", tags=["layers"])


@router.post(
    "",
    response_model=LayersAnswer,
    responses=declare(400, 408, 413, 415, 422),
    openapi_extra=request_body(ESTIMATE_EXAMPLES),
)
async def layers(document: Body) -> LayersAnswer:
    """Kernels, saved tensors and communication of the request's `plan`, hidden beside exposed."""
    return await run_in_threadpool(_answer, document)


def _answer(document: object) -> LayersAnswer:
    asked = parse_request(document, need_plan=True)
    return layers_answer(asked, asked.named_plan)
