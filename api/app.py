"""The HTTP service: the planner's documents over HTTP, and nothing decided here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyio import to_thread
from fastapi import APIRouter, FastAPI

from api import docs, pages, problems, schema
from api.addresses import Addresses
from api.guard import Guard
from api.log import RequestLog
from api.methods import Methods
from api.metrics import Metrics
from api.pool import Pool
from api.routes import (
    bundles,
    catalog,
    comparisons,
    estimates,
    explanations,
    health,
    info,
    jobs,
    lints,
    models,
    plans,
    ranks,
    rl,
    saved_plans,
    sensitivities,
    sites,
    sizings,
    timelines,
)
from api.settings import Settings
from api.waiting import Waiting
from cost_models.catalog.local import cpu_cores
from planner.version import __version__

if TYPE_CHECKING:
    from planner.jobs.engine import Engine
    from planner.store import Store


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application, with its settings in `app.state.settings`."""
    settings = settings or Settings.from_environment()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = settings.max_concurrency
        searches = app.state.searches = Pool(
            settings.max_concurrency, settings.max_wait_s, patience=10, warm=True
        )
        # Hundreds of these come and go in a second, so whoever waits has a turn soon.  One process
        # more than cores computes while another one's answer is on its way.
        short = app.state.estimates = Pool(cpu_cores() + 1, 10 * settings.max_wait_s)
        store = app.state.store = await to_thread.run_sync(_open_store, settings)
        engine = app.state.engine = _engine(store, settings)
        await short.start()
        yield
        if engine is not None:
            await to_thread.run_sync(engine.stop)
        for pool in (searches, short):
            pool.close()
        store.close()

    app = FastAPI(
        title="parallel-planner",
        version=__version__,
        description="The fastest way to train a model on a cluster that fits, and why.",
        lifespan=lifespan,
        docs_url=None,  # the usual page loads its scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # pages.py sends it compressed
    )
    app.state.settings = settings
    app.state.metrics = Metrics()
    addresses = Addresses()
    # The last one added is the first that sees a call.
    app.add_middleware(Waiting)
    app.add_middleware(Guard, settings=settings)
    app.add_middleware(Methods, addresses=addresses)
    app.add_middleware(RequestLog, addresses=addresses, observe=app.state.metrics.observe)
    problems.install(app)
    v1 = APIRouter(prefix="/v1", responses=problems.declare(401, 403, 429))
    for routes in (
        plans,
        estimates,
        bundles,
        timelines,
        ranks,
        lints,
        sensitivities,
        sizings,
        rl,
        catalog,
        models,
        explanations,
        comparisons,
        info,
        jobs,
        saved_plans,
        sites,
    ):
        v1.include_router(routes.router)
        addresses.add(routes.router.routes, v1.prefix)
    app.include_router(v1)
    app.include_router(health.router)
    app.include_router(plans.pages)
    pages.install(app)
    docs.install(app)
    addresses.add([*health.router.routes, *plans.pages.routes, *app.routes])
    schema.describe(app)
    return app


def _engine(store: Store, settings: Settings) -> Engine | None:
    """What runs jobs, started; None where this service only takes them."""
    if settings.jobs.max_runs == 0:
        return None
    from planner.jobs.engine import Engine

    engine = Engine(store, settings.database_url, settings.jobs)
    engine.start()
    return engine


def _open_store(settings: Settings) -> Store:
    from planner.store import Store

    return Store.open(settings.database_url, settings.max_result_bytes)
