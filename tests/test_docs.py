"""The documentation: its lessons show what is printed, its pictures are current, it builds."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from planner.data_folder import VARIABLE
from planner.questions.question import resolved
from planner.questions.registry import QUESTIONS
from tools import pictures, shown_output

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE = ROOT / "tools" / "docs_site" / "mkdocs.yml"
LONGEST = 520  # characters of a paragraph: five lines
SHORT = ("index", "tutorial", "one-request", "answers", "how-to/*", "explanation/*", "examples/*")
# How long something took on the machine that wrote the page.
TOOK = re.compile(r"in [\d.]+ m?s\b")


@pytest.mark.slow
@pytest.mark.parametrize("page", shown_output.pages(), ids=lambda page: page.stem)
def test_a_page_shows_what_is_printed(page: Path) -> None:
    now, kept = shown_output.in_folder(page), page.read_text(encoding="utf-8")
    assert TOOK.sub("", now) == TOOK.sub("", kept), "python -m tools.shown_output --write"


def test_lines_beside_an_ellipsis_are_found_again() -> None:
    printed = ["model a", "time 2 s", "", "rank 0", "rank 1"]
    assert shown_output.current(["time 1 s", "...", "rank 1"], printed) == [
        "time 2 s", "...", "rank 1",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="memory"):
        shown_output.current(["...", "memory 3 GiB"], printed)


def test_the_documents_of_questions_are_taken() -> None:
    """Those in a table of their own: by the parser of the question that their row names."""
    text = (DOCS / "python-and-http.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w/-]+)`: .*? \| `(\{.*\})` \|$", text, re.MULTILINE)
    parsers = {one.path.strip("/"): resolved(one.parse) for one in QUESTIONS.values() if one.parse}
    for path, document in rows:
        parsers[path](json.loads(document))
    assert len(rows) == 4


@pytest.mark.parametrize("name", pictures.CHUNKS)
def test_schedules_are_drawn_as_they_are(name: str) -> None:
    kept = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert kept == pictures.schedule(name), "python -m tools.pictures schedules"


@pytest.mark.slow
@pytest.mark.parametrize("name", pictures.ILLUSTRATED)
def test_examples_are_drawn_as_they_answer(name: str) -> None:
    kept = (pictures.EXAMPLES / f"{name}.svg").read_text(encoding="utf-8")
    assert kept == pictures.example(name), "python -m tools.pictures examples"


@pytest.mark.parametrize(
    "page",
    [page for name in SHORT for page in sorted(DOCS.glob(f"{name}.md"))],
    ids=lambda page: page.relative_to(DOCS).as_posix(),
)
def test_paragraphs_are_short(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    # A link's target is not read.
    shown = [re.sub(r"\]\([^)]*\)", "]", line) for line in lines]
    assert [line for line in shown if len(line) > LONGEST] == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Strictly: every link, anchor and picture leads somewhere, and every page is in the menu."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", SITE, "-d", tmp_path]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, env=quiet)
    assert built.returncode == 0, built.stderr
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    made = {
        page.relative_to(tmp_path).with_suffix("").as_posix() for page in tmp_path.rglob("*.html")
    }
    assert {re.sub(r"\bREADME$", "index", page) for page in pages} <= made
    outside = re.compile(r'<(?:script|link|img)[^>]* (?:src|href)="(?:https?:)?//')
    assert [
        page.name for page in tmp_path.rglob("*.html") if outside.search(page.read_text())
    ] == []


@pytest.mark.exhaustive
def test_the_example_that_measures_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    runpy.run_path(str(DOCS / "examples" / "calibrate.py"), run_name="__main__")
    before, after = re.findall(r"^(?:before|after): ([\d.]+) s", capsys.readouterr().out, re.M)
    assert before != after


def test_every_example_is_in_the_gallery() -> None:
    gallery = (DOCS / "examples" / "README.md").read_text(encoding="utf-8")
    files = {file.name for file in (DOCS / "examples").iterdir() if file.is_file()}
    assert files - {"README.md"} == set(re.findall(r"\]\((\w+\.\w+)\)", gallery))
