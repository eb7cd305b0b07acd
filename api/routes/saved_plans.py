"""Requests that somebody saved under a name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from api.dependencies import Body, check_owner
from api.log import audit
from api.openapi.schema import request_body
from api.problems import Refused, declare
from api.store_threads import store_of, storing
from planner.documents.service import SavedPlanAnswer, SavedPlanPage, SavedPlanSpec
from planner.documents.typed_values import plain_object, validate
from planner.questions.examples import examples
from planner.running.store import SavedPlan

_PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
router = APIRouter(prefix="/saved-plans", tags=["saved plans"])
Name = Annotated[str, Path(min_length=1, max_length=200, pattern=_PRINTABLE)]


@router.get("", responses=declare(422, 503))
@storing
def saved_plans(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=200, pattern=_PRINTABLE)] = None,
) -> SavedPlanPage:
    """Saved plans by name."""
    saved = store_of(request).saved_plans.page(limit + 1, cursor)
    rows = tuple(map(_answer, saved[:limit]))
    return SavedPlanPage(rows=rows, next=rows[-1].name if len(saved) > limit else None)


@router.get("/{name:path}", responses=declare(404, 422, 503))
@storing
def saved_plan(request: Request, name: Name) -> SavedPlanAnswer:
    """What is saved under a name."""
    saved = store_of(request).saved_plans.get(name)
    if saved is None:
        raise Refused("not-found", "nothing is saved under this name")
    return _answer(saved)


@router.put(
    "/{name:path}",
    response_model=SavedPlanAnswer,
    # A name of more than one line has no address.
    responses=declare(400, 404, 408, 413, 415, 422, 503) | {201: {"model": SavedPlanAnswer}},
    openapi_extra=request_body(examples("saved_plan"), "SavedPlanSpec"),
)
@storing
def save_plan(request: Request, response: Response, name: Name, document: Body) -> SavedPlanAnswer:
    """Save a plan under a name, replacing the one of that name."""
    document = plain_object(document)
    spec = validate("", document, SavedPlanSpec)
    plans = store_of(request).saved_plans
    if existing := plans.get(name):
        check_owner(request, existing.owner)
    audit(request, "save", name)
    owner = request.state.key.name
    if plans.put(name, document["request"], spec.note, spec.answer_id, owner):
        response.status_code = 201
    saved = plans.get(name)
    assert saved is not None
    return _answer(saved)


@router.delete("/{name:path}", status_code=204, responses=declare(404, 422, 503))
@storing
def forget_saved_plan(request: Request, name: Name) -> None:
    """Forget a name."""
    if existing := store_of(request).saved_plans.get(name):
        check_owner(request, existing.owner)
    audit(request, "forget", name)
    if not store_of(request).saved_plans.delete(name):
        raise Refused("not-found", "nothing is saved under this name")


def _answer(plan: SavedPlan) -> SavedPlanAnswer:
    saved_at = datetime.fromtimestamp(plan.saved_at, UTC)
    return SavedPlanAnswer(**(plan.model_dump() | {"saved_at": saved_at}))
