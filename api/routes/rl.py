"""A step of reinforcement learning."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from api import results
from api.dependencies import Body, Searches
from api.openapi.examples import RL_EXAMPLES
from api.openapi.schema import NOT_CHANGED, STREAMED, request_body
from api.problems import declare
from planner.reinforcement.compute import step
from planner.reinforcement.parsing import parse_reinforcement

router = APIRouter(prefix="/rl", tags=["rl"])


@router.post(
    "",
    response_model=results.KeptStep,
    responses={**declare(400, 408, 413, 415, 422, 503), **NOT_CHANGED, **STREAMED},
    openapi_extra=request_body(RL_EXAMPLES, "ReinforcementRequest"),
)
async def rl(document: Body, request: Request, searches: Searches) -> Response:
    """Time and memory of one step of GRPO or PPO, from a stated generation throughput."""
    asked = await run_in_threadpool(parse_reinforcement, document)
    return await results.answer(request, searches, "rl", asked.document(), step, asked)


@router.get(
    "/{id}",
    response_model=results.KeptStep,
    responses={**declare(404, 422, 503), **NOT_CHANGED},
)
async def kept_step(id: results.Id, request: Request) -> Response:
    """An answer again, as long as it is kept."""
    return await results.stored_answer(request, "rl", id)
