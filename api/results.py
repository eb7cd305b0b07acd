"""Kept answers: the same request to the same version has the same id, and is answered once.

The id is the entity tag as well; a request that names it is not computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import Path, Request, Response
from pydantic import BaseModel

from api.budget import Spent
from api.dependencies import CallPool
from api.field_selection import Fields, chosen
from api.negotiation import JSON
from api.problems import Refused
from api.store_threads import in_store
from planner.answers.answer_ids import answer_id
from planner.documents.answer import PlanAnswer
from planner.documents.problems import refuse
from planner.mixed_clusters.answer import MixedAnswer
from planner.reinforcement.documents import ReinforcementAnswer
from planner.sensitivities.documents import SensitivityAnswer
from planner.sizing.answer import SizingAnswer
from planner.store import Store, Unavailable

Kind = Literal["plans", "sizings", "sensitivities", "rl"]
_FOR_AN_HOUR = "private, max-age=3600"
_LONGEST_KEY = 255
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


class KeptPlan(StoredAnswer, PlanAnswer):
    """The answer to POST /v1/plans."""


class KeptMixedPlan(StoredAnswer, MixedAnswer):
    """The answer to POST /v1/plans where nodes differ."""


class KeptSizing(StoredAnswer, SizingAnswer):
    """The answer to POST /v1/sizings."""


class KeptSensitivity(StoredAnswer, SensitivityAnswer):
    """The answer to POST /v1/sensitivities."""


class KeptStep(StoredAnswer, ReinforcementAnswer):
    """The answer to POST /v1/rl."""


async def answer(
    request: Request,
    searches: CallPool,
    kind: Kind,
    question: Mapping[str, Any],
    compute: Callable[..., BaseModel],
    *asked: Any,
    fields: Fields = (),
) -> Response:
    """The kept answer to a resolved question, or else what `compute` makes of `asked`.

    fields: what to send of it.
    """
    id = answer_id(kind[:2], question)
    if key := request.headers.get("idempotency-key"):
        await in_store(_claim, request, key, question, id)
    if is_known(request, id):
        return Response(status_code=304, headers={"ETag": etag(id)})
    content = await in_store(_find, request, id)
    cached = content is not None
    if content is None:
        content = await searches.answer(compute, *asked)
        spent: Spent | None = request.state.spent
        # A larger budget finds more; and what a site learned meanwhile may be in it, or may not.
        if spent is None and answer_id(kind[:2], question) == id:
            await in_store(keep, request, id, content)
        return _send(kind, id, cached, chosen(content, fields), spent)
    return _send(kind, id, cached, chosen(content, fields))


async def stored_answer(request: Request, kind: Kind, id: str, fields: Fields = ()) -> Response:
    """The answer with this id.  Raises Refused where it is not kept, or no longer."""
    content = await in_store(read, request, kind, id)
    if is_known(request, id):
        return Response(status_code=304, headers={"ETag": etag(id)})
    response = _send(kind, id, True, chosen(content, fields))
    response.headers["Cache-Control"] = _FOR_AN_HOUR
    return response


def read(request: Request, kind: Kind, id: str) -> bytes:
    """The document of a kept answer.  Raises Refused, Unavailable."""
    content = _store(request).results.get(id) if id.startswith(f"{kind[:2]}_") else None
    if content is None:
        detail = f"no answer {id} is kept; repeat the POST to compute it again"
        raise Refused("not-found", detail)
    return content


def etag(id: str) -> str:
    """The entity tag of an answer: weak, since `cached` and the times of a search may differ."""
    return f'W/"{id}"'


def is_known(request: Request, id: str) -> bool:
    """Whether the caller already has the answer."""
    known = request.headers.get("if-none-match", "").split(",")
    return f'"{id}"' in {tag.strip().removeprefix("W/") for tag in known}


def keep(request: Request, id: str, content: bytes) -> None:
    """Keep an answer if the store is available; it is sent in any case."""
    try:
        _store(request).results.put(id, content)
    except Unavailable:
        return


def _find(request: Request, id: str) -> bytes | None:
    try:
        return _store(request).results.get(id)
    except Unavailable:
        return None


def _claim(request: Request, key: str, question: Mapping[str, Any], id: str) -> None:
    """Raise Mismatch where the key came before with another question."""
    content = json.dumps(question, sort_keys=True).encode()
    fingerprint = hashlib.sha256(content).hexdigest()
    _store(request).keys.claim(request.state.caller, checked_key(key), fingerprint, id)


def checked_key(key: str) -> str:
    """An Idempotency-Key as it may be kept.  Raises RequestError."""
    if len(key) > _LONGEST_KEY or not key.isascii() or not key.isprintable():
        detail = f"must be printable, of at most {_LONGEST_KEY} characters"
        raise refuse("/Idempotency-Key", "bad_parameter", detail, key)
    return key


def _send(
    kind: Kind, id: str, cached: bool, content: bytes, spent: Spent | None = None
) -> Response:
    address = f"/v1/{kind}/{id}"
    links = {"self": address}
    if kind == "plans":
        links |= {"candidates": f"{address}/candidates", "web": f"/plans/{id}"}
    told = {"id": id, "cached": cached, "links": links, "spent": spent and spent.document()}
    own = json.dumps(told, separators=(",", ":"))
    headers = {} if spent else {"ETag": etag(id), "Location": address}
    # The answer is a document of its own, with members: its own ones go before them.
    return Response(own[:-1].encode() + b"," + content[1:], media_type=JSON, headers=headers)


def _store(request: Request) -> Store:
    store: Store = request.app.state.store
    return store
