"""A PostgreSQL database that is emptied, made again or replaced is not taken as a new one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2 as httpx
import psycopg
import pytest

from api.app import create_app
from api.settings import Settings
from planner.cli import run
from planner.running.doctor.checks import _database, _jobs
from planner.running.jobs.settings import JobSettings
from planner.running.store import Store, Unavailable
from planner.running.store.database import Lost
from tests.fixtures.job_server import ENDLESS, Place, eventually
from tests.fixtures.postgres import Postgres, postgres
from tests.fixtures.service import listening

__all__ = ["postgres"]
pytestmark = pytest.mark.slow


def asked(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def tables(url: str) -> set[tuple[str, ...]]:
    with psycopg.connect(url) as connection:
        return set(
            connection.execute(
                "SELECT schemaname, tablename FROM pg_tables"
                " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
            )
        )


def made_again(url: str) -> None:
    """Dropped with all that is in it, and made again under the same name."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    other = url.replace(str(name), "postgres")
    asked(other, f"DROP DATABASE {name} WITH (FORCE)", f"CREATE DATABASE {name}")


def without_tables(url: str) -> None:
    asked(url, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")


def without_rows(url: str) -> None:
    asked(url, "TRUNCATE " + ", ".join(name for schema, name in tables(url) if schema == "public"))


def of_another_service(url: str) -> None:
    without_tables(url)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setenv("PLANNER_DATA_DIR", folder)
        Store.open(url).close()


LOSSES = [made_again, without_tables, without_rows, of_another_service]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lose", LOSSES)
def test_a_lost_database_is_left_as_it_is(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[str], None]
) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    url = postgres.database()
    assert _database(url)[:2] == (
        "ok",
        "as PLANNER_DATABASE_URL says, empty: the first start of the service makes its tables",
    )
    assert tables(url) == set(), "the doctor makes nothing"
    with listening(create_app(Settings(database_url=url, jobs=JobSettings(max_runs=0)))) as port:
        ready = f"http://127.0.0.1:{port}/readyz"
        assert httpx.get(ready).status_code == 200
        Store.open(url).close()
        lose(url)
        left = tables(url)
        answer = httpx.get(ready)
        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
        answer = httpx.get(ready.replace("readyz", "v1/jobs"))
        assert answer.status_code == (503 if lose in (made_again, without_tables) else 200)
    with pytest.raises(Lost, match="not the one that was here"):
        Store.open(url)
    state, found, advice = _database(url)
    assert (state, "not the one that was here" in found) == ("fail", True)
    assert "begin anew" in str(advice)
    assert _jobs(url)[0] == "warn"
    assert tables(url) == left, "nothing is made again"
    # What the advice says: begin anew.
    without_tables(url)
    (tmp_path / "postgresql.json").unlink()
    Store.open(url).close()
    Store.open(url).close()


def test_a_backup_of_an_earlier_version_is_no_other_database(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    url = postgres.database()
    Store.open(url).close()
    asked(
        url, "ALTER TABLE servers DROP COLUMN lease_s", "DROP TABLE identity",
        "UPDATE alembic_version SET version_num = '0004'",
    )  # fmt: skip
    for _ in range(2):
        store = Store.open(url)
        store.servers.check_writable()
        store.close()


def test_jobs_without_tables_are_noticed_by_a_machine_that_never_saw_them(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    url = postgres.database()
    asked(url, "CREATE SCHEMA dbos", "CREATE TABLE dbos.workflow_status (id text)")
    with pytest.raises(Lost, match="it has no tables, and there were jobs"):
        Store.open(url)


@pytest.mark.parametrize("text", ["{", "[]", "\x80"])
def test_a_damaged_note_is_said(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    (tmp_path / "postgresql.json").write_text(text, "latin-1")
    with pytest.raises(Unavailable, match=r"postgresql\.json in the data folder cannot be read"):
        Store.open(postgres.database())


@pytest.mark.exhaustive
def test_a_service_whose_database_is_made_again_waits_for_the_backup(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.database()
    place = Place(tmp_path / "data", url)
    monkeypatch.setenv("PATH", str(postgres.programs), prepend=":")
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PLANNER_DATABASE_URL", url)
    try:
        server = place.serve()
        job = server.start("sweeps", ENDLESS)
        eventually(place.runs, "its process")
        assert run(["backup", str(tmp_path / "backup.zip")]) == 0
        made_again(url)
        eventually(lambda: server.http.get("/readyz").status_code == 503, "word of it")
        eventually(lambda: not place.runs(), "the end of what has no job any more")
        eventually(lambda: server.said().count("was emptied") > 5, "some more attempts")
        assert tables(url) == set()
        assert server.http.get("/healthz").status_code == 200
        with pytest.raises(AssertionError, match="not the one that was here"):
            place.serve()
        monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path / "another"))
        assert run(["restore", str(tmp_path / "backup.zip")]) == 0
        eventually(lambda: server.http.get("/readyz").status_code == 200, "readiness")
        eventually(place.runs, "its process again")
        server.http.post(job["links"]["cancel"])
        assert server.end(job)["state"] == "cancelled"
    finally:
        place.clear()
