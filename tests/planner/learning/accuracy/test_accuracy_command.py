"""`planner accuracy` as it is typed: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from planner.commands import accuracy as command
from planner.evidence.published_runs.runs import read_runs
from planner.learning.accuracy.accuracy_answer import AccuracyAnswer
from planner.learning.accuracy.compute import answer_of
from planner.learning.accuracy.predict import predict
from planner.presentation.drawing.accuracy_page import page
from planner.presentation.drawing.accuracy_plot import MARKS, MAX_POINTS, drawable, scatter, strip
from planner.presentation.terminal.progress_bar import counted
from tests.fixtures.commands import Planner
from tests.planner.learning.accuracy.drawn_runs import ROW, written


@pytest.fixture
def ask(ask: Planner) -> Planner:
    return partial(ask, "accuracy")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        ROW,
        {**ROW, "id": "slow", "tp": "8", "dp": "1", "derived_iteration_time_s": "20"},
        {**ROW, "id": "third", "micro_batch": "2", "derived_iteration_time_s": "8"},
        {**ROW, "id": "open", "micro_batch": "", "recompute": ""},
        {**ROW, "id": "doubt", "confidence": "low"},
        {**ROW, "id": "full", "oom": "1", "derived_iteration_time_s": ""},
        {**ROW, "id": "odd", "gpu": "abacus"},
        {**ROW, "id": "layer", "source_key": "layers", "schedule": "LAYER_MICROBENCH",
         "derived_iteration_time_s": "0.02"},
    ]  # fmt: skip
    return written(tmp_path / "runs.csv", rows)


def test_the_scores(ask: Any, data: Path) -> None:
    code, out, err = ask("--data", str(data))
    assert (code, err) == (0, "")
    assert "7 of 8 rows predicted (87.5 %) · 4 scored" in out
    for words in (
        "1 with open inputs", "1 in doubt", "1 without a time", "mean of 2 source medians",
        "layers, layers", "0 of 1 out-of-memory runs caught", "Kendall's tau-b",
        "drawn: llama-3.1-8b, 8 x H100 SXM", "mbs, recompute", "Furthest off", "odd: gpu 'abacus'",
    ):  # fmt: skip
        assert words in out


@pytest.mark.parametrize("width", ["60", "80", "140"])
def test_no_line_is_wider_than_the_terminal(
    ask: Any, data: Path, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    for line in ask("--data", str(data))[1].splitlines():
        assert len(line) <= int(width)


def test_runs_that_are_shown(ask: Any, data: Path) -> None:
    code, out, err = ask("--data", str(data), "--shots", "0,1", "--json")
    assert code == 0, err
    assert set(json.loads(out)["summary"]["shots"]) <= {"0", "1"}
    for text in ("1,x", "", "-1", "101", "9" * 5000):
        code, _, err = ask("--data", str(data), "--shots", text)
        assert code == 2
        assert "numbers from 0 to 100" in err


def test_every_row_with_what_was_assumed(ask: Any, data: Path) -> None:
    code, out, _ = ask("--data", str(data), "--rows")
    assert code == 0
    lines = out[: out.index("\n\n")].splitlines()
    assert [line.split()[0] for line in lines] == [
        "row", "a", "slow", "third", "open", "doubt", "full", "odd", "layer",
    ]  # fmt: skip
    assert re.search(r"^odd +not predicted: gpu 'abacus'", out, re.M)
    assert re.search(r"^ +1  .*\(\d rows\)$", out, re.M)


def test_one_source(ask: Any, data: Path) -> None:
    code, out, _ = ask("--data", str(data), "--source", "layers", "--json")
    document = json.loads(out)
    assert code == 0
    assert [row["id"] for row in document["rows"]] == ["layer"]
    code, out, err = ask("--data", str(data), "--source", "layer")
    assert (code, out) == (2, "")
    assert "did you mean layers?" in err


def test_one_document_and_nothing_else(ask: Any, data: Path, tmp_path: Path) -> None:
    html = tmp_path / "page.html"
    code, out, err = ask("--data", str(data), "--json", "--html", str(html))
    assert (code, err) == (0, "")
    answer = AccuracyAnswer.model_validate_json(out)
    assert answer.data == "runs.csv"
    assert answer.summary.rows == 8
    assert html.read_text(encoding="utf-8") == page(answer)


def test_a_page_that_cannot_be_written(ask: Any, data: Path, tmp_path: Path) -> None:
    code, out, err = ask("--data", str(data), "--html", str(tmp_path / "none" / "page.html"))
    assert (code, out) == (2, "")
    assert "cannot write" in err


def test_the_page_shows_every_row(data: Path) -> None:
    answer = answer_of(data.name, map(predict, read_runs(data)))
    drawn = page(answer)
    for row in answer.rows:
        assert f"<th scope=row class=t>{row.id}</th>" in drawn
    assert "prefers-color-scheme:dark" in drawn
    assert "<script" not in drawn
    for heading in ("Time by source", "Peak memory", "Ranking", "Inputs open", "Furthest off",
                    "Not predicted", "All 8 rows", "Assumptions"):  # fmt: skip
        assert f"<h2>{heading}</h2>" in drawn


def test_each_mark_says_what_it_is(data: Path) -> None:
    answer = answer_of(data.name, map(predict, read_runs(data)))
    rows = drawable(answer.rows)
    assert [row.id for row in rows] == ["a", "slow", "third", "open", "layer"]
    order = ["drawn", "layers"]
    for picture in (scatter(rows, order), strip(rows, order, {"drawn": 0.1})):
        root = ElementTree.fromstring(picture)
        titles = [t.text or "" for dot in root.iter("path") for t in dot.iter("title")]
        assert [title.split("\n")[0] for title in titles] == [row.id for row in rows]
        assert "tp 8" in titles[1]
        assert "not stated" in titles[3]
        assert "of one layer" in titles[4]
    assert len(set(MARKS)) == len(MARKS)


def test_a_page_of_nothing_measured(tmp_path: Path) -> None:
    path = written(tmp_path / "runs.csv", [{**ROW, "derived_iteration_time_s": ""}])
    answer = answer_of(path.name, map(predict, read_runs(path)))
    assert "No row has both" in page(answer)


def test_very_many_rows_are_drawn_thinned(data: Path) -> None:
    answer = answer_of(data.name, map(predict, read_runs(data)))
    many = [answer.rows[0]] * (MAX_POINTS + 7)
    assert len(drawable(many)) == MAX_POINTS
    large = answer.model_copy(update={"rows": many})
    assert f"{MAX_POINTS:,} of {MAX_POINTS + 7:,} rows are drawn" in page(large)


def test_progress_is_for_a_terminal_that_waits(
    ask: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "counted", partial(counted, patience_s=-1.0))
    assert ask("--data", str(data), "--json")[2] == ""  # no terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = ask("--data", str(data), "--json")
    assert code == 0
    assert "predicting" in err
    json.loads(out)
