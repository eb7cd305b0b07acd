"""Answers as HTML pages, and what a notebook shows of them."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from planner.cli import run

pytestmark = pytest.mark.slow

ASKED = [
    "--model", "llama-3.1-8b", "--cluster", "1x8xh100-sxm", "--seq-length", "8192",
    "--global-batch-size", "64",
]  # fmt: skip


class Page(HTMLParser):
    """The tags of a page, what it asks of elsewhere, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.elsewhere: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.elsewhere += [v for k, v in attrs if k in ("src", "href") and v and v[0] != "#"]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(
    ("words", "says", "pictures"),
    [
        (["plan", *ASKED, "--pp", "2", "--schedule", "1f1b"], "Best plan", 1),
        (["plan", *ASKED, "--pp", "1"], "Best plan", 0),
        (["plan", *ASKED, "--tp", "3"], "Nothing fits", 0),
        (["sensitivity", *ASKED, "--pp", "1", "--tp", "1,2", "--cp", "1", "--factors", "0.5,2",
          "--input", "nvlink_bandwidth_bytes_per_s"], "nvlink", 1),
        (["size", *ASKED[:2], *ASKED[4:], "--tokens", "1e11", "--sizes", "8,16",
          "--accelerators", "h100-sxm"], "Recommended", 1),
    ],
)  # fmt: skip
def test_a_report_is_the_screen_and_its_pictures(
    words: list[str], says: str, pictures: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.html"
    assert run([*words, "--report", str(file)]) in (0, 4)
    capsys.readouterr()
    page = Page(file.read_text(encoding="utf-8"))
    assert says in page.text
    assert page.tags.count("figure") == pictures
    assert page.elsewhere == []
    assert "script" not in page.tags


def test_a_report_that_cannot_be_written_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *ASKED, "--pp", "1", "--report", str(tmp_path / "no" / "out.html")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_hostile_names_stay_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = (
        'model: {name: "<script>alert(1)</script>", num_layers: 4, hidden_size: 1024, '
        "num_attention_heads: 8, vocab_size: 1000}\n"
        "cluster: 1x8xh100-sxm\ntraining: {seq_length: 2048, global_batch_size: 16}\n"
    )
    (tmp_path / "request.yaml").write_text(document)
    file = tmp_path / "out.html"
    assert run(["plan", str(tmp_path / "request.yaml"), "--report", str(file)]) == 0
    capsys.readouterr()
    page = Page(file.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in page.text


@pytest.mark.exhaustive
def test_a_notebook_shows_an_answer() -> None:
    """IPython's own formatter, in a process of its own: the answer's HTML, not its fields."""
    code = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "import planner\n"
        "answer = planner.plan(model='llama-3.1-8b', cluster='1x8xh100-sxm',"
        " training={'seq_length': 8192, 'global_batch_size': 64}, search={'pp': 2, 'tp': 2})\n"
        "shown, _ = shell.display_formatter.format(answer)\n"
        "assert 'Best plan' in shown['text/html'] and '<svg' in shown['text/html']\n"
        "why, _ = shell.display_formatter.format(planner.why(answer.request, plan={'tp': 8}))\n"
        "assert '<pre' in why['text/html']\n"
        "def html(one): return shell.display_formatter.format(one)[0]['text/html']\n"
        "assert 'launch.sh' in html(planner.emit(answer.request))\n"
        "grid = planner.sweep(base={'model': 'llama-3.1-8b', 'cluster': '1x8xh100-sxm',"
        " 'training': {'seq_length': 8192}, 'search': {'pp': 2, 'tp': 2}}, workers=1,"
        " axes={'training.global_batch_size': [64]})\n"
        "assert '1 request<' in html(grid)\n"
        "groups = [{'accelerator': kind, 'nodes': 1} for kind in ('h100-sxm', 'a100-sxm')]\n"
        "few = {'pp': [1, 2], 'tp': 8, 'cp': 1, 'micro_batch_size': 1}\n"
        "mixed = planner.plan(answer.request, cluster={'groups': groups}, search=few)\n"
        "assert 'these nodes alone' in html(mixed)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr
