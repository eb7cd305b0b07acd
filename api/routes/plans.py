"""The fastest plans that fit."""

from __future__ import annotations

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from api import negotiation, results
from api.dependencies import Body, Searches, WantedFields
from api.openapi.examples import PLAN_EXAMPLES
from api.openapi.schema import NOT_CHANGED, STREAMED, request_body
from api.problems import Refused, declare
from api.store_threads import in_store
from planner import mixed_clusters
from planner.answers import plan_answers
from planner.answers.answer_ids import answer_id, packed
from planner.answers.candidates import (
    MOST_ROWS,
    SORTED_BY,
    CandidatePage,
    Candidates,
    Status,
    check_sort,
    csv_text,
    dumped_candidates,
)
from planner.request_parsing.parser import parse_request

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


@router.post(
    "",
    response_model=results.KeptPlan | results.KeptMixedPlan,
    responses={**declare(400, 408, 413, 415, 422, 503), **NOT_CHANGED, **STREAMED},
    openapi_extra=request_body(PLAN_EXAMPLES),
)
async def plan(
    document: Body, request: Request, searches: Searches, fields: WantedFields
) -> Response:
    """Search; that nothing fits is an answer too, with `best` null and the nearest miss.

    Where nodes differ, the ways to use them, the fastest first.
    """
    asked = await run_in_threadpool(lambda: parse_request(document, mixed_cluster=True))
    differ = len(asked.cluster.groups) > 1
    find = mixed_clusters.find if differ else plan_answers.find
    question = asked.document()
    return await results.answer(request, searches, "plans", question, find, asked, fields=fields)


@router.get(
    "/{id}",
    response_model=results.KeptPlan | results.KeptMixedPlan,
    responses={**declare(404, 422, 503), **NOT_CHANGED},
)
async def kept_plan(id: results.Id, request: Request, fields: WantedFields) -> Response:
    """An answer again, as long as it is kept."""
    return await results.stored_answer(request, "plans", id, fields)


@router.get(
    "/{id}/candidates",
    response_model=CandidatePage,
    responses={
        **declare(404, 422, 503),
        200: {"content": {negotiation.CSV: {"schema": {"type": "string"}}}},
    },
)
async def plan_candidates(
    id: results.Id,
    request: Request,
    searches: Searches,
    status: Status = "feasible",
    sort: Sort = "-tokens_per_s",
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
    cursor: Annotated[int, Query(ge=0, le=MOST_ROWS)] = 0,
) -> Response:
    """Every plan that was priced, as light rows; with `Accept: text/csv` as a table."""
    check_sort(sort)
    content = await in_store(results.read, request, "plans", id)
    known = answer_id("ca", [id, status, sort])

    listed = await in_store(request.app.state.store.results.get, known)
    if listed is None:
        asked = parse_request(json.loads(content)["request"], mixed_cluster=True)
        if answer_id("pl", asked.document()) != id:
            site = asked.site or asked.profile
            what = f"site {site} has" if site else "the build of the service has"
            raise Refused("not-found", f"{what} changed since this answer; request a new plan")
        if len(asked.cluster.groups) > 1:
            raise Refused("not-found", "a cluster of different nodes has no list of candidates")
        listed = await searches.run(dumped_candidates, asked, status, sort)
        await in_store(results.keep, request, known, listed)
    found = await run_in_threadpool(lambda: Candidates.load(listed).page(cursor, limit))
    if (
        negotiation.preferred_media_type(request, negotiation.JSON, negotiation.CSV)
        == negotiation.CSV
    ):
        named = {"Content-Disposition": f'attachment; filename="candidates-{status}.csv"'}
        return Response(csv_text(found), media_type=negotiation.CSV, headers=named)
    return Response(found.model_dump_json(), media_type=negotiation.JSON)


@pages.get("/plans/{id}")
async def plan_page(id: results.Id, request: Request) -> Response:
    """The page with what this answer was asked."""
    content = await in_store(results.read, request, "plans", id)
    return RedirectResponse(f"/#q={packed({'request': json.loads(content)['request']})}")
