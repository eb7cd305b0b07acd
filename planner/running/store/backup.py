"""Backups: everything a service keeps, in one file, and back again.

A backup is a zip: the databases (SQLite's own copy, taken while the service runs, or what pg_dump
makes of PostgreSQL) and the files of profiles, sites and validations.
"""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import tempfile
import zipfile
from contextlib import closing
from pathlib import Path

from planner.data_folder import data_folder
from planner.documents.problems import refuse
from planner.running.store.database import FILE, QUEUE_FILE

_DATABASES = (FILE, QUEUE_FILE)
_FOLDERS = ("profiles", "sites", "validations")
_DUMP = "postgresql.dump"


def backup(target: Path, url: str | None) -> list[str]:
    """Write a backup; what is in it.  Raises RequestError."""
    if target.exists():
        raise refuse("", "exists", f"{target} is there already: name another file")
    with tempfile.TemporaryDirectory(dir=_folder_of(target)) as folder:
        part = Path(folder, "part")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in _copies(Path(folder), url):
                archive.write(path, path.name)
            for kind in _FOLDERS:
                for path in sorted(data_folder(kind).glob("*.json")):
                    archive.write(path, f"{kind}/{path.name}")
            names = archive.namelist()
        part.replace(target)
    return names


def restore(source: Path, url: str | None) -> list[str]:
    """Put back what a backup has, where nothing is yet; what that was.  Raises RequestError.

    The service is to be stopped.
    """
    existing = [name for name in (*_DATABASES, *_FOLDERS) if data_folder(name).exists()]
    if existing:
        detail = (
            f"{data_folder('')} has {', '.join(existing)}: move them away, or name another folder"
        )
        raise refuse("", "exists", detail)
    try:
        with zipfile.ZipFile(source) as archive:
            names = archive.namelist()
            _check(names, url)
            data_folder("").mkdir(parents=True, exist_ok=True)
            archive.extractall(data_folder(""))
    except (OSError, zipfile.BadZipFile) as error:
        raise refuse("", "unreadable", f"{source} is no backup: {error}") from None
    if _DUMP in names:
        dump = data_folder(_DUMP)
        try:
            _run("pg_restore", "--clean", "--if-exists", "--no-owner", "-d", str(url), str(dump))
        finally:
            dump.unlink()
    return names


def _copies(folder: Path, url: str | None) -> list[Path]:
    """Copies of the databases as they are at one moment each."""
    if url is not None:
        _run("pg_dump", "--format=custom", "--no-owner", "-f", str(folder / _DUMP), url)
        return [folder / _DUMP]
    copies = []
    for name in _DATABASES:
        if data_folder(name).exists():
            with (
                closing(sqlite3.connect(data_folder(name))) as database,
                closing(sqlite3.connect(folder / name)) as copy,
            ):
                database.backup(copy)
            copies.append(folder / name)
    return copies


def _check(names: list[str], url: str | None) -> None:
    """Raise RequestError where this is no backup, or one of another kind of database."""
    known = {*_DATABASES, _DUMP}
    if not all(name in known or name.partition("/")[0] in _FOLDERS for name in names):
        raise refuse("", "unreadable", "the file has more in it than a backup has")
    if (_DUMP in names) != (url is not None):
        kind = "PostgreSQL: set PLANNER_DATABASE_URL" if _DUMP in names else "SQLite"
        raise refuse("", "inconsistent", f"the backup is one of {kind}")


def _folder_of(target: Path) -> Path:
    if not target.parent.is_dir():
        raise refuse("", "cannot_write", f"{target.parent} is no folder")
    return target.parent


def _run(program: str, *arguments: str) -> None:
    if shutil.which(program) is None:
        raise refuse("", "missing", f"{program} is not installed: it comes with PostgreSQL")
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode:
        # Its words may name the server, and never the password.
        raise refuse("", "database", f"{program}: {done.stderr.strip()[-300:]}")
