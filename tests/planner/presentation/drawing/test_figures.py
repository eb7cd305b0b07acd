"""Figures for papers: files of their kind, the same for the same answer, and what is refused."""

from __future__ import annotations

import struct
import zlib
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from planner import cli, plan, size
from planner.answers.sizing.answer import SizingAnswer
from planner.documents.answer import PlanAnswer
from planner.presentation.drawing.plan_figure import plan_figure
from planner.presentation.drawing.rendering import Kind, drawing
from planner.presentation.drawing.sizing_figure import sizing_figure
from planner.presentation.drawing.theme import Theme

SVG = "{http://www.w3.org/2000/svg}"
TRAINING = {"seq_length": 4096, "global_batch_size": 64}
WORDS = ["--model", "llama-3.1-8b", "--seq-length", "4096", "--global-batch-size", "64"]
PLANNED = ["plan", *WORDS, "--cluster", "1x8xh100-sxm", "--pp", "1", "--framework", "megatron"]
MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF-", "svg": b"<svg "}


@cache
def answers() -> tuple[PlanAnswer, SizingAnswer]:
    planned = plan(
        model="llama-3.1-8b", cluster="1x8xh100-sxm", training=TRAINING,
        search={"pp": 4, "tp": 2, "schedule": "1f1b", "framework": "megatron"},
    )  # fmt: skip
    assert isinstance(planned, PlanAnswer)
    sized = size(
        model="llama-3.1-8b", training={**TRAINING, "tokens": 1e11},
        sizing={"accelerators": ["h100-sxm", "l40s"], "sizes": [16, 32]},
    )  # fmt: skip
    return planned, sized


def drawn(kind: Kind, theme: Theme = "auto") -> list[bytes]:
    """A plan and a sizing."""
    planned, sized = answers()
    figures = (partial(plan_figure, planned), partial(sizing_figure, sized))
    return [drawing(figure, kind, theme) for figure in figures]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAGIC)
def test_kinds(kind: Kind) -> None:
    for data, again in zip(drawn(kind), drawn(kind), strict=True):
        assert data.startswith(MAGIC[kind])
        assert data == again


@pytest.mark.slow
def test_of_the_width_of_a_page_with_fonts_in_the_file() -> None:
    for data in drawn("png"):
        assert struct.unpack(">I", data[16:20])[0] == 7 * 300
    for data in drawn("pdf"):
        assert b"/FontFile2" in data  # TrueType, which journals take; Type 3 they refuse
        assert b"/Type3" not in data.replace(b" ", b"")


@pytest.mark.slow
def test_what_is_written_in_a_figure() -> None:
    """Every stage and part, the axes with their units."""
    planned, sized = (ElementTree.fromstring(data) for data in drawn("svg"))
    stages = {"0", "1", "2", "3"}
    axes = {"pipeline stage", "GiB", "peak memory, GiB", "tokens per second", "seconds"}
    assert {*stages, *axes, "weights", "activations", "best plan"} <= written(planned)
    assert any(words.startswith("backward 2.") for words in written(planned))
    assert {"cost of the training", "5.00 days", "h100-sxm-80gb", "16", "32"} <= written(sized)


def written(figure: ElementTree.Element) -> set[str]:
    return {"".join(node.itertext()).strip() for node in figure.iter(f"{SVG}text")}


@pytest.mark.slow
def test_bars_add_up() -> None:
    """Of the stages to their peak memory, of the parts to the whole iteration."""
    planned, _ = answers()
    assert planned.best is not None
    root = ElementTree.fromstring(plan_figure(planned))
    boxes = [
        {side: float(node.get(side, "")) for side in ("x", "y", "width", "height")}
        for node in root.findall(f"{SVG}rect[@fill]")
    ]
    bars = [box for box in boxes if box["width"] == boxes[0]["width"]]
    feet = sorted({box["x"] for box in bars})
    high = [sum(box["height"] for box in bars if box["x"] == x) for x in feet]
    peaks = [stage.total_bytes for stage in planned.best.memory.stages]
    assert high == pytest.approx([high[0] * peak / peaks[0] for peak in peaks], rel=0.01)
    (long,) = {box["height"] for box in boxes if box["width"] > 200}
    assert sum(box["width"] for box in boxes if box["height"] == long) == pytest.approx(600, abs=1)


@pytest.mark.slow
def test_colours_of_the_theme_are_painted() -> None:
    """A picture whose style sheet was not understood is black."""
    light, dark = (drawn("png", theme)[0] for theme in ("light", "dark"))
    assert light == drawn("png")[0]
    for data, page in ((light, "#ffffff"), (dark, "#14181d")):
        assert pixel(data) == tuple(bytes.fromhex(page[1:]))


def pixel(png: bytes) -> tuple[int, ...]:
    """The first pixel of a PNG, which no filter of its line can change."""
    data, at = b"", 8
    while at < len(png):
        (length,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        data += png[at + 8 : at + 8 + length] * (kind == b"IDAT")
        at += 12 + length
    return tuple(zlib.decompress(data)[1:4])


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
    monkeypatch.setattr("planner.presentation.drawing.rendering.find_spec", lambda name: None)
    assert cli.run([*PLANNED, "--png", path]) == 2
    assert "pip install typst" in capsys.readouterr().err
    assert not Path(path).exists()
