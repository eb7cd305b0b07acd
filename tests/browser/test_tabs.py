"""The tabs about a plan and the comparison of two: what a person does there, and what comes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Download, Locator, Page, expect

_TALL = {"width": 1280, "height": 1000}
_SMALL = {
    "request": {
        "model": "llama-3.1-8b",
        "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 4, "accelerators_per_node": 8},
        "training": {"seq_length": 8192, "global_batch_size": 128},
        "search": {"framework": "megatron", "tp": 4, "pp": 2, "cp": 1, "top_k": 12},
    }
}


def _open(page: Page, tab: str) -> Locator:
    """The panel of a tab, with the answer to a small question."""
    page.goto("/")
    expect(page.locator(".figures")).to_be_visible()
    page.evaluate(
        """async (found) => {
            const { pack } = await import(new URL("web/url.js", document.baseURI));
            location.hash = await pack(found);
        }""",
        _SMALL,
    )
    page.reload()
    expect(page.locator(".asked")).to_contain_text("32 ×")
    page.get_by_role("tab", name=tab, exact=True).click()
    panel = page.get_by_role("tabpanel", name=tab, exact=True)
    expect(panel.locator("[aria-busy=true]")).to_have_count(0)
    return panel
