"""Published runs beside what is predicted of them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from api.openapi.schema import NOT_CHANGED
from api.web_files import send_json
from planner.documents.scored_runs import scored_runs
from planner.documents.service import ScoredRuns
from planner.learning.accuracy.first_sights import first_sight_summary

router = APIRouter(prefix="/accuracy", tags=["accuracy"])


@router.get("/runs", response_model=ScoredRuns, responses=NOT_CHANGED)
def published_runs(request: Request) -> Response:
    """Every published run with its predicted time, and intervals its source had no part in."""
    return send_json(request, "scored_runs", _all_runs)


def _all_runs() -> str:
    return ScoredRuns(rows=scored_runs(), first_sight=first_sight_summary()).model_dump_json()
