"""How soon the page answers: what a person waits for, measured in a real browser.

Budgets are for an idle machine, so these run with the exhaustive tests; what is sent is counted
always.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest
from playwright.sync_api import Page, Request

INTERACTIVE_S = 1.0
TYPED_S = 0.3
FIRST_LOAD_BYTES = 250 * 1024
_AFTER_FIRST_PAINT = ("/web/lib/d3-", "/web/lib/plot-")


def test_first_load_in_bytes(page: Page) -> None:
    """All files of the page as they crossed the wire, without the charts that load after it."""
    finished: list[Request] = []
    page.on("requestfinished", lambda request: finished.append(request))
    page.goto("/")
    page.locator(".figures").wait_for()
    # Sizes are asked for when no more events come: a question in a handler may end too late.
    page.wait_for_load_state("networkidle")
    later = (*_AFTER_FIRST_PAINT, "/v1/")
    sizes = {
        request.url: request.sizes()["responseBodySize"]
        for request in finished
        if not any(name in request.url for name in later)
    }
    assert len(sizes) > 20
    assert sum(sizes.values()) <= FIRST_LOAD_BYTES, sizes


@pytest.mark.exhaustive
def test_interactive_and_answering(open_page: Callable[..., Page]) -> None:
    """From nothing to a form that takes input, and to the first answer."""
    interactive, answered = [], []
    for _ in range(5):
        page = open_page()
        started = time.perf_counter()
        page.goto("/", wait_until="commit")
        page.get_by_label("Nodes", exact=True).wait_for()
        interactive.append(time.perf_counter() - started)
        page.locator(".figures").wait_for()
        answered.append(time.perf_counter() - started)
        page.close()
    print(f"interactive {median(interactive):.3f} s, first answer {median(answered):.3f} s")
    assert median(interactive) <= INTERACTIVE_S


@pytest.mark.exhaustive
def test_typed_change_to_new_numbers(page: Page) -> None:
    """From a key to the figures of the changed request, by the estimate of the plan on show."""
    page.goto("/")
    page.locator(".answer[aria-busy=false]").wait_for()
    times = []
    for nodes in (32, 64, 16, 32, 64, 32, 16):
        started = time.perf_counter()
        page.get_by_label("Nodes", exact=True).fill(str(nodes))
        page.locator(".request-summary", has_text=f"{8 * nodes} ×").wait_for()
        times.append(time.perf_counter() - started)
        page.locator(".answer[aria-busy=false]").wait_for()
    print(f"typed change to new numbers {median(times):.3f} s, worst {max(times):.3f} s")
    assert median(times) <= TYPED_S
