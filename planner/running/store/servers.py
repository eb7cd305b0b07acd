"""The servers that share the jobs, each alive while it renews its lease.

No clock decides whether a lease has expired, since clocks differ and jump: every observer measures,
by its own monotonic clock, how long it has seen a lease unchanged.
"""

from __future__ import annotations

import time
import uuid
from typing import NamedTuple

import sqlalchemy as sa

from planner.running.store.database import Database
from planner.running.store.tables import SERVERS


class _Seen(NamedTuple):
    """A lease that was not renewed since a time of this process's monotonic clock."""

    lease_until: float
    since_s: float


class Servers:
    """The servers that hold a lease, as seen by this process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[str, _Seen] = {}

    def join(self, name: str, lease_s: float) -> None:
        """Register a server under a new name, with a lease."""
        with self._database.writing() as connection:
            row = {"name": name, "lease_s": lease_s, "lease_until": self._clock() + lease_s}
            connection.execute(sa.insert(SERVERS).values(row))

    def renew(self, name: str, lease_s: float) -> bool:
        """Renew a lease; False if it has ended, and other servers take over the server's jobs."""
        # Releases before 0006 compare lease_until with the clock; here it only has to change.
        renewed = sa.update(SERVERS).where(SERVERS.c.name == name)
        with self._database.writing() as connection:
            done = connection.execute(renewed.values(lease_until=self._clock() + lease_s))
            return bool(done.rowcount)

    def leave(self, name: str) -> None:
        """End a lease, so that other servers take over its jobs at once."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(SERVERS).where(SERVERS.c.name == name))

    def alive(self, default_lease_s: float) -> set[str]:
        """The names that hold a lease; other names never return.

        A lease that this process has seen unchanged for its length is ended here.
        default_lease_s: the length where a server of a release before 0006 does not say.
        """
        with self._database.writing() as connection:
            rows = {row.name: row for row in connection.execute(sa.select(SERVERS))}
            now_s = time.monotonic()
            before, self._seen = self._seen, {}
            for name, row in rows.items():
                seen = before.get(name)
                if seen is None or seen.lease_until != row.lease_until:
                    seen = _Seen(row.lease_until, now_s)
                if now_s - seen.since_s <= (row.lease_s or default_lease_s):
                    self._seen[name] = seen
            for name in rows.keys() - self._seen.keys():
                unchanged = SERVERS.c.lease_until == rows[name].lease_until
                connection.execute(sa.delete(SERVERS).where(SERVERS.c.name == name, unchanged))
            return set(connection.scalars(sa.select(SERVERS.c.name)))

    def expected_alive(self) -> set[str]:
        """The names whose lease has not expired by the database's clock, for people to read."""
        alive = sa.select(SERVERS.c.name).where(SERVERS.c.lease_until >= self._clock())
        with self._database.reading() as connection:
            return set(connection.scalars(alive))

    def check_writable(self) -> None:
        """Check that the database takes writes.  Raises Unavailable."""
        self._database.check()
        name = f"proof-{uuid.uuid4().hex}"
        with self._database.writing() as connection:
            connection.execute(sa.insert(SERVERS).values(name=name, lease_until=0.0))
            connection.execute(sa.delete(SERVERS).where(SERVERS.c.name == name))

    def _clock(self) -> sa.ColumnElement[float]:
        """The database's clock, which releases before 0006 compare leases with."""
        if self._database.is_file:
            return sa.literal(time.time())
        return sa.func.extract("epoch", sa.func.clock_timestamp()).cast(sa.Double)
