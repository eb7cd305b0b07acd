"""`planner doctor`: what ails a machine, in words and as a document."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.data_folder import VARIABLE
from planner.running.doctor import checks


@pytest.fixture
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of its own, and no other setting."""
    for name in ("PLANNER_DATABASE_URL", "PLANNER_HOST", "PLANNER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "data"))
    return tmp_path


def examined(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> dict[str, Any]:
    """What it says of each thing, by name."""
    assert run(["doctor", "--json", "--port", "0", *words]) == code
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is (code == 0)
    return {check["name"]: check for check in document["checks"]}


@pytest.mark.slow
def test_a_healthy_machine(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = examined(capsys, 0)
    assert {found[name]["state"] for name in ("data folder", "address", "planning")} == {"ok"}
    assert "first start" in found["database"]["found"]
    assert list(healthy.iterdir()) == []  # it looks, and leaves nothing
    assert run(["doctor", "--port", "0"]) == 0
    screen = capsys.readouterr().out
    assert all(name in screen for name in found)


@pytest.mark.slow
def test_a_data_folder_that_cannot_be(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (healthy / "file").touch()
    monkeypatch.setenv(VARIABLE, str(healthy / "file" / "data"))
    found = examined(capsys, 2)["data folder"]
    assert found["state"] == "fail"
    assert VARIABLE in found["advice"]


def test_no_space(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_NO_SPACE_BYTES", 1 << 60)
    assert examined(capsys, 2)["data folder"]["state"] == "fail"


def test_a_database_that_is_none(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (healthy / "data").mkdir()
    (healthy / "data" / "planner.sqlite").write_bytes(b"not a database, but long enough" * 100)
    found = examined(capsys, 2)["database"]
    assert found["state"] == "fail"
    assert "move" in found["advice"]


def test_a_database_that_does_not_answer(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_DATABASE_URL", "postgresql://me:secret@127.0.0.1:1/planner")
    found = examined(capsys, 2)["database"]
    assert found["state"] == "fail"
    assert "secret" not in json.dumps(found)


@pytest.mark.slow
def test_an_address_that_is_taken(healthy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        other.settimeout(30)
        assert run(["doctor", "--json", "--port", str(port)]) == 0
    document = json.loads(capsys.readouterr().out)
    (found,) = (check for check in document["checks"] if check["name"] == "address")
    assert found["state"] == "warn"
    assert f"--port {port + 1}" in found["advice"]


def test_a_fault_of_the_doctor_is_one_more_finding(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(checks, "_clock", fail)
    found = examined(capsys, 2)
    assert "ZeroDivisionError" in found["clock"]["found"]
    assert found["planning"]["state"] == "ok"


def test_settings_that_make_no_sense(
    healthy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_PORT", "many")
    assert run(["doctor"]) == 2
    assert "PLANNER_PORT" in capsys.readouterr().err
