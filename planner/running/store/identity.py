"""Which PostgreSQL database a service has: an id in it, and a note of that in the data folder.

The note tells a database that was emptied, replaced or made again from one that is new.  SQLite
needs none: its file lies beside that of the jobs' queue.
"""

from __future__ import annotations

import json
from pathlib import Path

import sqlalchemy as sa

from planner.data_folder import data_folder, write_whole
from planner.running.store.tables import IDENTITY

NOTE = "postgresql.json"  # in the data folder: the id of each database by its address
_QUEUE = ("dbos", "workflow_status")  # schema and table of the jobs' queue


def found(connection: sa.Connection) -> str | None:
    """The id that the database has; None: it has none, or no table for it."""
    if not sa.inspect(connection).has_table(IDENTITY.name):
        return None
    return connection.scalar(sa.select(IDENTITY.c.id))


def loss(connection: sa.Connection, has_tables: bool, keeps_an_id: bool) -> str | None:
    """What is wrong with a database that is not the one that was here; None: nothing.

    keeps_an_id: whether its tables are of a version that has one.
    Raises OSError and ValueError where the note cannot be read.
    """
    id, noted = found(connection), _notes().get(_address(connection.engine.url))
    if noted is None:
        schema, table = _QUEUE
        has_queue = sa.inspect(connection).has_table(table, schema=schema)
        return "it has no tables, and there were jobs" if has_queue and not has_tables else None
    if not has_tables:
        return "it is empty, and it was not before"
    if id == noted or (id is None and not keeps_an_id):  # a backup of an earlier version
        return None
    return "it is another one than before"


def remedy() -> str:
    """What an administrator does about it."""
    return (
        f"restore a backup, or begin anew: stop all services, make the database empty and move "
        f"{_path()} of each away"
    )


def note(engine: sa.Engine, id: str) -> None:
    """Remember the id of a database.  Raises OSError."""
    notes, address = _notes(), _address(engine.url)
    if notes.get(address) != id:
        write_whole(_path(), json.dumps(notes | {address: id}, indent=1) + "\n")


def _path() -> Path:
    return data_folder(NOTE)


def _notes() -> dict[str, str]:
    try:
        notes = json.loads(_path().read_text("utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(notes, dict):
        raise ValueError("not an object")
    return notes


def _address(url: sa.URL) -> str:
    """The address of a database, without user and password."""
    host = url.host or url.query.get("host", "")
    port = url.port or url.query.get("port", 5432)
    return f"{host}:{port}/{url.database}"
