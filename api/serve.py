"""Run the service until it is stopped: what `planner serve` does."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from api import pool_server
from api.settings import Settings, SettingsError
from api.workers import LISTENER, Workers
from planner.data_folder import data_folder
from planner.documents.problems import refuse
from planner.validate.agent import die_with_parent

_HEADER_TIMEOUT_S = 10.0  # for the headers of a request to arrive
_MOST_HEADER_BYTES = 32_768
_READ_TIMEOUT_S = 20.0  # for a client that reads nothing of its response
_KEEP_ALIVE_S = 30
_SHUTDOWN_TIMEOUT_S = 30  # for requests in progress when the service is told to stop


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
                _say_where(listener)
                return Workers(settings, listener).run()
    with listener:
        return _serve(settings, listener)


def _serve(settings: Settings, listener: socket.socket) -> int:
    pool_server.start()
    gc.disable()  # imported modules are never freed, so collecting among them wastes start-up time
    from api.app import create_app
    from api.log import JsonHandler
    from planner.store import Store, Unavailable

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
        http=HeaderTimeoutProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
        h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
    )
    _Server(config).run(sockets=[listener])
    return 0


def _say_where(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    address = f"http://{host}:{port}"
    print(f"The planner is at {address}  (stop it with Ctrl+C)")
    print(f"  API   {address}/docs")
    print(f"  data  {data_folder('')}", flush=True)


class HeaderTimeoutProtocol(H11Protocol):
    """HTTP/1.1 that closes connections whose headers don't arrive in time.

    It also closes those whose client stops reading the response.
    """

    _header_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client has connected: start the timer of its first headers."""
        self._close_an_idle_connection_at_the_limit()
        super().connection_made(transport)
        self._start_header_timer()

    def pause_writing(self) -> None:
        """The client does not read: start the timer of its reading."""
        super().pause_writing()
        self._read_timer = self.loop.call_later(_READ_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again: stop the timer of its reading."""
        self._stop_read_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Time the headers alone; the body has a limit of its own (PLANNER_MAX_BODY_S)."""
        if self._header_timer is None and self._is_idle():
            self._start_header_timer()
        super().data_received(data)
        if not self._is_idle():
            self._stop_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed: stop both timers."""
        self._stop_header_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def _close_an_idle_connection_at_the_limit(self) -> None:
        others: set[Any] = self.connections
        if self.config.limit_concurrency and len(others) >= self.config.limit_concurrency - 1:
            idle = next((one for one in others if one._is_idle()), None)
            if idle is not None:
                idle.transport.abort()
                others.discard(idle)

    def _is_idle(self) -> bool:
        """Whether no request is being answered on this connection."""
        return self.cycle is None or self.cycle.response_complete

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(_HEADER_TIMEOUT_S, self._close)

    def _close(self) -> None:
        self.transport.close()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


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
        """Stop, and end event streams, which the shutdown would otherwise wait for."""
        app: Any = self.config.app
        app.state.stopping = True
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and print the address."""
        await super().startup(sockets)
        for listener in sockets or ():
            if LISTENER not in os.environ:
                _say_where(listener)
        app: Any = self.config.app
        await app.state.searches.start()  # a process that warms up before the first search
