"""How many calls each key has made at each server, so that a rate holds at all of them."""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa

from planner.running.store.database import Database
from planner.running.store.tables import CALLS

KEPT_S = 300.0


class Calls:
    """Totals of callers, by the process that counted them; forgotten some minutes after a call."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def share(self, source: str, totals: Mapping[str, int]) -> dict[tuple[str, str], int]:
        """Keep the totals of a process; return those of all others, by caller and process."""
        if totals:
            self._keep(source, totals)
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(CALLS).where(CALLS.c.source != source))
            return {(row.caller, row.source): row.total for row in rows}

    def _keep(self, source: str, totals: Mapping[str, int]) -> None:
        now = self._database.now()
        rows = [
            {"caller": caller, "source": source, "total": total, "counted_at": now}
            for caller, total in totals.items()
        ]
        with self._database.writing() as connection:
            connection.execute(
                sa.delete(CALLS).where(CALLS.c.counted_at < self._database.deletes_before(KEPT_S))
            )
            connection.execute(self._database.upsert(CALLS, rows, "caller", "source"))
