"""Figures for papers: files of their kind, the same for the same answer, and what is refused."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner import cli, plan, size
from planner.documents.answer import PlanAnswer
from planner.drawing.figure import WIDE_INCH
from planner.drawing.plan_figure import plan_figure
from planner.drawing.sizing_figure import sizing_figure
from planner.sizing.answer import SizingAnswer

TRAINING = {"seq_length": 4096, "global_batch_size": 64}
WORDS = ["--model", "llama-3.1-8b", "--seq-length", "4096", "--global-batch-size", "64"]
PLANNED = ["plan", *WORDS, "--cluster", "1x8xh100-sxm", "--pp", "1", "--framework", "megatron"]
MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF-", "svg": b"<?xml"}


@cache
def answers() -> tuple[PlanAnswer, SizingAnswer]:
    planned = plan(
        model="llama-3.1-8b", cluster="1x8xh100-sxm", training=TRAINING,
        search={"pp": 4, "tp": 2, "schedule": "1f1b", "framework": "megatron"},
    )  # fmt: skip
    assert isinstance(planned, PlanAnswer)
    sized = size(
        model="llama-3.1-8b", training={**TRAINING, "tokens": 1e11},
        sizing={"accelerators": ["h100-sxm", "l40s"], "sizes": [8, 16]},
    )  # fmt: skip
    return planned, sized


def drawn(kind: Any) -> list[bytes]:
    """A plan and a sizing."""
    planned, sized = answers()
    return [plan_figure(planned, kind), sizing_figure(sized, kind)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAGIC)
def test_kinds(kind: Any) -> None:
    for data, again in zip(drawn(kind), drawn(kind), strict=True):
        assert data.startswith(MAGIC[kind])
        assert data == again


@pytest.mark.slow
def test_of_the_width_of_a_page_with_fonts_in_the_file() -> None:
    for data in drawn("png"):
        assert struct.unpack(">I", data[16:20])[0] == WIDE_INCH * 300
    for data in drawn("pdf"):
        assert b"/FontFile2" in data  # TrueType, which journals take; Type 3 they refuse
        assert b"/Type3" not in data.replace(b" ", b"")


@pytest.mark.slow
def test_what_is_written_in_a_figure() -> None:
    """Every stage and part, the axes with their units."""
    from matplotlib import font_manager

    assert font_manager.findfont("DejaVu Sans", fallback_to_default=False)
    planned, sized = (data.decode() for data in drawn("svg"))
    for words in ("pipeline stage", "GiB", "tokens per second", "weights", "backward"):
        assert f"<!-- {words}" in planned
    for words in ("cost of the training", "days", "h100-sxm-80gb"):
        assert f"<!-- {words}" in sized


@pytest.mark.slow
def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {kind: tmp_path / f"a.{kind}" for kind in MAGIC}
    options = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    assert cli.run([*PLANNED, *options]) == 0
    sizing = [*WORDS, "--tokens", "1e11", "--accelerators", "h100-sxm", "--sizes", "8"]
    assert cli.run(["size", *sizing, "--pdf", str(tmp_path / "b.pdf")]) == 0
    one = ["timeline", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8",
           "--forward-s", "1", "--input-grad-s", "1", "--weight-grad-s", "1"]  # fmt: skip
    assert cli.run([*one, "--pdf", str(tmp_path / "c.pdf")]) == 0
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(MAGIC[path.suffix[1:]])
    assert len(list(tmp_path.iterdir())) == 5
    capsys.readouterr()


def test_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = tmp_path / "mixed.yaml"
    mixed.write_text(
        "model: llama-3.1-8b\n"
        "training: {seq_length: 4096, global_batch_size: 64}\n"
        "cluster: {groups: [{accelerator: h100-sxm, nodes: 1}, {accelerator: l40s, nodes: 1}]}\n"
    )
    path = str(tmp_path / "x.png")
    assert cli.run(["plan", str(mixed), "--png", path]) == 2
    assert "equal nodes" in capsys.readouterr().err
    monkeypatch.setattr("planner.drawing.png.find_spec", lambda name: None)
    assert cli.run([*PLANNED, "--png", path]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert not Path(path).exists()
