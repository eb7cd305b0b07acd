"""The page as a visitor meets it."""

from __future__ import annotations

from collections.abc import Callable

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

SERIOUS = ("serious", "critical")


def serious(page: Page) -> list[str]:
    """What axe finds on a page that shuts somebody out."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']]}"
        for one in found
        if one["impact"] in SERIOUS
    ]


def test_it_opens(page: Page, shot: Callable[..., None]) -> None:
    page.goto("/")
    expect(page.get_by_role("main")).to_be_visible()
    shot(page, "open", whole=True)
    assert serious(page) == []
