"""Run the service until it is stopped: what `planner serve` does."""

from __future__ import annotations

import socket

import uvicorn
from fastapi import FastAPI

from api.app import create_app
from api.settings import Settings, SettingsError
from planner.problems import refuse
from planner.store import Store, Unavailable

GRACE_S = 10  # for calls that are under way when the service is to stop


def run(host: str | None, port: int | None) -> int:
    """Serve on the address of the settings, or on this one; the exit code.

    Raises RequestError where the settings are wrong or the address cannot be had.
    """
    try:
        settings = Settings.from_environment().listening(host, port)
    except SettingsError as error:
        raise refuse("", "settings", str(error)) from None
    config = uvicorn.Config(
        create_app(settings),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    with _listen(settings) as listener:
        _migrate(settings)
        _Server(config).run(sockets=[listener])
    return 0


def _migrate(settings: Settings) -> None:
    """Make the database ready; RequestError where it cannot be, before anybody is let in."""
    try:
        Store.open(settings.database_url).close()
    except Unavailable as error:
        raise refuse("", "database", f"the database cannot be used: {error}") from None


def _listen(settings: Settings) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM
        )[0]
        return socket.create_server(address[:2], family=family)
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
            print(f"The planner is at http://{host}:{port}  (stop it with Ctrl+C)", flush=True)
