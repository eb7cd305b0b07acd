"""Published runs beside what is predicted of them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel

from api.dependencies import Body
from api.openapi.examples import ESTIMATE_EXAMPLES
from api.openapi.schema import NOT_CHANGED, request_body
from api.problems import declare
from api.web_files import send_json
from planner.documents.scored_runs import ScoredRun, scored_runs
from planner.request_parsing.parser import parse_request
from planner.uncertainty import site_storage as storage
from planner.uncertainty.nearest_runs import Evidence, evidence

router = APIRouter(prefix="/accuracy", tags=["accuracy"])


class ScoredRuns(BaseModel):
    """All published runs in the headline of `planner accuracy`."""

    rows: tuple[ScoredRun, ...]


@router.get("/runs", response_model=ScoredRuns, responses=NOT_CHANGED)
def published_runs(request: Request) -> Response:
    """Every published run with its predicted time, and intervals its source had no part in."""
    return send_json(request, "scored_runs", _all_runs)


def _all_runs() -> str:
    return ScoredRuns(rows=scored_runs()).model_dump_json()


@router.post(
    "/nearest",
    response_model=Evidence,
    responses=declare(400, 408, 413, 415, 422),
    openapi_extra=request_body(ESTIMATE_EXAMPLES),
)
async def nearest_runs(document: Body) -> Evidence:
    """The published runs nearest to the request's `plan`, and on what ground its time stands."""
    return await run_in_threadpool(_evidence, document)


def _evidence(document: object) -> Evidence:
    asked = parse_request(document, need_plan=True)
    own = storage.site_of_request(asked.site)
    return evidence(asked.model, asked.cluster, asked.training, asked.named_plan, own)
