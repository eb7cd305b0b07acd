"""The HTML file of `planner timeline`: the page's timeline in it moves, and prints as its SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from planner.answers.pipelines.timeline import parse_timeline, timeline
from planner.presentation.drawing.html import html
from planner.presentation.drawing.theme import COLOURS

ANSWER = timeline(
    parse_timeline(
        {"schedule": "zb-v", "stages": 4, "micro_batches": 8, "p2p_s": 0.1, "forward_s": 1.0,
         "input_grad_s": 1.0, "weight_grad_s": 1.0}
    )
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The address of an exported file."""
    path = tmp_path / "timeline.html"
    path.write_text(html(ANSWER), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def exported(browser: Browser, file: str) -> Iterator[Page]:
    """The file in a browser; any error of its script is the test's."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file)
    yield page
    page.close()
    assert not errors


def test_keys_pick_actions_and_zoom(exported: Page) -> None:
    canvas, says = exported.locator("#canvas"), exported.get_by_role("status")
    canvas.focus()
    canvas.press("ArrowRight")
    first, second = ANSWER.actions[0][0], ANSWER.actions[0][1]
    expect(says).to_have_text(
        f"rank 0: forward, micro-batch 0, chunk 0, {first.start_s:g} to {first.end_s:g} s (1 s)"
    )
    canvas.press("ArrowRight")
    expect(says).to_contain_text(f"micro-batch {second.micro_batch}")
    canvas.press("ArrowDown")
    expect(says).to_contain_text("rank 1: ")
    zoom = exported.locator("#zoom")
    expect(zoom).to_have_text("")
    exported.get_by_role("button", name="Zoom in").click()
    expect(zoom).to_have_text("×1.5")
    exported.get_by_role("button", name="Fit").click()
    expect(zoom).to_have_text("")


def test_the_picture_prints_whole(exported: Page) -> None:
    crop, picture = exported.locator(".crop"), exported.locator("svg.timeline")
    expect(exported.locator("#canvas")).to_be_visible()
    assert _height(exported, ".crop") < 0.5 * _height(exported, "svg.timeline")
    exported.emulate_media(media="print")
    expect(exported.locator("#canvas")).to_be_hidden()
    expect(picture).to_be_visible()
    assert crop.evaluate("crop => crop.clientHeight >= crop.firstElementChild.clientHeight")


def test_without_scripts_the_picture_stands_whole(browser: Browser, file: str) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(file)
    expect(page.locator("#tools")).to_be_hidden()
    expect(page.locator("#canvas")).to_be_hidden()
    expect(page.locator("svg.timeline text.rank").last).to_be_visible()
    page.close()


def test_the_page_has_the_colours_of_the_pictures(page: Page) -> None:
    """The style sheet of the page repeats them, for a static file cannot import them."""
    sheet = page.request.get("/web/tabs/tabs.css").text()
    found = dict(re.findall(r"--tl-(\w+): light-dark\((#\w+, #\w+)\)", sheet))
    assert set(found) == {"F", "B", "I", "W", "idle", "memory"}
    for name, both in found.items():
        assert both == f"{COLOURS['light'][name]}, {COLOURS['dark'][name]}"


def _height(page: Page, selector: str) -> float:
    box = page.locator(selector).bounding_box()
    assert box is not None
    return box["height"]
