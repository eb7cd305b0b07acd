"""What worker processes compute for the service: answers to questions, and what it keeps of them.

Documents arrive here as JSON values: the process that serves HTTP reads nothing else of them.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from api.field_selection import chosen
from planner.answers.plans.answer_ids import answer_id
from planner.answers.plans.candidates import Candidates, csv_text
from planner.documents.field_selection import Fields
from planner.documents.service import Kind, SiteEntry, SiteList, SiteRights
from planner.evidence.uncertainty import site_storage as storage
from planner.learning.sites.posted_runs import answer_of
from planner.questions.question import Form, Question, resolved
from planner.running.jobs import documents as jobs
from planner.running.jobs.settings import JobSettings


class Sent(NamedTuple):
    """An answer as it is sent; file: what to call it."""

    content: bytes
    file: str = ""


class Identified(NamedTuple):
    """A question that was understood: the id of its answer, a digest of it, the request itself.

    The request is for another worker: its bytes, so that nobody between them reads it.
    """

    id: str
    digest: str
    request: bytes


def answer(
    question: Question,
    document: Any,
    parameters: dict[str, str | None],
    form: Form | None,
    fields: Fields,
) -> Sent:
    """The answer to a question, in a form of its own or as JSON, of which `fields` are wanted."""
    result = question.answered(question.parsed(document), **parameters)
    if form is None:
        return Sent(chosen(_json(result), fields))
    made = resolved(form.make)(result)
    return Sent(made.encode() if isinstance(made, str) else made, form.file.format(answer=result))


def identify(question: Question, document: Any) -> Identified:
    """The request in a document, and the id of its answer, which may be kept."""
    request = question.parsed(document)
    canonical = request.document()
    digest = hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()
    return Identified(answer_id(question.kept, canonical), digest, pickle.dumps(request))


def compute(question: Question, identified: Identified) -> tuple[bytes, bool]:
    """The answer to what was identified, and whether it still has that id.

    A site may have learned meanwhile, and that may be in the answer, or may not.
    """
    request = pickle.loads(identified.request)
    content = _json(question.answered(request))
    return content, answer_id(question.kept, request.document()) == identified.id


def candidate_page(listed: bytes, cursor: int, limit: int, as_table: bool) -> bytes:
    """Rows of a kept list of candidates."""
    page = Candidates.load(listed).page(cursor, limit)
    return csv_text(page).encode() if as_table else _json(page)


def checked_job(kind: Kind, document: Any, settings: JobSettings) -> jobs.JobRequest:
    """The request of a job, and its title."""
    return jobs.parse(kind, document, settings)


def site_list(rights: Mapping[str, SiteRights]) -> bytes:
    """The sites that the caller may read; rights: of all that have an owner."""
    rows = map(_entry, storage.names())
    owned = (
        row.model_copy(update={"owner": right.owner, "shared": right.shared})
        if (right := rights.get(row.name))
        else row
        for row in rows
    )
    return _json(SiteList(rows=tuple(owned)))


def site_answer(name: str) -> bytes | None:
    """What a site learned; None where there is no such site."""
    return _json(answer_of(name)) if name in storage.names() else None


def forget_site(name: str) -> bool:
    """Forget a site; whether there was one."""
    if known := name in storage.names():
        storage.forget(name)
    return known


def forget_run(name: str, run: str) -> None:
    """Forget a run of a site by its id or the start of it.  Raises RequestError."""
    storage.forget(name, run)


def _entry(name: str) -> SiteEntry:
    try:
        return SiteEntry(name=name, **storage.summary(name)._asdict())
    except ValueError as error:
        return SiteEntry(name=name, problem=str(error))


def _json(answer: BaseModel) -> bytes:
    return answer.model_dump_json().encode()
