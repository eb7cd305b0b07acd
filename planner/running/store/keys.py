"""Idempotency keys: the same key from the same caller returns the same answer."""

from __future__ import annotations

import sqlalchemy as sa

from planner.running.store.database import Database
from planner.running.store.tables import KEYS

KEPT_S = 86_400.0


class Mismatch(ValueError):
    """The key was used before with another request."""


class Keys:
    """Which answer each caller's keys stand for; they are forgotten after a day."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, owner: str, key: str, fingerprint: str, answer_id: str) -> str:
        """The id of the key's answer: this one where the key is new.  Raises Mismatch."""
        with self._database.writing() as connection:
            return claim(self._database, connection, owner, key, fingerprint, answer_id)


def claim(
    database: Database,
    connection: sa.Connection,
    owner: str,
    key: str,
    fingerprint: str,
    answer_id: str,
) -> str:
    """As Keys.claim, in the transaction of whatever is done under the key."""
    row = {
        "owner": owner, "key": key, "fingerprint": fingerprint, "answer_id": answer_id,
        "made_at": database.now(),
    }  # fmt: skip
    connection.execute(sa.delete(KEYS).where(KEYS.c.made_at < database.deletes_before(KEPT_S)))
    connection.execute(database.insert(KEYS, row).on_conflict_do_nothing())
    query = sa.select(KEYS).where(KEYS.c.owner == owner, KEYS.c.key == key)
    stored = connection.execute(query).one()
    if stored.fingerprint != fingerprint:
        raise Mismatch("this Idempotency-Key came before with another request")
    return str(stored.answer_id)
