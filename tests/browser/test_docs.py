"""The description of the service in a browser: readable, to be tried, of no other origin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_accessibility import serious

ESTIMATES = "/docs#post-/v1/estimates"


def test_an_example_is_tried(page: Page, shot: Callable[..., None]) -> None:
    page.goto(ESTIMATES)
    operation = page.locator("[id='post-/v1/estimates']")
    operation.get_by_label("fields (query)").fill("estimate.fits")
    operation.get_by_role("button", name="Send").click()
    expect(operation.get_by_role("status")).to_contain_text("200 OK")
    expect(operation.locator("pre")).to_contain_text(["curl -X POST", '"fits": true'])
    shot(page, "light")


def test_a_wrong_body_is_answered_with_its_problem(page: Page) -> None:
    page.goto(ESTIMATES)
    operation = page.locator("[id='post-/v1/estimates']")
    operation.get_by_label("JSON").fill('{"model": "no-such-model"}')
    operation.get_by_role("button", name="Send").click()
    expect(operation.get_by_role("status")).to_contain_text("422")
    expect(operation.locator("pre").last).to_contain_text("no-such-model")


def test_schemas_open_level_by_level(page: Page) -> None:
    page.goto(ESTIMATES)
    body = page.locator("[id='post-/v1/estimates'] .schema").filter(has_text="Body").first
    body.locator("summary").click()
    plan = body.locator("details.schema").filter(has_text="plan").first
    plan.locator("summary").click()
    expect(plan.get_by_text("micro_batch_size")).to_be_visible()
    expect(plan.locator(".schema").filter(has_text="micro_batch_size")).to_contain_text(
        "at least 1"
    )


@pytest.mark.exhaustive
def test_everyone_can_use_it(open_page: Callable[..., Page], shot: Callable[..., None]) -> None:
    page = open_page(color_scheme="dark", viewport={"width": 360, "height": 740})
    page.goto(ESTIMATES)
    page.locator("[id='post-/v1/estimates'] .schema").first.locator("summary").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(28, 32, 34)"
    shot(page, "dark")
    assert serious(page) == []
    page.emulate_media(color_scheme="light")
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_problem_leads_to_its_page(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 360, "height": 640})
    page.goto("/problems")
    page.get_by_role("link", name="rate-limited").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Too many calls")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("link", name="API").click()
    expect(page.locator(".operation").first).to_be_visible()


def test_a_guide_shows_its_pictures_on_a_phone(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 360, "height": 640})
    page.goto("/docs/guides")
    page.get_by_role("link", name="Pipeline schedules").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Pipeline schedules")
    page.wait_for_load_state("load")
    drawn = "[...document.images].map((image) => image.naturalWidth > 0 && image.width <= 360)"
    assert page.evaluate(drawn) == [True] * 4
