"""Kept answers: the same request to the same version has the same id, and is answered once.

The id is the entity tag as well; a request that names it is not computed again.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path, Request, Response
from pydantic import BaseModel, create_model

from api import work
from api.budget import Budget, Spent
from api.dependencies import CallPool
from api.field_selection import chosen
from api.negotiation import JSON
from api.pool_worker import EstimateRequest
from api.pool_worker import estimates as estimates_of
from api.problems import Refused
from api.store_threads import in_store, store_of
from planner.documents.field_selection import Fields
from planner.documents.problems import RequestError, refuse
from planner.inputs.requests.models import NOT_BUILT
from planner.questions.question import Question
from planner.running.store import Unavailable

_FOR_AN_HOUR = "private, max-age=3600"
_MAX_KEY_LENGTH = 255
Id = Annotated[str, Path(max_length=64, pattern=r"^[a-z]{2}_[0-9a-f]{1,61}$")]


class StoredAnswer(BaseModel):
    """What an answer has over HTTP: its id, whether it was there already, and where to go on.

    spent: the bound at which the search ended early, with the best so far; such an answer is not
    kept.
    """

    id: str
    cached: bool
    links: dict[str, str]
    spent: Spent | None


def kept_class(answer: type[BaseModel]) -> type[BaseModel]:
    """The class of an answer with what it has over HTTP."""
    about = "An answer that the service keeps."
    return create_model(f"Kept{answer.__name__}", __base__=(StoredAnswer, answer), __doc__=about)


async def kept(
    request: Request, question: Question, document: Any, budget: Budget, fields: Fields
) -> Response:
    """The kept answer to what a document asks, or else a new one, which is kept.

    fields: what to send of it.
    """
    brief = CallPool(request, "brief", budget)
    identified = await brief.run(work.identify, question, document)
    if key := request.headers.get("idempotency-key"):
        await in_store(_refuse_other_question, request, key, identified)
    if is_known(request, identified.id):
        return Response(status_code=304, headers={"ETag": etag(identified.id)})
    existing = spent = None
    with suppress(Unavailable):  # it is computed, too, where nothing can be kept
        existing = await in_store(store_of(request).results.get, identified.id)
    content = existing or b""
    if existing is None:
        searches = CallPool(request, "searches", budget)
        content, same = await searches.run(work.compute, question, identified)
        spent = request.state.spent  # a larger budget finds more
        if spent is None and same:
            await keep(request, identified.id, content)
    if fields:
        content = await brief.run(chosen, content, fields)
    return _send(question, identified.id, existing is not None, content, spent)


async def stored(
    request: Request, question: Question, id: str, budget: Budget, fields: Fields
) -> Response:
    """The answer with this id.  Raises Refused where it is not kept, or no longer."""
    content = await in_store(read, request, question.kept, id)
    if is_known(request, id):
        return Response(status_code=304, headers={"ETag": etag(id)})
    if fields:
        content = await CallPool(request, "brief", budget).run(chosen, content, fields)
    response = _send(question, id, True, content)
    response.headers["Cache-Control"] = _FOR_AN_HOUR
    return response


async def estimated(request: Request, document: Any, budget: Budget, fields: Fields) -> Response:
    """An estimate, which has an entity tag and is not kept."""
    known = request.headers.get("if-none-match", "")
    estimates = request.app.state.estimates
    question = EstimateRequest(document, known, fields)
    short = replace(budget, build_models=False, asker=request.state.asker)
    try:
        id, content = await estimates.ask(request.state.caller, short, question)
    except RequestError as error:
        if not budget.build_models or NOT_BUILT not in {problem.code for problem in error.problems}:
            raise
        # To build a model takes seconds, for which no other estimate is to wait.
        searches = CallPool(request, "searches", budget)
        [(kind, result)] = await searches.run(estimates_of, (question,))
        if kind == "error":
            raise result from None
        id, content = result
    headers = {"ETag": etag(id)}
    if content is None:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=JSON, headers=headers)


def read(request: Request, prefix: str, id: str) -> bytes:
    """The document of a kept answer whose id begins so.  Raises Refused, Unavailable."""
    content = store_of(request).results.get(id) if id.startswith(f"{prefix}_") else None
    if content is None:
        raise Refused("not-found", f"no answer {id} is kept; repeat the POST to compute it again")
    return content


def etag(id: str) -> str:
    """The entity tag of an answer: weak, since `cached` and the times of a search may differ."""
    return f'W/"{id}"'


def is_known(request: Request, id: str) -> bool:
    """Whether the caller already has the answer."""
    known = request.headers.get("if-none-match", "").split(",")
    return f'"{id}"' in {tag.strip().removeprefix("W/") for tag in known}


async def keep(request: Request, id: str, content: bytes) -> None:
    """Keep an answer if the store is available; it is sent in any case."""
    with suppress(Unavailable):
        await in_store(store_of(request).results.put, id, content)


def _refuse_other_question(request: Request, key: str, parsed: work.Identified) -> None:
    """Raise Mismatch where the key came before with another question."""
    store_of(request).keys.claim(request.state.caller, checked_key(key), parsed.digest, parsed.id)


def checked_key(key: str) -> str:
    """An Idempotency-Key as it may be kept.  Raises RequestError."""
    if len(key) > _MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        detail = f"must be printable, of at most {_MAX_KEY_LENGTH} characters"
        raise refuse("/Idempotency-Key", "bad_parameter", detail, key)
    return key


def _send(
    question: Question, id: str, cached: bool, content: bytes, spent: Spent | None = None
) -> Response:
    address = f"/v1{question.path}/{id}"
    links = {"self": address}
    if question.name == "plan":
        links |= {"candidates": f"{address}/candidates", "web": f"/plans/{id}"}
    members = {"id": id, "cached": cached, "links": links, "spent": spent and spent.document()}
    start = json.dumps(members, separators=(",", ":"))
    headers = {} if spent else {"ETag": etag(id), "Location": address}
    # The answer is a document of its own, with members: its own ones go before them.
    return Response(start[:-1].encode() + b"," + content[1:], media_type=JSON, headers=headers)
