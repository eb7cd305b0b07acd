"""Plans that somebody saved under a name, with what was asked."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa

from planner.documents.plan_report import Document
from planner.running.store.database import Database
from planner.running.store.tables import SAVED_PLANS


class SavedPlan(Document):
    """A request under a name; answer_id: of the answer that was looked at.

    saved_at: seconds since 1970.
    """

    name: str
    note: str
    request: dict[str, Any]
    answer_id: str | None
    saved_at: float
    owner: str | None = None


class SavedPlans:
    """Saved plans by name; all who use the service share them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(
        self, name: str, request: Any, note: str = "", answer_id: str | None = None,
        owner: str | None = None,
    ) -> bool:  # fmt: skip
        """Save a plan under a name, replacing the one of that name; whether the name is new."""
        row = {
            "name": name, "note": note, "request": json.dumps(request), "answer_id": answer_id,
            "saved_at": self._database.now(), "owner": owner or None,
        }  # fmt: skip
        with self._database.writing() as connection:
            existing = connection.scalar(_with_name(name, sa.select(SAVED_PLANS.c.name)))
            connection.execute(self._database.upsert(SAVED_PLANS, row, "name"))
        return existing is None

    def get(self, name: str) -> SavedPlan | None:
        """What is saved under a name."""
        with self._database.reading() as connection:
            row = connection.execute(_with_name(name, sa.select(SAVED_PLANS))).one_or_none()
        return None if row is None else _plan(row)

    def delete(self, name: str) -> bool:
        """Forget a name; whether there was one."""
        with self._database.writing() as connection:
            return bool(connection.execute(_with_name(name, sa.delete(SAVED_PLANS))).rowcount)

    def page(self, limit: int, after: str | None = None) -> list[SavedPlan]:
        """Saved plans in the order of their names, from behind one name on."""
        query = sa.select(SAVED_PLANS).order_by(SAVED_PLANS.c.name).limit(limit)
        if after is not None:
            query = query.where(SAVED_PLANS.c.name > after)
        with self._database.reading() as connection:
            return [_plan(row) for row in connection.execute(query)]


def _with_name(name: str, statement: Any) -> Any:
    return statement.where(SAVED_PLANS.c.name == name)


def _plan(row: sa.Row[Any]) -> SavedPlan:
    return SavedPlan(**{**row._mapping, "request": json.loads(row.request)})
