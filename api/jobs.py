"""Jobs in the service's responses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from anyio import sleep
from fastapi import Request

from api.store_threads import while_following
from planner.documents.service import OVER, JobAnswer, JobPage, JobRow, Kind
from planner.running.store import Store
from planner.running.store.jobs import Job

_POLL_S = 0.4  # time between two looks for new events
_SILENCE_S = 15.0  # time after which a comment shows that the stream is open


def answer(job: Job) -> JobAnswer:
    """The whole document of a job."""
    return JobAnswer.of(job, **_links_and_times(job))


def page(jobs: list[Job], limit: int, visible: Callable[[Job], bool]) -> JobPage:
    """A page of those of at most `limit` jobs that are visible; `jobs` has one more if there is a
    next page.
    """
    rows = tuple(JobRow.of(job, **_links_and_times(job)) for job in jobs[:limit] if visible(job))
    return JobPage(rows=rows, next=jobs[limit - 1].id if len(jobs) > limit else None)


def _links_and_times(job: Job) -> dict[str, Any]:
    times = {
        name: None if at is None else datetime.fromtimestamp(at, UTC)
        for name in ("created_at", "started_at", "finished_at")
        for at in (getattr(job, name),)
    }
    url = f"/v1/{job.kind}/{job.id}"
    links = {"self": url} | {name: f"{url}/{name}" for name in ("events", "logs", "cancel")}
    return {**times, "links": links}


def fingerprint(kind: Kind, document: Any) -> str:
    """A digest that is equal for two calls with the same request."""
    text = json.dumps([kind, document], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


async def events(request: Request, store: Store, id: str, after: int) -> AsyncIterator[str]:
    """Server-sent events of a job after the event with number `after`, until the job is over."""
    silent_s = 0.0
    yield "retry: 1000\n\n"
    while not getattr(request.app.state, "stopping", False):
        batch = await while_following(store.jobs.events, id, after)
        for event in batch:
            data = json.dumps(event.data)
            yield f"id: {event.number}\nevent: {event.event}\ndata: {data}\n\n"
            after = event.number
        if batch and batch[-1].event == "done":
            return
        if not batch:
            job = await while_following(store.jobs.get, id)
            if job is None or job.state in OVER:  # the caller has received all events before
                return
            silent_s += _POLL_S
            if silent_s > _SILENCE_S:
                yield ": still here\n\n"
        silent_s = 0.0 if batch or silent_s > _SILENCE_S else silent_s
        await sleep(_POLL_S)
