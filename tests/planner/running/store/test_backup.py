"""A backup, and what was kept after it is put back."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli import run
from planner.running.store import Store
from tests.fixtures.postgres import Postgres, postgres

__all__ = ["postgres"]


def at(folder: Path, monkeypatch: pytest.MonkeyPatch, url: str | None) -> None:
    monkeypatch.setenv("PLANNER_DATA_DIR", str(folder))
    if url:
        monkeypatch.setenv("PLANNER_DATABASE_URL", url)
    else:
        monkeypatch.delenv("PLANNER_DATABASE_URL", raising=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_there_and_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    urls: list[str | None] = [None, None]
    if kind == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        monkeypatch.setenv("PATH", str(server.programs), prepend=":")
        urls = [server.database(), server.database()]
    at(tmp_path / "one", monkeypatch, urls[0])
    store = Store.open(urls[0])  # and open while it is copied
    store.saved_plans.put("mine", {"model": "gpt2"})
    job, _ = store.jobs.create("sweeps", {"base": {}}, most_waiting=1)
    profile = tmp_path / "one" / "profiles" / "lab.json"
    profile.parent.mkdir(parents=True, exist_ok=True)
    profile.write_text("{}")
    file = tmp_path / "backup.zip"
    assert run(["backup", str(file)]) == 0
    assert "profiles/lab.json" in capsys.readouterr().out
    assert run(["backup", str(file)]) == 2
    assert run(["restore", str(file)]) == 2  # over what is there
    store.close()
    at(tmp_path / "two", monkeypatch, urls[1])
    assert run(["restore", str(file)]) == 0
    again = Store.open(urls[1])
    kept, found = again.saved_plans.get("mine"), again.jobs.get(job.id)
    assert kept is not None
    assert found is not None
    assert (kept.request, found.request) == ({"model": "gpt2"}, {"base": {}})
    assert (tmp_path / "two" / "profiles" / "lab.json").read_text() == "{}"
    again.close()


def test_what_is_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at(tmp_path / "data", monkeypatch, None)
    (tmp_path / "text").write_text("not a zip")
    for name in ("text", "none"):
        assert run(["restore", str(tmp_path / name)]) == 2
        assert "is no backup" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
