"""Is the service alive, is it ready, and what has it done."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from api.problems import Refused, declare
from api.store_threads import storing
from planner.documents.service import Health, Readiness
from planner.running.store import Store, Unavailable
from planner.version import __version__

if TYPE_CHECKING:
    from planner.running.jobs.engine import Engine

router = APIRouter(tags=["health"])
_log = logging.getLogger(__name__)


@router.get("/healthz", responses=declare(403))
async def healthz() -> Health:
    """Whether the service is alive, also while it is computing."""
    return Health(version=__version__)


@router.get("/readyz", responses=declare(403, 503))
@storing
def readyz(request: Request) -> Readiness:
    """Whether the service can do all of its work: its store is writable, and jobs run.

    Jobs that an earlier server left are taken up beside this: until the job engine has started,
    jobs are accepted and wait.
    """
    store: Store = request.app.state.store
    try:
        store.servers.check_writable()
        orphans = store.jobs_without_server()
    except (
        Unavailable
    ) as error:  # why is for the log of whoever runs it, and no stranger's business
        _log.warning("not ready: %s", error)
        raise Refused("unavailable", "the store is not writable, or was lost") from None
    engine: Engine | None = request.app.state.engine
    if engine is not None and not engine.is_ready:
        raise Refused("unavailable", "the job engine is not running")
    return Readiness(version=__version__, jobs_without_server=orphans)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **declare(401, 403, 429),
    },
)
async def metrics(request: Request) -> Response:
    """Calls by method, route and status, and how long they took, for Prometheus."""
    return Response(request.app.state.metrics.text(), media_type=CONTENT_TYPE_LATEST)
