"""Waiting for what the page says of itself."""

from __future__ import annotations

import time

from playwright.sync_api import Page

PATIENCE_S = 300.0


def until(page: Page, expression: str) -> None:
    """Evaluate an expression until it holds.

    page.wait_for_function repeats it by eval inside the page, which the page's policy forbids.
    """
    end = time.monotonic() + PATIENCE_S
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)
