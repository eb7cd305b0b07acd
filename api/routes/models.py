"""A model of one's own."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.dependencies import Body
from api.openapi.examples import CONFIG_EXAMPLES, DIMS_EXAMPLES
from api.openapi.schema import request_body
from api.problems import declare
from planner.request_parsing.model_import import ModelAnswer, described, imported

router = APIRouter(prefix="/models", tags=["models"])


@router.post(
    "/import",
    response_model=ModelAnswer,
    responses=declare(400, 408, 413, 415, 422),
    openapi_extra=request_body(CONFIG_EXAMPLES, "ModelConfig"),
)
def import_model(document: Body) -> Response:
    """Read a Hugging Face config.json: the dims, the parameters, and what it did not state."""
    return Response(imported(document).model_dump_json(), media_type="application/json")


@router.post(
    "/describe",
    response_model=ModelAnswer,
    responses=declare(400, 408, 413, 415, 422),
    openapi_extra=request_body(DIMS_EXAMPLES, "ModelSpec"),
)
def describe_model(document: Body) -> Response:
    """A model's dims, as a request has them: its parameters and its layers."""
    return Response(described(document).model_dump_json(), media_type="application/json")
