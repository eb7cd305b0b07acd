"""Run the service until it is stopped: what `planner serve` does."""

from __future__ import annotations

import gc
import logging
import os
import socket
from typing import Any

import uvicorn

from api import fork_server
from api.http_workers import LISTENER, Workers
from api.settings import Settings, SettingsError
from planner.data_folder import data_folder
from planner.documents.problems import refuse
from planner.parent_process import die_with_parent

_KEEP_ALIVE_S = 30
_SHUTDOWN_TIMEOUT_S = 30  # limit on requests in progress when the service is told to stop
_CUT_SHORT_S = 1  # that limit where the database does not answer


def run(host: str | None, port: int | None, workers: int | None = None) -> int:
    """Serve on the address of the settings, or on this one; the exit code.

    workers: processes that speak HTTP; None: as the settings have it.

    Raises RequestError where the settings are wrong, or the store or the address cannot be had.
    """
    try:
        settings = Settings.from_environment().listening(host, port, workers)
    except SettingsError as error:
        raise refuse("", "settings", str(error)) from None
    if LISTENER in os.environ:
        die_with_parent()
        listener = socket.socket(fileno=int(os.environ[LISTENER]))
    else:
        listener = _listen(settings)
        if settings.workers > 1:
            with listener:
                _print_addresses(listener)
                return Workers(settings, listener).run()
    with listener:
        return _serve(settings, listener)


def _serve(settings: Settings, listener: socket.socket) -> int:
    fork_server.start()
    gc.disable()  # imported modules are never freed, so collecting among them wastes start-up time
    from api.app import create_app
    from api.log import JsonHandler
    from api.protocol import MAX_HEADER_BYTES, HeaderTimeoutProtocol
    from planner.running.store import Store, Unavailable

    try:  # also migrates the tables, before the first request
        store = Store.open(settings.database_url, settings.max_result_bytes)
    except Unavailable as error:
        raise refuse("", "store", f"the store cannot be opened: {error}") from None
    app = create_app(settings, store)
    gc.freeze()
    gc.enable()
    logging.getLogger().addHandler(JsonHandler())
    logging.getLogger("planner").setLevel(logging.INFO)  # the start and the end of each job
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="asyncio",  # as in the tests: "auto" takes uvloop wherever something installed it
        http=HeaderTimeoutProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # people.py reads them
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
    _Server(config).run(sockets=[listener])
    return 0


def _print_addresses(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    address = f"http://{host}:{port}"
    print(f"The planner is at {address}  (stop it with Ctrl+C)")
    print(f"  API   {address}/docs")
    print(f"  data  {data_folder('')}", flush=True)


def _listen(settings: Settings) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.create_server(address[:2], family=family)
        # Connections inherit it; asyncio sets it only on sockets that it made itself, and without
        # it the second part of an answer waits 40 ms for the caller to acknowledge the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        raise refuse("", "address", f"cannot listen on {where}: {error.strerror}") from None


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, and end event streams, which the shutdown would otherwise wait for.

        Where the database hangs, nothing is waited for: what it has of jobs is gone on with later.
        """
        from api.store_threads import answers_at_the_end, has_given_up

        app: Any = self.config.app
        app.state.stopping = True
        if not await answers_at_the_end(app.state.store):
            self.config.timeout_graceful_shutdown = _CUT_SHORT_S
        await super().shutdown(sockets)
        if has_given_up():
            os._exit(0)  # threads that wait for the database would hold the process

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the address."""
        await super().startup(sockets)
        for listener in sockets or ():
            if LISTENER not in os.environ:
                _print_addresses(listener)
        app: Any = self.config.app
        await app.state.searches.start()  # a process that warms up before the first search
