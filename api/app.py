"""The HTTP service: the planner's documents over HTTP; no planning logic lives here."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from anyio import create_task_group, sleep, to_thread
from fastapi import APIRouter, FastAPI
from fastapi.middleware.gzip import GZipMiddleware

from api import docs, problems, web_files
from api.access.guard import Guard, Rates
from api.access.people import Proxies
from api.batches import Batches
from api.fair_limit import FairLimit
from api.head_and_options import Methods
from api.log import RequestLog
from api.metrics import Metrics
from api.openapi import schema
from api.pool import Pool, Worker
from api.pool_worker import estimates as estimates_of
from api.pool_worker import serve
from api.progress_events import Waiting
from api.route_templates import Addresses
from api.routes import (
    accuracy,
    catalog,
    estimates,
    health,
    info,
    jobs,
    plans,
    questions,
    saved_plans,
    sites,
)
from api.settings import Settings
from api.store_threads import answers_at_the_end, in_store
from cost_models.catalog.local import cpu_cores
from planner.running.store import Unavailable
from planner.version import __version__

if TYPE_CHECKING:
    from planner.running.jobs.engine import Engine
    from planner.running.store import Store

_THREADS = 16  # for what needs neither a process nor the store
_WATCH_S = 5.0
_SHARE_S = 1.0
_GZIP_LEVEL = 4  # a plan to a tenth, in a third of the time of the usual 9
_V1 = (plans, catalog, info, jobs, saved_plans, sites, accuracy)


def create_app(
    settings: Settings | None = None, store: Store | None = None, worker: Worker = serve
) -> FastAPI:
    """The application, with its settings in `app.state.settings`; store: an open one.

    worker: what the processes run that compute.
    """
    settings = settings or Settings.from_environment()
    rates = None
    if settings.rate:
        rates = Rates(settings.rate, [key.sha256 for key in settings.keys])
    app = FastAPI(
        title="parallel-planner",
        version=__version__,
        description="The fastest way to train a model on a cluster that fits, and why.",
        lifespan=partial(_lifespan, opened=store, rates=rates, worker=worker),
        docs_url=None,  # the usual page loads its scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # web_files.py sends it compressed
        telemetry={"auto_configure": True},  # where OTEL_EXPORTER_OTLP_ENDPOINT says to
    )
    app.state.settings = settings
    app.state.metrics = Metrics()
    app.state.addresses = addresses = Addresses()
    # The last one added is the first that sees a call.
    app.add_middleware(Waiting)
    app.add_middleware(GZipMiddleware, minimum_size=1_000, compresslevel=_GZIP_LEVEL)
    app.add_middleware(Guard, settings=settings, rates=rates)
    app.add_middleware(Methods, addresses=addresses)
    app.add_middleware(RequestLog, addresses=addresses, observe=app.state.metrics.observe)
    if settings.trusted_proxies:
        app.add_middleware(Proxies, trusted_hosts=settings.trusted_proxies)
    problems.install(app)
    _add_routes(app, addresses)
    schema.describe(app)
    return app


def _add_routes(app: FastAPI, addresses: Addresses) -> None:
    v1 = APIRouter(prefix="/v1", responses=problems.declare(401, 403, 429))
    for router in (*questions.routers(), *(routes.router for routes in _V1)):
        v1.include_router(router)
        addresses.add(router.routes, v1.prefix)
    app.router.routes.append(estimates.Plain("/v1/estimates"))
    app.include_router(v1)
    app.include_router(health.router)
    app.include_router(plans.pages)
    web_files.install(app)
    docs.install(app)
    addresses.add([*health.router.routes, *plans.pages.routes, *app.routes])


@asynccontextmanager
async def _lifespan(
    app: FastAPI, opened: Store | None, rates: Rates | None, worker: Worker
) -> AsyncIterator[None]:
    """What the application has while it serves: pools, the store, and what runs beside calls."""
    settings: Settings = app.state.settings
    to_thread.current_default_thread_limiter().total_tokens = _THREADS
    pools = _pools(settings, worker)
    for name, pool in pools.items():
        setattr(app.state, name, pool)
    store = await to_thread.run_sync(_open_store, settings, opened)
    app.state.store = store
    app.state.engine = None
    async with create_task_group() as tasks:
        tasks.start_soon(_run_jobs, app)
        tasks.start_soon(pools["estimates"].start)
        tasks.start_soon(_report_load, app, pools)
        if rates is not None and settings.keys:
            tasks.start_soon(_share_rates, store, rates)
        yield
        tasks.cancel_scope.cancel()
    if app.state.engine is not None:
        answers = await answers_at_the_end(store)
        await to_thread.run_sync(app.state.engine.stop, answers)
    for pool in pools.values():
        pool.close()
    store.close()


def _pools(settings: Settings, worker: Worker) -> dict[str, Pool]:
    """The worker pools by kind of work; a long search takes no place from short questions."""
    # Callers are told apart by their keys alone: behind one address there may be many.
    shared, wait_s = settings.tells_apart, settings.max_wait_s
    limit = partial(FairLimit, shared=shared)
    own_cores = cpu_cores() // settings.workers
    searches = limit(settings.max_concurrency, wait_s)
    return {
        "searches": Pool(searches, worker, nice=10, warm=bool(settings.warm_up)),
        "brief": Pool(limit(settings.max_concurrency, wait_s), worker, nice=5),
        # Hundreds of these come and go in a second, so whoever waits has a turn soon.  A caller has
        # as many processes as cores: with more of them batches are smaller, and cost more each.
        "estimates": Batches(limit(own_cores + shared, 10 * wait_s), estimates_of, worker),
    }


async def _report_load(app: FastAPI, pools: Mapping[str, Pool]) -> None:
    """Note for /metrics, again and again, how full the service is."""
    metrics: Metrics = app.state.metrics
    store: Store = app.state.store
    while True:
        for name, pool in pools.items():
            metrics.see_places(name, pool)
        with suppress(Unavailable):
            metrics.see_jobs(*await in_store(store.jobs.counts))
        await sleep(_WATCH_S)


async def _share_rates(store: Store, rates: Rates) -> None:
    """Count calls of a key at other servers, again and again."""
    share = partial(in_store, store.calls.share, uuid.uuid4().hex)
    while True:
        with suppress(Unavailable):
            await rates.exchange(share)
        await sleep(_SHARE_S)


async def _run_jobs(app: FastAPI) -> None:
    """Have `state.engine` run jobs, where this service does; it imports a lot, so beside calls."""
    settings: Settings = app.state.settings
    if settings.jobs.max_runs:
        app.state.engine = await to_thread.run_sync(_engine, app.state.store, settings)
        app.state.engine.start()


def _engine(store: Store, settings: Settings) -> Engine:
    from planner.running.jobs.engine import Engine

    return Engine(store, settings.database_url, settings.jobs)


def _open_store(settings: Settings, store: Store | None) -> Store:
    from planner.running.store import Store

    return store or Store.open(settings.database_url, settings.max_result_bytes)
