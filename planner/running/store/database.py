"""The database, SQLite or PostgreSQL: opened, migrated, every failure raised as Unavailable."""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from planner.data_folder import data_folder
from planner.running.store import identity
from planner.running.store.tables import IDENTITY, REVISION

FILE = "planner.sqlite"
QUEUE_FILE = "jobs.sqlite"  # of DBOS, made after the other
_BUSY_TIMEOUT_S = 5.0  # of SQLite: how long a writer waits for another one
_CONNECT_S = 5
_MIN_FREE_BYTES = 1 << 20
# Advisory locks of PostgreSQL, held while the tables are migrated, and by Database.exclusive.
_LOCK, _ALONE = 7_215_900_001, 7_215_900_003
# Of PostgreSQL: timeouts of a statement, of a lock and of the network.
_TIMEOUTS = {
    "connect_timeout": _CONNECT_S,
    "options": "-c statement_timeout=8s -c lock_timeout=5s "
    "-c idle_in_transaction_session_timeout=30s",
    "tcp_user_timeout": 8_000,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
}
_MISSING_CODES = ("42P01", "3F000")  # codes of PostgreSQL: no such table, no such schema
_FIRST_WITH_ID = "0005"  # migration
_WRITES = "writes"
_INSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class Unavailable(RuntimeError):
    """The database does not answer or cannot write; the message says which, without secrets."""


class Lost(Unavailable):
    """The database is not the one that was here; advice: what an administrator does."""

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(f"{detail}: {advice}")
        self.detail, self.advice = detail, advice


@dataclass(frozen=True)
class Database:
    """Transactions on one database.

    node: of SQLite's file when it was opened.  id: of PostgreSQL's database.
    _opened: when, by the clock and by the monotonic clock.
    """

    engine: sa.Engine
    node: int = 0
    id: str | None = None
    _opened: tuple[float, float] = field(default_factory=lambda: (time.time(), time.monotonic()))

    @classmethod
    def open(cls, url: str | None = None) -> Self:
        """The database at a URL, its tables as this version has them.  Raises Unavailable, Lost."""
        if url is None:
            _check_lost(data_folder(FILE))
        engine = _sqlite(data_folder(FILE)) if url is None else _engine(url)
        database = cls(engine)
        with database.writing() as connection:
            if not database.is_file:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
                _check_identity(connection)
            _migrate(connection)
            id = identity.found(connection)
        if database.is_file:
            return cls(engine, Path(str(engine.url.database)).stat().st_ino)
        assert id is not None
        try:
            identity.note(engine, id)
        except OSError as error:
            raise Unavailable(f"cannot write the data folder: {error.strerror}") from None
        return cls(engine, id=id)

    @property
    def is_file(self) -> bool:
        """Whether it is SQLite, which one machine has to itself."""
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A transaction that only reads.  Raises Unavailable."""
        with _translated(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that may write: all of it, or nothing.  Raises Unavailable."""
        with _translated(), self.engine.execution_options(**{_WRITES: True}).begin() as connection:
            yield connection

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """What runs inside runs at one server at a time, and may use the database.

        Raises Unavailable.
        """
        if self.is_file:
            with Path(f"{self.engine.url.database}.lock").open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        else:
            with self.writing() as connection:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ALONE)))
                yield

    def insert(self, table: sa.TableClause, rows: Any) -> Any:
        """An INSERT that can say what happens on a conflict."""
        return _INSERTS[self.engine.dialect.name](table).values(rows)

    def upsert(self, table: sa.TableClause, rows: Any, *key: str) -> Any:
        """An INSERT that lays rows over those with the same key."""
        new = self.insert(table, rows)
        changed = {column.key: column for column in new.excluded if column.key not in key}
        return new.on_conflict_do_update(index_elements=key, set_=changed)

    def now(self) -> float:
        """Seconds since 1970, as all rows have them."""
        return time.time()

    def deletes_before(self, kept_s: float) -> float:
        """The time before which rows that are kept for kept_s are deleted.

        A clock that jumped ahead since the start deletes nothing early.
        """
        clock_s, monotonic_s = self._opened
        unjumped = clock_s + time.monotonic() - monotonic_s
        return min(self.now(), unjumped) - kept_s

    def ping(self) -> None:
        """Ask the database for a sign of life.  Raises Unavailable."""
        with self.reading() as connection:
            connection.execute(sa.select(1))

    def check(self) -> None:
        """Raise Unavailable where this is no longer the database that was opened.

        Of SQLite also where its disk is full.
        """
        if not self.is_file:
            with self.reading() as connection:
                if connection.scalar(sa.select(IDENTITY.c.id)) != self.id:
                    raise Lost("the database was emptied or replaced", identity.remedy())
            return
        path = Path(str(self.engine.url.database))
        if not same_file(path, self.node):
            raise Unavailable("the database file was removed or replaced: restart the service")
        if shutil.disk_usage(path.parent).free < _MIN_FREE_BYTES:
            raise Unavailable("the disk of the database is full")

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def same_file(path: Path, node: int) -> bool:
    """Whether a file is still the one that had this inode."""
    try:
        return path.stat().st_ino == node
    except OSError:
        return False


def damage(path: Path) -> str | None:
    """What SQLite's own quick check finds wrong with a file; None: nothing."""
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            finding = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if finding == "ok" else finding


def _check_lost(path: Path) -> None:
    """Raise Unavailable where the file is gone or empty and that of the jobs' queue is not."""
    queue = data_folder(QUEUE_FILE)
    if queue.exists() and not (path.exists() and path.stat().st_size):
        detail = f"{path} is missing or empty, and there were jobs"
        raise Lost(detail, f"restore a backup, or begin anew by moving {queue} away, too")


def is_new(url: str) -> bool:
    """Whether a database of PostgreSQL has no tables of ours yet.  Raises Unavailable, Lost."""
    database = Database(_engine(url))
    if database.is_file:
        return False
    try:
        with database.reading() as connection:
            _check_identity(connection)
            return _revision(connection) is None
    finally:
        database.close()


def _check_identity(connection: sa.Connection) -> None:
    """Raise Lost where a database of PostgreSQL is not the one that was at this address."""
    revision = _revision(connection)
    keeps_an_id = revision is not None and revision >= _FIRST_WITH_ID
    try:
        wrong = identity.loss(connection, revision is not None, keeps_an_id)
    except (OSError, ValueError) as error:
        raise Unavailable(f"{identity.NOTE} in the data folder cannot be read: {error}") from None
    if wrong:
        raise Lost(f"the database is not the one that was here: {wrong}", identity.remedy())


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
        raise Unavailable(str(error.orig).strip().splitlines()[0][:200]) from None
    except sa.exc.TimeoutError:
        raise Unavailable("all connections to the database are taken") from None
    except sa.exc.DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) in _MISSING_CODES:
            raise Lost("the database was emptied: tables are missing", identity.remedy()) from None
        if type(error) is sa.exc.DatabaseError:  # a file that is not one of SQLite
            raise Unavailable(str(error.orig)[:200]) from None
        if not error.connection_invalidated:
            raise
        raise Unavailable("the connection to the database was lost") from None


def _engine(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise Unavailable("the database's URL cannot be read") from None
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(Path(parsed.database or FILE))
    engine = sa.create_engine(
        parsed.set(drivername="postgresql+psycopg"),
        pool_pre_ping=True,
        pool_size=8,
        pool_timeout=_CONNECT_S,
        connect_args=_TIMEOUTS,
        hide_parameters=True,  # error messages must not repeat what users asked
    )
    sa.event.listen(engine, "do_connect", _connected)
    return engine


def _connected(_: Any, __: Any, arguments: Any, options: Any) -> Any:
    from planner.running.store.postgres import TimeoutConnection

    return TimeoutConnection.connect(*arguments, **options)


def _sqlite(path: Path) -> sa.Engine:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"cannot write {path.parent}: {error.strerror}") from None
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)),
        connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False},
        hide_parameters=True,
    )

    @sa.event.listens_for(engine, "connect")
    def opened(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions begin below, and not before a first write
        for setting in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {setting}")

    @sa.event.listens_for(engine, "begin")
    def begun(connection: sa.Connection) -> None:
        # SQLite refuses to turn a read transaction into a write after another connection wrote.
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _migrate(connection: sa.Connection) -> None:
    """Bring the tables to what this version expects, in the transaction of the connection."""
    if _revision(connection) != REVISION:
        migrate(connection)


def migrate(connection: sa.Connection, revision: str = "head") -> None:
    """Bring the tables to a revision, forward or back.  Raises Unavailable."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    try:
        forward = revision == "head" or revision >= (_revision(connection) or "")
        (command.upgrade if forward else command.downgrade)(config, revision)
    except CommandError:
        raise Unavailable("the database is one of a newer version of the planner") from None


def _revision(connection: sa.Connection) -> str | None:
    """Which migration the database has last seen."""
    versions = sa.table("alembic_version", sa.column("version_num"))
    if not sa.inspect(connection).has_table(versions.name):
        return None
    return connection.scalar(sa.select(versions.c.version_num))
