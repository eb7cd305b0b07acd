"""Every view for everyone: light and dark, narrow and enlarged, with axe; tabs have their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.links import OF_8B, SIZING, link

SERIOUS = ("serious", "critical")

# What to open, and what is there once it has answered.
PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "plan": ({}, ".figures"),
    "recipe": ({"request": OF_8B}, ".published-recipe"),
    "size": ({"view": "size", "sizing": SIZING}, ".choices"),
    "fit": ({"view": "fit"}, ".fit-table"),
    "rl": ({"view": "rl"}, ".phases"),
    "sensitivity": ({"tab": "sensitivity"}, ".tornado"),
    "accuracy": ({"view": "accuracy"}, ".nearest"),
    "validate": ({"view": "validate"}, ".ask button.primary:enabled"),
    "lint": ({"view": "lint"}, ".findings"),
    "saved": ({"view": "saved"}, ".save-now"),
}


def serious(page: Page, within: str = "body") -> list[str]:
    """What axe finds on a page, or in a part of it, that shuts somebody out."""
    found = Axe().run(page, context=within).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']]}"
        for one in found
        if one["impact"] in SERIOUS
    ]


# Each takes seconds of both cores; this one has every kind of field, tables and charts.
FULL = ("plan",)


@pytest.mark.parametrize(
    "place",
    [p if p in FULL else pytest.param(p, marks=pytest.mark.exhaustive) for p in PLACES],
)
def test_everyone_can_use_it(page: Page, shot: Callable[..., None], place: str) -> None:
    state, ready = PLACES[place]
    page.goto(link(**state))
    expect(page.locator(ready).first).to_be_visible()
    shot(page, "light", whole=True)
    assert serious(page) == []
    page.emulate_media(color_scheme="dark")
    shot(page, "dark", whole=True)
    assert serious(page) == []
    page.set_viewport_size({"width": 360, "height": 740})
    expect(page.locator(ready).first).to_be_visible()
    shot(page, "narrow", whole=True)
    page.wait_for_function("document.documentElement.scrollWidth <= 360")  # once it is laid out
    # 200 % zoom of a desktop is a page half as wide.
    page.set_viewport_size({"width": 640, "height": 450})
    assert page.evaluate("document.documentElement.scrollWidth") <= 640
