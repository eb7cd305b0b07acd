"""Results of validations are found again by the plan they are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.data_folder import VARIABLE, data_folder, write_whole
from planner.documents.problems import RequestError
from planner.documents.request import PlanRequest
from planner.inputs.requests.parser import parse_request
from planner.running.validate import results

REPORT = {
    "verdict": "within",
    "predicted_iteration_time_s": 1.25,
    "measured_iteration_time_s": {"median": 1.5},
    "scaled_from": {},
}


def request(tp: int) -> PlanRequest:
    return parse_request(
        {
            "model": "llama-3.1-8b",
            "cluster": "1x8xh100-sxm",
            "training": {"seq_length": 4096, "global_batch_size": 64},
            "plan": {"tp": tp},
        }
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_a_result_stays_with_its_plan() -> None:
    first = results.keep(request(2), REPORT)
    second = results.keep(request(2), {**REPORT, "verdict": "outside"})
    results.keep(request(4), REPORT)
    assert [kept.id for kept in results.of_request(request(2))] == [second.id, first.id]
    assert len(results.everything()) == 3
    assert results.find(first.id) == first
    assert results.of_request(request(8)) == []
    assert "within, 1.5 s measured, 1.25 s predicted" in first.sentence


def test_an_unknown_id_is_bad_input() -> None:
    with pytest.raises(RequestError, match="no validation"):
        results.find("../../etc/passwd")


def test_junk_in_the_folder_is_no_result(folder: Path) -> None:
    results.keep(request(2), REPORT)
    (folder / "validations" / "notes.json").write_text("{")
    assert len(results.everything()) == 1


def test_the_folder_follows_the_usual_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert data_folder("profiles") == Path("/somewhere/parallel-planner/profiles")


def test_a_write_that_fails_leaves_what_was_there(folder: Path) -> None:
    path = folder / "whole.txt"
    write_whole(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "after \ud800")
    assert path.read_text() == "before"
    assert list(folder.iterdir()) == [path]
