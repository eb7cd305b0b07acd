"""Whose sites are, and with whom they are shared; what sites learned is in files.

A site without a row is from before owners, or was made on the machine itself: all read it, and only
administrators change it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import sqlalchemy as sa

from planner.documents.service import Right, SiteRights
from planner.running.store.database import Database
from planner.running.store.tables import SITES


class Sites:
    """The owners of sites by name."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, name: str, owner: str) -> SiteRights:
        """Make a site without an owner this one's; the rights that it has then."""
        row = {"name": name, "owner": owner, "shared": "{}"}
        with self._database.writing() as connection:
            connection.execute(self._database.insert(SITES, row).on_conflict_do_nothing())
            return _rights(connection.execute(sa.select(SITES).where(SITES.c.name == name)).one())

    def get(self, name: str) -> SiteRights | None:
        """The rights to a site; None: it has no owner."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(SITES).where(SITES.c.name == name)).one_or_none()
        return None if row is None else _rights(row)

    def all(self) -> dict[str, SiteRights]:
        """The rights to all sites that have an owner, by name."""
        with self._database.reading() as connection:
            return {row.name: _rights(row) for row in connection.execute(sa.select(SITES))}

    def share(self, name: str, shared: Mapping[str, Right]) -> None:
        """Share a site with these callers, and no others."""
        changed = sa.update(SITES).where(SITES.c.name == name)
        with self._database.writing() as connection:
            connection.execute(changed.values(shared=json.dumps(dict(shared))))

    def forget(self, name: str) -> None:
        """Forget whose it is."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(SITES).where(SITES.c.name == name))

    def hidden_from(self, caller: str) -> frozenset[str]:
        """The sites that a caller may not read."""
        return frozenset(
            name for name, rights in self.all().items() if not rights.allow(caller, "read")
        )


def _rights(row: sa.Row[tuple[object, ...]]) -> SiteRights:
    return SiteRights(name=row.name, owner=row.owner, shared=json.loads(row.shared))
