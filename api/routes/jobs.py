"""Jobs: what takes long is queued, followed, cancelled, and kept with its result."""

# No postponed annotations: FastAPI could not resolve those that name what is local to a function.

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from api import work
from api.access.sites import claim_or_check, visible_jobs
from api.dependencies import Body, Brief, check_owner
from api.jobs import answer, events, fingerprint, page
from api.log import audit
from api.openapi.schema import request_body
from api.problems import Refused, declare
from api.settings import Settings
from api.store_threads import in_store, store_of, storing
from planner.documents.service import KINDS, JobAnswer, JobPage, Kind, State
from planner.questions.examples import examples
from planner.running.jobs.documents import taught_by
from planner.running.store import Store
from planner.running.store.jobs import Job, NotCancellable, QueueFull, StillRunning

RETRY_AFTER_S = 10
router = APIRouter(tags=["jobs"])


async def _store(request: Request) -> Store:
    return store_of(request)


Kept = Annotated[Store, Depends(_store)]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(max_length=64, description="`next` of the page before")]
Key = Annotated[str | None, Header(min_length=1, max_length=255, pattern=r"^[ -~]+$")]
After = Annotated[str | None, Header(max_length=18, pattern="^[0-9]*$")]


@router.get("/jobs", responses=declare(422, 503))
@storing
def jobs(
    request: Request,
    store: Kept,
    kind: Annotated[Kind | None, Query()] = None,
    state: Annotated[State | None, Query()] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JobPage:
    """Jobs of all kinds, the newest first; of other callers those that this one may see."""
    found = store.jobs.page(limit + 1, kind=kind, state=state, after=cursor)
    return page(found, limit, visible_jobs(request))


def _routes(kind: Kind) -> APIRouter:
    """The routes of one kind."""
    api = APIRouter(prefix=f"/{kind}", tags=["jobs", kind])

    @storing
    def find_job(id: str, request: Request, store: Kept) -> Job:
        job = store.jobs.get(id[:64])
        if job is None or job.kind != kind or not visible_jobs(request)(job):
            raise Refused("not-found", f"no such job among {kind}")
        return job

    FoundJob = Annotated[Job, Depends(find_job)]

    def owned(request: Request, job: FoundJob) -> Job:
        check_owner(request, job.owner)
        return job

    _add_start(api, kind)
    _add_reads(api, kind, find_job)
    _add_follow(api, kind, find_job)
    _add_changes(api, kind, owned)
    return api


def _add_start(api: APIRouter, kind: Kind) -> None:
    """Add the route that queues a job."""

    @api.post(
        "",
        status_code=202,
        response_model=JobAnswer,
        responses=declare(400, 408, 413, 415, 422, 503, 504),
        openapi_extra=request_body(examples(kind), SCHEMAS[kind]),
        name=f"start {kind}",
    )
    async def start(
        document: Body, request: Request, response: Response, store: Kept, brief: Brief,
        idempotency_key: Key = None,
    ) -> JobAnswer:  # fmt: skip
        settings: Settings = request.app.state.settings
        checked = await brief.run(work.checked_job, kind, document, settings.jobs)
        if site := taught_by(kind, checked.document):
            await claim_or_check(request, site)
        create = partial(
            store.jobs.create, kind, checked.document, title=checked.title,
            most_waiting=settings.jobs.max_queued_jobs, caller=request.state.caller,
            owner=request.state.key.name,
            key=idempotency_key, fingerprint=fingerprint(kind, document),
        )  # fmt: skip
        try:
            job, new = await in_store(create)
        except QueueFull as error:
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            raise Refused("queue-full", str(error), headers) from None
        if new and request.app.state.engine is not None:
            request.app.state.engine.wake()
        if new:
            audit(request, "start", job.id)
        response.headers["Location"] = f"/v1/{kind}/{job.id}"
        return answer(job)

    start.__doc__ = DOING[kind]


def _add_reads(api: APIRouter, kind: Kind, find_job: Callable[..., Any]) -> None:
    """Add the list of jobs, and one of them; find_job: the dependency that looks it up."""
    FoundJob = Annotated[Job, Depends(find_job)]

    @api.get("", responses=declare(422, 503), name=f"list {kind}")
    @storing
    def some(
        request: Request, store: Kept, state: Annotated[State | None, Query()] = None,
        limit: Limit = 50, cursor: Cursor = None,
    ) -> JobPage:  # fmt: skip
        """Jobs of this kind, the newest first; of other callers those that this one may see."""
        found = store.jobs.page(limit + 1, kind=kind, state=state, after=cursor)
        return page(found, limit, visible_jobs(request))

    @api.get("/{id}", responses=declare(404, 503), name=f"get {kind}")
    @storing
    def get(job: FoundJob) -> JobAnswer:
        """Where a job is, and its result when it is over."""
        return answer(job)


def _add_follow(api: APIRouter, kind: Kind, find_job: Callable[..., Any]) -> None:
    """Add the events and the log of a job."""
    FoundJob = Annotated[Job, Depends(find_job)]

    @api.get(
        "/{id}/events",
        response_class=StreamingResponse,
        responses=declare(404, 422, 503) | _STREAM,
        name=f"follow {kind}",
    )
    async def follow(
        request: Request, job: FoundJob, store: Kept, last_event_id: After = None
    ) -> StreamingResponse:
        """Its events as they come: `progress`, `log`, and `done` as the last.

        With Last-Event-ID those behind that one.
        """
        stream = events(request, store, job.id, int(last_event_id or 0))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream, headers=headers, media_type="text/event-stream")

    @api.get(
        "/{id}/logs",
        response_class=PlainTextResponse,
        responses=declare(404, 503),
        name=f"log of {kind}",
    )
    @storing
    def logs(job: FoundJob, store: Kept) -> str:
        """What it and its processes said, a line each."""
        entries = store.jobs.events(job.id)
        return "".join(f"{entry.data['text']}\n" for entry in entries if entry.event == "log")


def _add_changes(api: APIRouter, kind: Kind, owned: Callable[..., Any]) -> None:
    """Add what a job's owner alone may do to it; owned: the dependency that checks that."""
    OwnJob = Annotated[Job, Depends(owned)]

    @api.post(
        "/{id}/cancel", status_code=202, responses=declare(404, 409, 503), name=f"cancel {kind}"
    )
    @storing
    def cancel(request: Request, job: OwnJob, store: Kept) -> JobAnswer:
        """Have it stop, all its processes with it."""
        audit(request, "cancel", job.id)
        try:
            return answer(store.jobs.cancel(job.id) or job)
        except NotCancellable as error:
            raise Refused("not-cancellable", str(error)) from None

    @api.delete("/{id}", status_code=204, responses=declare(404, 409, 503), name=f"delete {kind}")
    @storing
    def delete(request: Request, job: OwnJob, store: Kept) -> None:
        """Forget a job that is over, with its result."""
        audit(request, "delete", job.id)
        try:
            store.jobs.delete(job.id)
        except StillRunning as error:
            raise Refused("conflict", str(error)) from None


DOING: dict[Kind, str] = {
    "validations": "Train with the plan for a few steps on the service's machine, and hold time, "
    "memory and, if asked, gradients against the estimate.",
    "calibrations": "Measure kernels and links of the service's machine; an efficiency profile to "
    "plan with.  Without a model and a plan the full set of sizes.",
    "dryruns": "Trace ranks of the plan at full scale without a GPU, and compare with the "
    "estimate.",
    "sweeps": "Ask every request of a grid.",
}
SCHEMAS: dict[Kind, str] = {
    "validations": "ValidationRequest",
    "calibrations": "CalibrationRequest",
    "dryruns": "DryrunRequest",
    "sweeps": "SweepRequest",
}
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {}}}}  # of an event: any
}
for _kind in KINDS:
    router.routes += _routes(_kind).routes  # an included router would hide their addresses
