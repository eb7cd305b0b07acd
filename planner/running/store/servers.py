"""The servers that share the jobs, each alive until its lease runs out."""

from __future__ import annotations

import time
import uuid
from typing import Any

import sqlalchemy as sa

from planner.running.store.database import Database
from planner.running.store.tables import SERVERS


class Servers:
    """The servers that hold a lease.  Times are the database's, as clocks of machines differ."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def join(self, name: str, lease_s: float) -> None:
        """Register a server under a new name, with a lease."""
        with self._database.writing() as connection:
            row = {"name": name, "lease_until": self._clock() + lease_s}
            connection.execute(sa.insert(SERVERS).values(row))

    def renew(self, name: str, lease_s: float) -> bool:
        """Renew a lease; False if it has expired, and other servers take over the server's jobs."""
        alive = sa.update(SERVERS).where(SERVERS.c.name == name, ~self._is_dead())
        with self._database.writing() as connection:
            done = connection.execute(alive.values(lease_until=self._clock() + lease_s))
            return bool(done.rowcount)

    def leave(self, name: str) -> None:
        """End a lease, so that other servers take over its jobs at once."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(SERVERS).where(SERVERS.c.name == name))

    def alive(self) -> set[str]:
        """The names that hold a lease; other names never return."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(SERVERS).where(self._is_dead()))
            return set(connection.scalars(sa.select(SERVERS.c.name)))

    def check_writable(self) -> None:
        """Check that the database takes writes.  Raises Unavailable."""
        self._database.check()
        name = f"proof-{uuid.uuid4().hex}"
        with self._database.writing() as connection:
            connection.execute(sa.insert(SERVERS).values(name=name, lease_until=0.0))
            connection.execute(sa.delete(SERVERS).where(SERVERS.c.name == name))

    def _is_dead(self) -> Any:
        return SERVERS.c.lease_until < self._clock()

    def _clock(self) -> Any:
        if self._database.is_file:
            return sa.literal(time.time())
        return sa.func.extract("epoch", sa.func.clock_timestamp()).cast(sa.Double)
