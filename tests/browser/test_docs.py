"""The description of the service in a browser: readable, to be tried, of no other origin."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect


@pytest.mark.exhaustive
def test_an_example_is_tried(page: Page, shot: Callable[..., None]) -> None:
    page.goto("/docs")
    operation = page.locator("#operations-estimates-estimate_v1_estimates_post")
    operation.locator(".opblock-summary-control").click()
    assert not is_dark(page)
    operation.get_by_role("button", name="Execute").click()
    answered = operation.locator(".live-responses-table .response-col_status")
    expect(answered.last).to_contain_text("200")
    shot(page, "light", whole=True)


def test_it_is_dark_where_that_is_asked(
    open_page: Callable[..., Page], shot: Callable[..., None]
) -> None:
    page = open_page(color_scheme="dark")
    page.goto("/docs")
    page.locator(".opblock").first.wait_for()
    assert is_dark(page)
    shot(page, "dark")


def is_dark(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.classList.contains('dark-mode')"))


def test_a_problem_leads_to_its_page(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 360, "height": 640})
    page.goto("/problems")
    page.get_by_role("link", name="rate-limited").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Too many calls")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.get_by_role("link", name="API").click()
    expect(page.locator(".opblock").first).to_be_visible()


def test_a_guide_shows_its_pictures_on_a_phone(open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 360, "height": 640})
    page.goto("/docs/guides")
    page.get_by_role("link", name="Pipeline schedules").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Pipeline schedules")
    page.wait_for_load_state("load")
    drawn = "[...document.images].map((image) => image.naturalWidth > 0 && image.width <= 360)"
    assert page.evaluate(drawn) == [True] * 4
