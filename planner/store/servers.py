"""The servers that share the jobs, each alive until its lease runs out."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from planner.store.database import Database
from planner.store.tables import SERVERS


class Servers:
    """Who is alive.  Times are the database's own, so that clocks of machines may differ."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def join(self, name: str, lease_s: float) -> None:
        """A server that is new, under a name that none had before."""
        with self._database.writing() as connection:
            row = {"name": name, "lease_until": self._clock() + lease_s}
            connection.execute(sa.insert(SERVERS).values(row))

    def renew(self, name: str, lease_s: float) -> bool:
        """Prolong a lease; False where it has run out: then all that the server ran is others'."""
        alive = sa.update(SERVERS).where(SERVERS.c.name == name, ~self._dead())
        with self._database.writing() as connection:
            done = connection.execute(alive.values(lease_until=self._clock() + lease_s))
            return bool(done.rowcount)

    def leave(self, name: str) -> None:
        """End a lease, so that others take over at once what the server had."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(SERVERS).where(SERVERS.c.name == name))

    def alive(self) -> set[str]:
        """Who holds a lease; all others never come back under their name."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(SERVERS).where(self._dead()))
            return set(connection.scalars(sa.select(SERVERS.c.name)))

    def _dead(self) -> Any:
        return SERVERS.c.lease_until < self._clock()

    def _clock(self) -> Any:
        if self._database.is_file:
            return sa.literal(time.time())
        return sa.func.extract("epoch", sa.func.clock_timestamp()).cast(sa.Double)
