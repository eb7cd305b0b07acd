"""Calibrations in the user's folder are profiles by name, everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.catalog.names import UnknownName
from planner import cli
from planner.answers.plans import plan_answers
from planner.documents.problems import RequestError
from planner.evidence.uncertainty import profiles
from planner.inputs.requests.parser import parse_request
from tests.cost_models.test_calibrations import calibration, gemms

REQUEST: dict[str, Any] = {
    "model": "llama-3.1-8b", "cluster": "1x8xh100-sxm",
    "training": {"seq_length": 4096, "global_batch_size": 8},
    "plan": {"tp": 8, "sequence_parallel": True},
    "search": {"top_k": 1},
}  # fmt: skip


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A calibration `mine` of matrix products, in a folder of its own."""
    monkeypatch.setenv("PLANNER_DATA_DIR", str(tmp_path))
    return profiles.save(calibration(gemm=gemms(1e14)))


def test_a_saved_calibration_is_found_by_its_name(saved: Path) -> None:
    found = profiles.find(" Mine ")
    assert (found.id, found.kind) == ("mine", "calibrated")
    assert profiles.find("mine") is found
    profiles.save(calibration())
    assert profiles.find("mine").measured_terms == ()


def test_a_plan_is_priced_by_it_and_says_so(saved: Path) -> None:
    usual, own = parse_request(REQUEST), parse_request({**REQUEST, "profile": "mine"})
    assert usual.plan is not None
    answer = plan_answers.estimate(own, usual.plan)
    assert answer.profile.kind == "calibrated"
    assert answer.profile.measured == {"gemm": ("forward", "backward", "recompute")}
    before = plan_answers.estimate(usual, usual.plan)
    assert before.profile.measured == {}
    parts = answer.estimate.time_parts_s, before.estimate.time_parts_s
    assert parts[0]["forward"] != parts[1]["forward"]
    assert parts[0]["optimizer"] == parts[1]["optimizer"]


def test_an_unknown_name_gets_the_nearest_of_all(saved: Path) -> None:
    with pytest.raises(UnknownName) as caught:
        profiles.find("mime")
    assert "mine" in caught.value.nearest
    with pytest.raises(RequestError) as refused:
        parse_request({**REQUEST, "profile": "h100-sxn"})
    (problem,) = refused.value.problems
    assert problem.pointer == "/profile"
    assert "h100-sxm" in problem.did_you_mean


@pytest.mark.parametrize("name", ["../mine", "/etc/passwd", "..", "mine.json", "", "a\0b"])
def test_a_name_is_no_path(saved: Path, name: str) -> None:
    (saved.parent.parent / "mine.json").write_bytes(saved.read_bytes())
    with pytest.raises(UnknownName):
        profiles.find(name)


def test_a_built_in_profile_is_never_hidden(saved: Path) -> None:
    (saved.parent / "h100-sxm.json").write_bytes(saved.read_bytes())
    assert profiles.find("h100-sxm").kind == "built in"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"id": "mine"}', "\0" * 100, "{}" * 100, '{"points": NaN}']
)
def test_a_file_that_is_none_is_bad_input(saved: Path, text: str) -> None:
    saved.write_text(text)
    with pytest.raises(RequestError) as caught:
        parse_request({**REQUEST, "profile": "mine"})
    (problem,) = caught.value.problems
    assert problem.pointer == "/profile"
    assert "mine" in problem.detail


def test_a_huge_file_is_not_read(saved: Path) -> None:
    with saved.open("r+b") as file:
        file.truncate(profiles.MOST_BYTES + 1)
    with pytest.raises(ValueError, match="at most"):
        profiles.find("mine")


@pytest.mark.slow
def test_commands_take_it(saved: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(REQUEST))
    for command in ("estimate", "plan", "timeline"):
        said = []
        for more in ((), ("--profile", "mine")):
            assert cli.run([command, str(request), "--json", *more]) == 0
            said.append(json.loads(capsys.readouterr().out))
        assert said[0] != said[1]


@pytest.mark.slow
def test_accuracy_takes_it_for_rows_of_the_profile_it_extends(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(*more: str) -> str:
        assert cli.run(["accuracy", "--source", "titan_h200", *more]) == 0
        return capsys.readouterr().out

    assert rows("--profile", "mine") == rows()  # H200s: another profile
    assert cli.run(["accuracy", "--profile", "nobody"]) == 2


@pytest.mark.parametrize("name", ["h100-sxm", "../x", "A B", "x" * 65])
def test_a_calibration_cannot_have_any_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["calibrate", "--name", name]) == 2
    assert "--name: " in capsys.readouterr().err
