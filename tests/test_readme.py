"""The examples of the README and of docs/ run, and their links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from planner import cli
from planner.commands.failures import FINE
from planner.commands.validate import OUTSIDE
from planner.data_folder import VARIABLE
from planner.documents.loading import parse_text
from planner.inputs.requests.parser import parse_request
from planner.running.sweeps.grid import parse_grid

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
# The formulas are written by a command, and tested where the guides are; so are the recipes.
PAGES = [
    ROOT / "README.md",
    *(
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if page.name not in ("adding.md", "formulas.md")
    ),
]


def blocks(language: str) -> list[str]:
    """Every block of a language, each once."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return list(
        dict.fromkeys(found for page in PAGES for found in pattern.findall(page.read_text()))
    )


LINES = list(dict.fromkeys(line for block in blocks("sh") for line in block.splitlines()))
# Sizing answers a search for each accelerator of the catalog and each number of them: half a minute
# of work, of which one number of two accelerators is enough before every merge.
SIZING = [line for line in LINES if line.startswith("planner size ")]
COMMANDS = [
    *(line for line in LINES if line not in SIZING),
    *(
        pytest.param(
            f"{line} --sizes 512" + " --accelerators h200,mi300x" * ("--accelerators" not in line),
            marks=pytest.mark.slow,
        )
        for line in SIZING
    ),
    *(pytest.param(line, marks=pytest.mark.exhaustive) for line in SIZING),
]


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS)
def test_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *words = shlex.split(line)
    assert program == "planner"
    assert cli.run(words) == 0
    assert capsys.readouterr().out


@pytest.mark.slow
def test_python(capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("python"):
        exec(block, {})
        assert capsys.readouterr().out


def test_requests() -> None:
    grid, request = map(parse_text, blocks("yaml"))
    assert parse_request(request).search.limits
    assert parse_grid(grid).count == 6


@pytest.mark.exhaustive
def test_commands_that_run_torch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order: the last lists what the first kept.  A real run may be outside its prediction."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    (block,) = blocks("bash")
    for line in block.splitlines():
        program, *words = shlex.split(line)
        assert program == "planner"
        assert cli.run(words) in ((FINE, OUTSIDE) if words[0] == "validate" else (FINE,))
        assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)|(?:src|srcset)=\"([^\"]+)\"", text)
    inside = [one or picture for one, picture in targets if "://" not in one]
    assert [one for one in inside if not (page.parent / one).exists()] == []


def test_every_page_is_linked_from_the_start() -> None:
    """The README leads to the index of docs/, and that to all other pages."""
    assert "(docs/index.md)" in README
    index = ROOT / "docs" / "index.md"
    linked = {index.parent / one for one in re.findall(r"\(([\w/-]+\.md)\)", index.read_text())}
    assert {*PAGES[1:]} - {index} <= linked


def test_the_picture_of_the_readme_is_small() -> None:
    pictures = [ROOT / one for one in re.findall(r'(?:src|srcset)="([^"]+)"', README)]
    assert len(pictures) == 2
    assert sum(picture.stat().st_size for picture in pictures) < 300_000


def test_the_two_commands() -> None:
    start = "python3 -m venv .venv && .venv/bin/pip install -q -c constraints.txt "
    assert f"\n{start}'.[serve]' && .venv/bin/planner serve\n" in README
    second = f"{start}-e '.[test]' && .venv/bin/python -m pytest"
    assert f"\n{second}\n" in README
    assert second in (Path(__file__).parent.parent / ".ci/run").read_text()


def test_the_answer_that_the_readme_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it but for how long the search took, and what to type next; the short one is of it."""
    (line,) = re.findall(r"^`\.venv/bin/(planner plan .*)` prints in a", README, re.MULTILINE)
    short, whole = re.findall(r"^```\n(llama.*?)\n^```", README, re.DOTALL | re.MULTILINE)
    monkeypatch.setenv("COLUMNS", "88")
    assert cli.run(shlex.split(line)[1:]) == 0
    printed = capsys.readouterr().out.partition("\nNext\n")[0]
    took = re.compile(r"priced in [\d.]+ m?s")
    assert took.sub("", printed).strip() == took.sub("", whole).strip()
    rest = iter(whole.splitlines())
    assert all(one in rest for one in short.splitlines())  # in the same order
    assert len(short.splitlines()) < 13
