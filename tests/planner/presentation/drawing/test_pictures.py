"""Pictures of timelines: well formed, whole, closed in themselves, and readable without colour."""

from __future__ import annotations

import json
import re
from functools import lru_cache, partial
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from cost_models.schedules import SCHEDULES
from planner.answers.pipelines import timeline_lanes
from planner.answers.pipelines.timeline import TimelineAnswer, parse_timeline, timeline
from planner.answers.pipelines.timeline_lanes import KINDS, kinds_in, lanes
from planner.presentation.drawing.html import html
from planner.presentation.drawing.rendering import SCREEN_INCH, drawing
from planner.presentation.drawing.svg import SPAN, svg
from planner.presentation.drawing.theme import COLOURS, Mode
from planner.presentation.drawing.trace import trace

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert(1)</script>\"'&]]>--><!--"


@lru_cache(maxsize=2)  # the tests of one pipeline follow each other
def run(schedule: str = "1f1b", stages: int = 4, micro_batches: int = 8, **over: Any) -> Any:
    asked = {"forward_s": 1.0, "input_grad_s": 1.0, "weight_grad_s": 1.0, **over}
    sizes = {"schedule": schedule, "stages": stages, "micro_batches": micro_batches}
    return timeline(parse_timeline(sizes | asked))


CASES: dict[str, dict[str, Any]] = {
    **{schedule: {"schedule": schedule, "p2p_s": 0.1} for schedule in SCHEDULES},
    "one step": {"stages": 1, "micro_batches": 1},
    "no weight gradient": {"schedule": "zb-h1", "weight_grad_s": 0.0},
    "many": {"stages": 16, "micro_batches": 128},
    "very many": {"schedule": "zb-v", "stages": 32, "micro_batches": 256, "p2p_s": 0.2},
    "most ranks": {"stages": 256, "micro_batches": 256},
    "nanoseconds": {"forward_s": 1e-9, "input_grad_s": 2e-9, "weight_grad_s": 1e-9},
    "uneven": {"schedule": "zb-h1", "weight_grad_s": 1e-6, "p2p_s": 3.0},
    "weeks": {"forward_s": 1e6, "input_grad_s": 1e6, "weight_grad_s": 1e6},
}


# A second or more to draw.
LARGE = ("very many", "most ranks")
DRAWN = [
    pytest.param(case, id=name, marks=pytest.mark.slow if name in LARGE else ())
    for name, case in CASES.items()
]


@pytest.fixture(scope="module", params=DRAWN)
def answer(request: pytest.FixtureRequest) -> TimelineAnswer:
    drawn: TimelineAnswer = run(**request.param)
    return drawn


@pytest.mark.one_in(2)
def test_svg(answer: TimelineAnswer) -> None:
    text = svg(answer)
    root = ElementTree.fromstring(text)
    assert len(text) < 3_000_000
    words = [" ".join(node.itertext()) for node in root.iter(f"{SVG}text")]
    for kind in (*(KINDS[kind] for kind in kinds_in(answer)), "idle"):
        assert kind in words  # in the legend
    assert len(root.findall(f"{SVG}svg")) == answer.stages
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert answer.title in (title.text or "")
    assert "bubble" in (description.text or "")
    assert root.get("role") == "img"
    assert set((root.get("aria-labelledby") or "").split()) == {
        title.get("id"),
        description.get("id"),
    }
    assert_closed(text)
    assert "nan" not in re.sub(r"<(title|desc|style|text).*?</\1>", "", text, flags=re.S).lower()


def assert_closed(text: str) -> None:
    """Nothing is fetched: every reference is to the file itself."""
    for reference in re.findall(r"""(?:href|src)=["']?([^"'> ]+)|url\(([^)]+)\)""", text):
        assert "".join(reference).startswith("#")
    assert "@import" not in text
    assert set(re.findall(r"[a-z]+://[^\s\"'<]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.one_in(2)
def test_html(answer: TimelineAnswer) -> None:
    text = html(answer)
    assert text.startswith("<!doctype html>")
    assert text.count("<svg ") == 1 + answer.stages
    assert_closed(text)
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text, re.S)[0])
    assert [len(flat) for flat in data["ranks"]] == [
        5 * (len(actions) + len(waits))
        for actions, waits in zip(answer.actions, answer.waits, strict=True)
    ]
    # Gaps and lengths lead back to the times.
    flat = np.array(data["ranks"][0]).reshape(-1, 5)
    ends = np.cumsum(flat[:, 3] + flat[:, 4]) / data["ticks"] * data["makespan_s"]
    assert ends[-1] == pytest.approx(lanes(answer)[0].end_s[-1])
    rows = re.findall(r"<tr><th scope=row>(\d+)", text)
    assert rows == [str(rank) for rank in range(answer.stages)]


@pytest.mark.one_in(2)
def test_trace(answer: TimelineAnswer) -> None:
    document = json.loads(trace(answer))
    events = document["traceEvents"]
    phases = [event["ph"] for event in events]
    assert set(phases) <= {"M", "X", "C"}
    steps = sum(map(len, answer.actions)) + sum(map(len, answer.waits))
    assert phases.count("X") == steps
    assert phases.count("M") == 1 + 2 * answer.stages
    for event in events:
        assert isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert 1 <= event["tid"] <= answer.stages
    first = next(event for event in events if event["ph"] == "X")
    assert first["args"] == {"micro_batch": 0, "chunk": answer.actions[0][0].chunk}
    assert max(e["ts"] + e["dur"] for e in events if e["ph"] == "X") == pytest.approx(
        1e6 * answer.makespan_s
    )
    held = [e["args"]["activations"] for e in events if e["ph"] == "C"]
    assert max(held) == max(answer.peak_in_flight)


def test_svg_draws_every_action_once() -> None:
    root = ElementTree.fromstring(svg(run(schedule="zb-h1", p2p_s=0.1)))
    answer = run(schedule="zb-h1", p2p_s=0.1)
    for lane, actions, waits in zip(
        root.findall(f"{SVG}svg"), answer.actions, answer.waits, strict=True
    ):
        paths = lane.findall(f"{SVG}g/{SVG}path")
        boxes = sum((p.get("d") or "").count("M") for p in paths if p.get("class") != "memory")
        assert boxes == len(actions) + len(waits)
        numbers = ["".join(node.itertext()) for node in lane.iter(f"{SVG}tspan")]
        assert sorted(numbers) == sorted(str(action.micro_batch) for action in actions)


def test_columns_keep_the_time() -> None:
    """Where actions are too narrow, each kind's area is its share of the rank's time."""
    answer = run(stages=16, micro_batches=128)
    edges = timeline_lanes.column_edges(answer, 500)
    assert edges[0] == 0
    assert edges[-1] == answer.makespan_s
    assert len(edges) <= 501
    for lane in lanes(answer)[::5]:
        seconds = (lane.shares(edges) * np.diff(edges)[:, None]).sum(axis=0)
        assert seconds[:2] == pytest.approx([128, 256])
        assert lane.shares(edges).sum(axis=1).max() <= 1 + 1e-9
        # The steady state is even.
        middle = lane.shares(edges)[len(edges) // 2 - 5 : len(edges) // 2 + 5]
        assert middle == pytest.approx(np.broadcast_to(middle[0], middle.shape))


def test_memory_line_reaches_the_peak() -> None:
    root = ElementTree.fromstring(svg(run()))
    heights = []
    for lane in root.findall(f"{SVG}svg"):
        (path,) = (p for p in lane.iter(f"{SVG}path") if p.get("class") == "memory")
        ys = [float(y) for y in re.findall(r"V([\d.]+)", path.get("d") or "")]
        heights.append(float(lane.get("height") or 0) - min(ys))
        assert path.get("d", "").endswith(f"H{SPAN}V{lane.get('height')}z")
    assert heights == pytest.approx([16, 12, 8, 4], abs=0.2)


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_themes(theme: Any) -> None:
    text = svg(run(), theme)
    assert ("prefers-color-scheme" in text) == (theme == "auto")
    assert (COLOURS["light"]["F"] in text) == (theme != "dark")
    assert (COLOURS["dark"]["F"] in text) == (theme != "light")
    assert "url(#tl-B)" in text  # a sign besides the colour


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_ink_reads_on_every_fill(mode: Mode) -> None:
    """Contrast of at least 4.5 to 1, as WCAG asks for text."""
    paint = COLOURS[mode]
    for ground in ("page", "idle", "F", "B", "I", "W"):
        assert contrast(paint["ink"], paint[ground]) >= 4.5, ground
    assert contrast(paint["quiet"], paint["page"]) >= 4.5
    assert contrast(paint["C"], paint["idle"]) >= 3


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_hostile_names_are_escaped() -> None:
    fields = ("title", "schedule", "holds", "staleness", "freed_at", "citation")
    answer = run().model_copy(update=dict.fromkeys(fields, HOSTILE))
    root = ElementTree.fromstring(svg(answer))
    assert not list(root.iter(f"{SVG}script"))
    assert HOSTILE in "".join(root.itertext())
    page = html(answer)
    assert "alert(1)</script>" not in page
    assert "<script>alert" not in page
    assert HOSTILE in json.loads(trace(answer))["traceEvents"][0]["args"]["name"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["1f1b", "zb-v", "pipedream", "one step", "many"])
def test_png(case: str) -> None:
    modes: tuple[Mode, ...] = ("light", "dark")
    for mode in modes:
        data = drawing(partial(svg, run(**CASES[case])), "png", mode, SCREEN_INCH)
        assert data.startswith(b"\x89PNG")
        assert 5_000 < len(data) < 1_000_000


@pytest.mark.exhaustive
def test_the_largest_stays_small() -> None:
    answer = run(schedule="interleaved-zero-bubble", stages=64, micro_batches=512, chunks=4)
    assert len(svg(answer)) < 3_000_000
    assert len(html(answer)) < 20_000_000


@pytest.mark.parametrize(
    ("until", "expected"),
    [(33, [0, 5, 10, 15, 20, 25, 30]), (1, [0.1 * i for i in range(11)]), (99, range(0, 91, 10))],
)
def test_ticks_are_round(until: float, expected: Any) -> None:
    assert timeline_lanes.ticks(until) == pytest.approx(list(expected))
