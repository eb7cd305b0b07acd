"""Kept answers by the digest of their request: the same request has the same id."""

from __future__ import annotations

import sqlalchemy as sa

from planner.running.store.database import Database
from planner.running.store.tables import RESULTS


class Results:
    """Answers as they were sent, within a limit on their total size."""

    def __init__(self, database: Database, most_bytes: int) -> None:
        self._database = database
        self._most_bytes = most_bytes

    def get(self, id: str) -> bytes | None:
        """The answer with this id, where it is (still) kept."""
        with self._database.reading() as connection:
            content = connection.scalar(sa.select(RESULTS.c.content).where(RESULTS.c.id == id))
        return None if content is None else bytes(content)

    def put(self, id: str, content: bytes) -> None:
        """Keep an answer; the oldest others are deleted once all together exceed the limit."""
        if len(content) > self._most_bytes:
            return
        row = {
            "id": id, "content": content, "bytes": len(content), "stored_at": self._database.now(),
        }  # fmt: skip
        # The sum of what is newer: past the bound with this row, a row goes.
        newer = sa.func.sum(RESULTS.c.bytes).over(order_by=(RESULTS.c.stored_at.desc(),))
        sums = sa.select(RESULTS.c.id, newer.label("bytes")).subquery()
        old = sa.select(sums.c.id).where(sums.c.bytes > self._most_bytes)
        with self._database.writing() as connection:
            connection.execute(self._database.upsert(RESULTS, row, "id"))
            connection.execute(sa.delete(RESULTS).where(RESULTS.c.id.in_(old)))
