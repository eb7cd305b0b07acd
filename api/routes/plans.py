"""What a kept plan has besides: its candidates, and a page."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from api import negotiation, results, work
from api.dependencies import Brief, Searches, share_sites
from api.problems import Refused, declare
from api.store_threads import in_store
from planner.answers.plans.answer_ids import packed
from planner.answers.plans.candidates import MOST_ROWS, SORTED_BY, CandidatePage, Status, check_sort
from planner.questions.answers import dumped_candidates

router = APIRouter(prefix="/plans", tags=["plans"])
pages = APIRouter(include_in_schema=False)
# What is refused is said by check_sort, with the nearest name.
Sort = Annotated[
    str,
    Query(
        max_length=64,
        description="a figure or field of the rows; -: largest first",
        json_schema_extra={"pattern": f"^-?({'|'.join(SORTED_BY)})$"},
    ),
]


@router.get(
    "/{id}/candidates",
    response_model=CandidatePage,
    dependencies=[Depends(share_sites)],
    responses={
        **declare(404, 422, 503, 504),
        200: {"content": {negotiation.CSV: {"schema": {"type": "string"}}}},
    },
)
async def plan_candidates(
    id: results.Id,
    request: Request,
    searches: Searches,
    brief: Brief,
    status: Status = "feasible",
    sort: Sort = "-tokens_per_s",
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
    cursor: Annotated[int, Query(ge=0, le=MOST_ROWS)] = 0,
) -> Response:
    """Every plan that was priced, as light rows; with `Accept: text/csv` as a table."""
    check_sort(sort)
    content = await in_store(results.read, request, "pl", id)
    known = "ca_" + hashlib.sha256(f"{id} {status} {sort}".encode()).hexdigest()[:32]

    listed = await in_store(request.app.state.store.results.get, known)
    if listed is None:
        listed = await searches.run(dumped_candidates, content, id, status, sort)
        if isinstance(listed, str):
            raise Refused("not-found", listed)
        await results.keep(request, known, listed)
    media_type = negotiation.preferred_media_type(request, negotiation.JSON, negotiation.CSV)
    as_table = media_type == negotiation.CSV
    page = await brief.run(work.candidate_page, listed, cursor, limit, as_table)
    named = {"Content-Disposition": f'attachment; filename="candidates-{status}.csv"'}
    return Response(page, media_type=media_type, headers=named if as_table else {})


@pages.get("/plans/{id}")
async def plan_page(id: results.Id, request: Request) -> Response:
    """The page with what this answer was asked."""
    content = await in_store(results.read, request, "pl", id)
    return RedirectResponse(f"/#q={packed({'request': json.loads(content)['request']})}")
