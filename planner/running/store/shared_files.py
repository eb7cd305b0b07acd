"""Profiles and sites shared by servers: each has a folder of files, PostgreSQL has them all.

A server synchronises its folder with the database before it reads a profile or a site, and after
it changes one.  With SQLite, which lies in the data folder itself, there is only one folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import sqlalchemy as sa

from planner.data_folder import data_folder, write_whole
from planner.running.store.database import Database
from planner.running.store.tables import LIBRARY

KINDS = ("profiles", "sites")
_LOCK = 7_215_900_002  # of PostgreSQL, held while something changes


class Name(NamedTuple):
    """A file shared by servers."""

    kind: str
    name: str


@dataclass(frozen=True)
class Version:
    """What a file holds, or None where it was removed; when, in seconds since 1970."""

    content: str | None
    changed_at: float

    @property
    def digest(self) -> str:
        """The digest of the content; empty where there is none."""
        return hashlib.sha256(self.content.encode()).hexdigest() if self.content else ""


class SharedFiles:
    """Synchronises a server's folder with the database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._synced: dict[Name, str] = {}  # digests when both were alike

    def sync(self) -> None:
        """Read what other servers changed, and write what changed here.  Raises Unavailable."""
        if self._database.is_file:
            return
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(LIBRARY.c.kind, LIBRARY.c.name, LIBRARY.c.digest))
            shared = {Name(row.kind, row.name): str(row.digest) for row in rows}
        present = {name: digest for name, digest in shared.items() if digest}
        if present == {name: v.digest for name, v in _local_versions().items()}:
            self._synced = shared
            return
        with self._database.writing() as connection, _exclusive_lock():
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            self._sync_all(connection)

    def _sync_all(self, connection: sa.Connection) -> None:
        local_versions, shared_versions = _local_versions(), _shared_versions(connection)
        for name in local_versions.keys() | shared_versions.keys():
            local, shared = local_versions.get(name), shared_versions.get(name)
            chosen = _chosen(name, local, shared, self._synced.get(name))
            if chosen.digest != (local.digest if local else ""):
                _write(name, chosen)
            if shared is None or chosen.digest != shared.digest:
                row = {
                    **name._asdict(), "content": chosen.content, "digest": chosen.digest,
                    "changed_at": chosen.changed_at,
                }  # fmt: skip
                connection.execute(self._database.upsert(LIBRARY, row, "kind", "name"))
            self._synced[name] = chosen.digest


def _chosen(
    name: Name, local: Version | None, shared: Version | None, agreed: str | None
) -> Version:
    """The version that both sides take; agreed: the digest when they last were equal."""
    if shared is None:
        assert local is not None
        return local
    if local is None:  # removed here, or never here
        return Version(None, shared.changed_at) if agreed == shared.digest else shared
    if agreed == local.digest:
        return shared
    if agreed == shared.digest:
        return local
    if name.kind == "sites" and local.content and shared.content:
        return _merged(local, shared)
    return max(local, shared, key=lambda v: v.changed_at)


def _merged(local: Version, shared: Version) -> Version:
    """A site with the runs of both, each once."""
    assert local.content is not None
    assert shared.content is not None
    site = json.loads(shared.content)
    runs = {run["id"]: run for run in (*site["runs"], *json.loads(local.content)["runs"])}
    site["runs"] = sorted(runs.values(), key=lambda run: str(run["learned_at"]))
    content = json.dumps(site, indent=1, ensure_ascii=False) + "\n"
    return Version(content, max(local.changed_at, shared.changed_at))


def _local_versions() -> dict[Name, Version]:
    versions = {}
    for kind in KINDS:
        for path in data_folder(kind).glob("*.json"):
            with suppress(OSError, UnicodeDecodeError):  # just removed, or unreadable
                changed_at = path.stat().st_mtime
                versions[Name(kind, path.stem)] = Version(path.read_text("utf-8"), changed_at)
    return versions


def _shared_versions(connection: sa.Connection) -> dict[Name, Version]:
    return {
        Name(row.kind, row.name): Version(row.content, row.changed_at)
        for row in connection.execute(sa.select(LIBRARY))
    }


def _write(name: Name, version: Version) -> None:
    path = data_folder(name.kind) / f"{name.name}.json"
    if version.content is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, version.content)


@contextmanager
def _exclusive_lock() -> Iterator[None]:
    """A lock against others that change sites here; planner.evidence.uncertainty.site_storage has
    it too.
    """
    folder: Path = data_folder("sites")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
