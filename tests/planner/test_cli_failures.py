"""The command line: what cannot be read or written, and faults of its own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from planner import cli
from planner.presentation.terminal.output import Screen
from tests.fixtures.call_bound import bounded_work
from tests.planner.documents.test_loading import BAD_TEXTS
from tests.planner.inputs.requests.test_parser import ASKED, BAD, text_of
from tests.planner.test_cli import ALONE, NAMED, PLANNED, STARVED

NUMBERS = ",".join(map(str, range(1, 257)))
BOUNDLESS = ["--tp", NUMBERS, "--cp", NUMBERS, "--pp", NUMBERS]
# `plan` answers a cluster of two kinds: tests/planner/mixed.
BAD_FILES = {name: case for name, case in BAD.items() if name != "mixed cluster"}


@pytest.mark.slow
@pytest.mark.one_in(1, quick=3)
@pytest.mark.parametrize(("over", "pointer", "code", "says"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_request(
    ask: Any, tmp_path: Path, over: dict[str, Any], pointer: str, code: str, says: str
) -> None:
    asked = ASKED | over
    request = tmp_path / "request.json"
    request.write_text(text_of(asked))
    with bounded_work():
        status, out, err = ask("plan", str(request), "--json")
    assert (status, err) == (2, "")
    document = json.loads(out)
    assert document["status"] == 422
    assert document["errors"][0].keys() >= {"pointer", "code", "detail"}
    status, out, err = ask("plan", str(request))
    assert (status, out) == (2, "")
    assert err.startswith(("Bad input:\n  /", "Bad input:\n  --"))


@pytest.mark.slow
@pytest.mark.one_in(1, quick=4)
@pytest.mark.parametrize("text", [text for text, _ in BAD_TEXTS.values()], ids=BAD_TEXTS)
def test_bad_file(ask: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode())
    for words in (["plan", str(path)], ["plan", "--model", str(path)], ["model", str(path)]):
        with bounded_work():
            status, out, err = ask(*words)
        assert (status, out) == (2, "")
        assert err.startswith(("Bad input:\n  /", "Bad input:\n  --"))


@pytest.mark.one_in(1, quick=3)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "--model", "lama-3.1-70b", *PLANNED[2:]], "--model: no model 'lama-3.1-70b'"),
        (
            ["plan", *PLANNED[2:], "--model", "no-such/config.json"],
            "--model: cannot read 'no-such/config.json': No such file",
        ),
        (["plan", *PLANNED, "--seq-length", "abc"], "--seq-length: must be an integer"),
        (["plan", *PLANNED, "--seq-length", "0"], "--seq-length: must be >= 1, got 0"),
        (["plan", *PLANNED, "--seq-length", "nan"], "--seq-length: must be an integer"),
        (["plan", *PLANNED, "--tokens", ".nan"], "--tokens: must be a finite number"),
        (["plan", *PLANNED, "--tp", "1,.inf"], "--tp: must be a finite number"),
        (["plan", *PLANNED, *BOUNDLESS], "/search: the space is too large"),
        (["plan", *PLANNED, "--seq-length", "9" * 9000], "far beyond every limit"),
        (["plan", *PLANNED, "--seq-length", "-1"], "--seq-length: must be >= 1"),
        (["plan", *PLANNED, "--tp", "1..x"], "/search/tp/max"),
        (["plan", *PLANNED, "--recompute", "ful"], "--recompute: must be one of none"),
        (["plan", *PLANNED, "--tpp", "8"], "No such option"),
        (["plan", "a.yaml", "--request", "b.yaml"], "give the request once"),
        (["plan", "absent.yaml"], "No such file"),
        (["plan"], "--cluster: is required"),
        (["estimate", *PLANNED], "no plan is given: add --tp, --pp and others"),
        (["emit", *PLANNED, "--framework", "megaton"], "did you mean"),
        (["frobnicate"], "No such command"),
        (["model"], "Missing argument"),
        (["catalog", "planets"], "planets"),
        (["serve", "--host", "0.0.0.0"], "PLANNER_API_KEYS_SHA256"),
        (["serve", "--port", "99999"], "65535"),
    ],
)
def test_bad_words(ask: Any, words: list[str], says: str) -> None:
    status, out, err = ask(*words)
    assert (status, out) == (2, "")
    assert says in err
    if "--json" in ask("plan", "--help")[1] and words[0] in ("plan", "estimate", "emit"):
        status, out, err = ask(*words, "--json")
        assert (status, err) == (2, "")
        assert json.loads(out)["status"] == 422


@pytest.mark.parametrize("text", [b"", b"[", b"\xff", b"{}"])
def test_bad_standard_input(ask: Any, monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    status, out, err = ask("plan", "-")
    assert (status, out) == (2, "")
    assert err.startswith("Bad input:")


def test_our_fault(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of our own\nmaking")

    monkeypatch.setattr("planner.answers.plans.plan_answers.find", fail)
    status, out, err = ask("plan", *PLANNED)
    assert (status, out) == (1, "")
    assert err.splitlines()[0] == "planner failed: ZeroDivisionError: of our own"
    assert "report" in err
    status, out, _ = ask("plan", *PLANNED, "--json")
    assert (status, json.loads(out)["status"]) == (1, 500)
    monkeypatch.setenv("PLANNER_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.run(["plan", *PLANNED])


# Each way to write once: a screen, a document, files, help.  The exhaustive tests have the rest.
@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        f"estimate {' '.join(PLANNED)} --tp 8",
        "catalog models --json",
        f"emit {' '.join(NAMED)}",
        "plan --help",
        *(
            pytest.param(words, marks=pytest.mark.exhaustive)
            for words in (
                "catalog models",
                "model deepseek-v3",
                f"plan {' '.join(PLANNED)}",
                f"plan {' '.join(PLANNED)} --json",
                f"plan {' '.join(STARVED)}",
                f"why {' '.join(PLANNED)} --tp 8",
                "--help",
            )
        ),
    ],
)
def test_reader_that_leaves_early(words: str) -> None:
    command = f"set -o pipefail; {sys.executable} -u -m planner.cli {words} | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["catalog"], ["catalog", "--json"], ["plan", *ALONE], ["-h"]])
def test_full_device(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "planner.cli", *words],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert result.returncode == 2
    assert result.stderr == "Cannot write the output: No space left on device\n"


def test_no_escape_sequence_reaches_a_terminal(ask: Any, tmp_path: Path) -> None:
    """Whatever a document says, control characters come out as question marks."""
    page = io.StringIO()
    screen = Screen()
    screen.file = page
    screen.print(Group("a\x1b[2Jb", Text("c\x9b1md"), Panel("e\x07\u202ef")), markup=False)
    assert not {"\x1b", "\x9b", "\x07", "\u202e"} & set(page.getvalue())
    assert "a?[2Jb" in page.getvalue()
    request = tmp_path / "request.json"
    odd = {"model": "a\x1b[2J", "\x1b[1m": 1, "guessed": ["\x1b]0;x\x07"]}
    request.write_text(json.dumps(ASKED | odd))
    for words in (["plan", str(request)], ["plan", str(request), "--json"]):
        _, out, err = ask(*words)
        assert not {"\x1b", "\x07"} & set(out + err)
    request.write_text(json.dumps(ASKED | {"guessed": ["\x1b]0;x\x07"]}))
    _, out, err = ask("plan", str(request))
    assert not {"\x1b", "\x07"} & set(out + err)
