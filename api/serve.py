"""Run the service until it is stopped: what `planner serve` does."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.app import create_app
from api.log import JsonHandler
from api.settings import Settings, SettingsError
from planner.data_folder import data_folder
from planner.problems import refuse
from planner.store import Store, Unavailable

_HEAD_S = 10.0  # that the head of a call may take to arrive
_HEAD_BYTES = 32_768
_KEEP_ALIVE_S = 30
_STOPPING_S = 30  # for calls that run when the service is told to stop


def run(host: str | None, port: int | None) -> int:
    """Serve on the address of the settings, or on this one; the exit code.

    Raises RequestError where the settings are wrong, or the store or the address cannot be had.
    """
    try:
        settings = Settings.from_environment().listening(host, port)
    except SettingsError as error:
        raise refuse("", "settings", str(error)) from None
    try:  # also brings the tables up to date, before anybody calls
        Store.open(settings.database_url, settings.max_result_bytes).close()
    except Unavailable as error:
        raise refuse("", "store", f"the store cannot be opened: {error}") from None
    logging.getLogger().addHandler(JsonHandler())
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        http=Patient,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=settings.trusted_proxies,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOPPING_S,
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )
    with _listen(settings) as listener:
        _Server(config).run(sockets=[listener])
    return 0


class Patient(H11Protocol):
    """HTTP/1.1 that hangs up on who does not get a call's head out in time."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A caller is there: the time of the first head runs."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Bytes of a head, or of a body, which has a time of its own."""
        if self._waiting is None and self._between_calls():
            self._wait()
        super().data_received(data)
        if not self._between_calls():
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _between_calls(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(_HEAD_S, self._hang_up)

    def _hang_up(self) -> None:
        self.transport.close()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


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
        """Have streams end, which would else be waited for, and stop."""
        app: FastAPI = self.config.app  # type: ignore[assignment]
        app.state.stopping = True
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say where."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            host = f"[{host}]" if ":" in host else host
            address = f"http://{host}:{port}"
            print(f"The planner is at {address}  (stop it with Ctrl+C)")
            print(f"  API   {address}/docs")
            print(f"  data  {data_folder('')}", flush=True)
        app: FastAPI = self.config.app  # type: ignore[assignment]
        await app.state.searches.start()  # it gets ready for the first search meanwhile
