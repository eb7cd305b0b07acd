"""What is kept is found again: in SQLite and in PostgreSQL alike."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.migration import MigrationContext

from planner.documents.service import Progress
from planner.running.store import Mismatch, Store, Unavailable
from planner.running.store.database import migrate
from planner.running.store.jobs import NotCancellable, QueueFull, StillRunning, Superseded
from planner.running.store.tables import REVISION, SERVERS, TABLES
from tests.fixtures.postgres import Postgres, postgres

__all__ = ["postgres"]
BYTES = 10_000


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/kept/planner.sqlite"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store.open(url, BYTES)
    yield store
    store.close()


def test_results_are_kept_until_newer_ones_need_their_place(store: Store) -> None:
    for name in "abc":
        store.results.put(name, name.encode() * 4_000)
    assert [store.results.get(name) for name in "abc"] == [None, b"b" * 4_000, b"c" * 4_000]
    store.results.put("b", b"again")
    store.results.put("d", b"d" * 5_999)
    assert store.results.get("b") == b"again"
    assert store.results.get("c") is None
    store.results.put("large", b"x" * (BYTES + 1))
    assert store.results.get("large") is None
    assert store.results.get("d") == b"d" * 5_999


def test_saved_plans_by_name(store: Store) -> None:
    hostile = {"model": "'; DROP TABLE saved_plans; --\u0000\U0001f600"}
    assert store.saved_plans.put("b", hostile, note="first")
    assert store.saved_plans.put("a", {}, answer_id="pl_1")
    assert not store.saved_plans.put("b", hostile, note="second")
    kept = store.saved_plans.get("b")
    assert kept is not None
    assert (kept.request, kept.note, kept.answer_id) == (hostile, "second", None)
    assert [one.name for one in store.saved_plans.page(10)] == ["a", "b"]
    assert [one.name for one in store.saved_plans.page(10, after="a")] == ["b"]
    assert [store.saved_plans.delete("b"), store.saved_plans.delete("b")] == [True, False]
    assert store.saved_plans.get("b") is None


def test_a_key_means_one_answer_of_its_owner(store: Store) -> None:
    assert store.keys.claim("me", "k", "asked", "1") == "1"
    assert store.keys.claim("me", "k", "asked", "2") == "1"
    assert store.keys.claim("you", "k", "otherwise", "3") == "3"
    with pytest.raises(Mismatch):
        store.keys.claim("me", "k", "otherwise", "4")


def test_a_key_makes_one_job_however_many_ask_at_once(store: Store) -> None:
    made: list[tuple[str, bool]] = []

    def ask() -> None:
        job, new = store.jobs.create("sweeps", {}, most_waiting=9, key="k", fingerprint="f")
        made.append((job.id, new))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len({id for id, _ in made}) == 1
    assert sorted(new for _, new in made) == [False] * 7 + [True]
    assert len(store.jobs.page(9)) == 1


def test_so_many_jobs_wait_and_no_more(store: Store) -> None:
    for _ in range(2):
        store.jobs.create("dryruns", {}, most_waiting=2)
    with pytest.raises(QueueFull):
        store.jobs.create("dryruns", {}, most_waiting=2)


def test_a_job_from_its_queue_to_its_end(store: Store) -> None:
    job, _ = store.jobs.create("validations", {"model": "m"}, most_waiting=9)
    assert [one.id for one in store.jobs.unsent()] == [job.id]
    store.jobs.sent(job.id)
    assert store.jobs.unsent() == []
    claim = store.jobs.begin(job.id)
    assert claim is not None
    assert store.jobs.report(claim, "run", Progress(done=1, total=3), ["hello"]) == "running"
    with pytest.raises(StillRunning):
        store.jobs.delete(job.id)
    store.jobs.finish(claim, "succeeded", result={"verdict": "within"})
    done = store.jobs.get(job.id)
    assert done is not None
    assert (done.state, done.result) == ("succeeded", {"verdict": "within"})
    assert done.created_at <= (done.started_at or 0) <= (done.finished_at or 0)
    events = store.jobs.events(job.id)
    assert [one.event for one in events] == ["progress", "progress", "log", "progress", "done"]
    assert [one.number for one in store.jobs.events(job.id, after=3)] == [4, 5]
    assert store.jobs.begin(job.id) is None
    with pytest.raises(NotCancellable):
        store.jobs.cancel(job.id)
    with pytest.raises(Superseded):
        store.jobs.finish(claim, "failed")
    assert store.jobs.delete(job.id)
    assert store.jobs.events(job.id) == []


def test_who_begins_a_job_last_has_it(store: Store) -> None:
    job, _ = store.jobs.create("sweeps", {}, most_waiting=9)
    first, second = store.jobs.begin(job.id), store.jobs.begin(job.id)
    assert first is not None
    assert second is not None
    with pytest.raises(Superseded):
        store.jobs.report(first, "run", Progress())
    kept = store.jobs.cancel(job.id)
    assert kept is not None
    assert (kept.state, kept.attempts) == ("cancelling", 2)
    assert store.jobs.report(second, "run", Progress()) == "cancelling"
    store.jobs.release(second)
    third = store.jobs.begin(job.id)
    assert third is not None
    assert store.jobs.state(third) == "cancelling"


def test_a_job_that_waits_is_cancelled_at_once(store: Store) -> None:
    job, _ = store.jobs.create("sweeps", {}, most_waiting=9)
    kept = store.jobs.cancel(job.id)
    assert kept is not None
    assert kept.state == "cancelled"
    assert store.jobs.events(job.id)[-1].event == "done"
    assert store.jobs.cancel("sw_none") is None


def test_pages_of_jobs_and_what_is_forgotten(store: Store) -> None:
    made = [store.jobs.create(kind, {}, most_waiting=9)[0] for kind in ("sweeps", "dryruns") * 2]
    newest = [job.id for job in reversed(made)]
    first = [job.id for job in store.jobs.page(3)]
    assert first == newest[:3]
    assert [job.id for job in store.jobs.page(3, after=first[-1])] == newest[3:]
    assert {job.kind for job in store.jobs.page(9, kind="sweeps")} == {"sweeps"}
    store.jobs.cancel(made[0].id)
    assert [job.id for job in store.jobs.page(9, state="cancelled")] == [made[0].id]
    store.jobs.forget(-1)
    assert [job.id for job in store.jobs.page(9)] == newest[:3]


def test_leases(store: Store) -> None:
    for name in "abc":
        store.servers.join(name, 60)
    assert store.servers.renew("a", 60)
    assert store.servers.alive(60) == {"a", "b", "c"}
    store.servers.leave("b")
    assert [store.servers.renew(name, 60) for name in "abc"] == [True, False, True]
    assert store.servers.alive(60) == {"a", "c"}


def test_a_lease_ends_that_is_seen_unchanged_for_its_length(store: Store) -> None:
    store.servers.join("renewed", 0.5)
    store.servers.join("dead", 0.5)
    _set_lease(store, "no length", None)
    for _ in range(4):
        assert {"renewed", "no length"} <= store.servers.alive(60)
        time.sleep(0.2)
        assert store.servers.renew("renewed", 0.5)
    assert store.servers.alive(60) == {"renewed", "no length"}
    assert not store.servers.renew("dead", 0.5)
    assert store.servers.alive(0.5) == {"renewed"}


@pytest.mark.parametrize("away_s", [-86_400, 86_400])
def test_no_clock_ends_a_lease(store: Store, away_s: float) -> None:
    _set_lease(store, "other clock", time.time() + away_s)
    assert store.servers.alive(60) == {"other clock"}
    assert store.servers.renew("other clock", 60)


def _set_lease(store: Store, name: str, until: float | None) -> None:
    """A lease as a server writes it: of a release before 0006 where it has no time."""
    row = {"name": name, "lease_until": until or time.time(), "lease_s": until and 60}
    with store.database.writing() as connection:
        connection.execute(sa.insert(SERVERS).values(row))


def test_a_clock_that_jumps_ahead_deletes_nothing_early(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = store.jobs.create("sweeps", {}, most_waiting=9)
    store.jobs.cancel(job.id)
    true_clock = time.time
    monkeypatch.setattr(time, "time", lambda: true_clock() + 30 * 86_400)
    store.jobs.forget(86_400)
    assert store.jobs.get(job.id)


def test_a_clock_that_jumps_back_ends_no_job_before_its_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = store.jobs.create("sweeps", {}, most_waiting=9)
    true_clock = time.time
    monkeypatch.setattr(time, "time", lambda: true_clock() - 3600)
    assert store.jobs.counts()[1] == 0
    store.jobs.cancel(job.id)
    ended = store.jobs.get(job.id)
    assert ended is not None
    assert ended.finished_at == job.created_at


def test_what_is_kept_outlives_the_process_and_opens_twice(url: str) -> None:
    first, second = Store.open(url), Store.open(url)
    first.results.put("a", b"1")
    assert second.results.get("a") == b"1"
    first.close()
    second.close()


def test_migrations_make_the_tables_that_the_code_expects(store: Store) -> None:
    with store.database.reading() as connection:
        made = sa.inspect(connection)
        assert {*made.get_table_names()} == {"alembic_version", *(table.name for table in TABLES)}
        for table in TABLES:
            own = {column["name"] for column in made.get_columns(table.name)}
            assert own == {*table.c.keys()}
        assert MigrationContext.configure(connection).get_current_revision() == REVISION


def test_a_database_of_a_newer_version_is_left_alone(store: Store, url: str) -> None:
    with store.database.writing() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Unavailable, match="newer version"):
        Store.open(url)


def test_a_database_that_is_not_there_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot write"):
        Store.open(f"sqlite:///{tmp_path}/file/planner.sqlite")
    with pytest.raises(Unavailable) as told:
        Store.open(f"postgresql://user:secret@/none?host={tmp_path}")
    assert "secret" not in str(told.value)


def test_a_writer_that_keeps_the_file_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite"
    store = Store.open(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.3, other.rollback)
    release.start()
    store.results.put("a", b"1")
    assert store.results.get("a") == b"1"
    store.close()
    other.close()


@contextmanager
def server_at(folder: Path) -> Iterator[None]:
    """The data folder of one of several servers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANNER_DATA_DIR", str(folder))
        yield


@pytest.mark.slow
def test_servers_share_profiles_and_sites(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.database()
    servers = {name: (tmp_path / name, Store.open(url)) for name in ("a", "b")}

    def sync(name: str) -> None:
        folder, store = servers[name]
        with server_at(folder):
            store.shared_files.sync()

    def file(server: str, kind: str, name: str) -> Path:
        path = servers[server][0] / kind / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def runs(server: str) -> list[str]:
        site = json.loads(file(server, "sites", "lab").read_text())
        return [run["id"] for run in site["runs"]]

    def learn(server: str, *ids: str) -> None:
        found = [{"id": id, "learned_at": f"2026-11-2{id}"} for id in ids]
        file(server, "sites", "lab").write_text(json.dumps({"name": "lab", "runs": found}))

    file("a", "profiles", "mine").write_text("one")
    sync("a")
    sync("b")
    assert file("b", "profiles", "mine").read_text() == "one"
    file("b", "profiles", "mine").write_text("two")
    sync("b")
    sync("a")
    assert file("a", "profiles", "mine").read_text() == "two"
    learn("a", "1")
    learn("b", "2")  # at the same time
    for name in ("a", "b", "a"):
        sync(name)
    assert runs("a") == runs("b") == ["1", "2"]
    file("a", "sites", "lab").unlink()
    sync("a")
    sync("b")
    assert not file("b", "sites", "lab").exists()
    assert file("a", "profiles", "mine").exists()
    learn("b", "3")  # anew, under the same name
    sync("b")
    sync("a")
    assert runs("a") == ["3"]
    for _, store in servers.values():
        store.close()


def test_a_site_is_of_its_first_owner_until_it_is_forgotten(store: Store) -> None:
    assert store.sites.claim("lab", "alice").owner == "alice"
    assert store.sites.claim("lab", "bob").owner == "alice"
    store.sites.share("lab", {"bob": "teach"})
    rights = store.sites.get("lab")
    assert rights is not None
    assert rights.shared == {"bob": "teach"}
    hidden = {name: store.sites.hidden_from(name) for name in ("alice", "bob", "erin")}
    assert hidden == {"alice": frozenset(), "bob": frozenset(), "erin": frozenset({"lab"})}
    store.sites.forget("lab")
    assert store.sites.all() == {}
    assert store.sites.claim("lab", "bob").owner == "bob"


def test_a_migration_forward_and_back_keeps_what_is_there(store: Store) -> None:
    store.saved_plans.put("mine", {"model": "gpt2"}, owner="alice")
    job, _ = store.jobs.create("sweeps", {}, most_waiting=1, owner="alice")
    for revision in ("0001", "head"):
        with store.database.writing() as connection:
            migrate(connection, revision)
    kept = store.saved_plans.get("mine")
    assert kept is not None
    assert (kept.request, kept.owner) == ({"model": "gpt2"}, None)
    again = store.jobs.get(job.id)
    assert again is not None
    assert (again.state, again.owner) == ("queued", None)
