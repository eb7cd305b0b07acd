"""What a new user does: from nothing to flags for a model of their own, and what goes wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.browser.links import SMALL, link, unpacked
from tests.browser.test_four_journeys import CLIPBOARD, OWN, copied


def form(page: Page) -> Locator:
    return page.get_by_role("form", name="What to plan")


def settled(page: Page) -> None:
    """The answer is of the form as it stands."""
    expect(page.locator(".figures")).to_be_visible()
    expect(page.get_by_role("region", name="Answer")).to_have_attribute("aria-busy", "false")


def test_a_config_is_typed_planned_and_taken_back(page: Page) -> None:
    page.goto("/")
    # It opens answering a preset.
    expect(page.locator(".figures")).to_be_visible()
    form(page).get_by_role("button", name="Name or config.json").click()
    box = form(page).get_by_role("textbox", name="config.json of a model")
    box.fill(json.dumps(OWN))
    form(page).get_by_role("button", name="Read it").click()
    expect(page.locator(".toast")).to_contain_text(re.compile("Read as .*3\\.\\d+.?B parameters"))
    form(page).get_by_label("Nodes", exact=True).fill("2")
    form(page).get_by_label("Global batch", exact=True).fill("256")
    expect(page.locator(".request-summary")).to_contain_text("16 × H100")
    settled(page)
    page.get_by_role("tab", name="Flags").click()
    panel = page.get_by_role("tabpanel", name="Flags")
    expect(panel).to_contain_text("--global-batch-size")
    page.get_by_role("button", name="Undo").click()
    expect(form(page).get_by_label("Model", exact=True)).to_have_value("llama-3.1-70b")


def test_a_link_opens_the_same_page(page: Page, open_page: Callable[..., Page]) -> None:
    page.context.grant_permissions(CLIPBOARD)
    page.goto(link())
    settled(page)
    form(page).get_by_label("Global batch", exact=True).fill("128")
    settled(page)
    # By keyboard, since points of plans that are almost alike lie over each other.
    page.locator(".points > *").nth(1).press("Enter")
    expect(page.get_by_role("heading", name="Picked plan")).to_be_visible()
    page.get_by_role("tab", name="Rank map").click()
    page.get_by_role("button", name="Share").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    address = copied(page)
    request = unpacked(address)["request"]
    assert request == {**SMALL, "training": {**SMALL["training"], "global_batch_size": 128}}

    other = open_page()
    other.goto(address)
    expect(other.get_by_role("heading", name="Picked plan")).to_be_visible()
    assert other.locator(".chips").inner_text() == page.locator(".chips").inner_text()
    expect(form(other).get_by_label("Global batch", exact=True)).to_have_value("128")
    expect(other.get_by_role("tab", name="Rank map")).to_have_attribute("aria-selected", "true")


def test_a_bad_config_is_explained_and_nothing_is_lost(page: Page) -> None:
    page.goto(link())
    settled(page)
    before = page.locator(".figures").inner_text()
    form(page).get_by_role("button", name="Name or config.json").click()
    box = form(page).get_by_role("textbox", name="config.json of a model")
    for text, said in (
        (json.dumps(OWN)[:-20], "This is not JSON"),
        (json.dumps({**OWN, "num_hidden_layers": 0}), "num_hidden_layers"),
        (json.dumps({"model_type": "mamba", "hidden_size": 768}), "mamba"),
        ("[" * 5000, "not JSON"),
    ):
        box.fill(text)
        form(page).get_by_role("button", name="Read it").click()
        expect(form(page).get_by_role("alert")).to_contain_text(said)
        expect(box).to_have_value(text)
    expect(form(page).get_by_label("Model", exact=True)).to_have_value("gpt2")
    assert page.locator(".figures").inner_text() == before


def test_a_model_is_named_as_on_the_hub(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link())
    settled(page)
    form(page).get_by_role("button", name="Name or config.json").click()
    box = form(page).get_by_role("textbox", name="config.json of a model")
    box.fill("unsloth/Llama-3.2-1B-Instruct")
    form(page).get_by_role("button", name="Read it").click()
    settled(page)
    chosen = form(page).get_by_label("Model", exact=True)
    expect(chosen).to_have_value("unsloth/Llama-3.2-1B-Instruct")
    expect(page.locator(".request-summary")).to_contain_text("llama-3.2-1b")
    shot(page, "named")
    form(page).get_by_role("button", name="Name or config.json").click()
    box.fill("lama-3.2-1b")
    form(page).get_by_role("button", name="Read it").click()
    expect(form(page)).to_contain_text("no model 'lama-3.2-1b'")
    form(page).get_by_role("button", name="llama-3.2-1b").click()
    settled(page)
    expect(chosen).to_have_value("llama-3.2-1b")


def test_what_is_wrong_is_said_at_its_field(page: Page) -> None:
    page.goto(link())
    settled(page)
    batch = form(page).get_by_label("Global batch", exact=True)
    batch.fill("many")
    expect(batch).to_have_attribute("aria-invalid", "true")
    expect(batch).to_have_value("many")
    batch.fill("128")
    expect(batch).not_to_have_attribute("aria-invalid", "true")
    settled(page)


# Its search takes seconds, so that there is time to stop it.
LONG: dict[str, Any] = {
    "model": "deepseek-v3",
    "cluster": {**SMALL["cluster"], "nodes": 256},
    "training": {"seq_length": 4096, "global_batch_size": 16384},
}


def test_a_search_can_be_cancelled(page: Page) -> None:
    page.goto(link())
    settled(page)
    page.goto(link(request=LONG))
    page.get_by_role("button", name="Cancel").click()
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_have_attribute("aria-busy", "false")
    # What the held plan gives here stays on show, and the page goes on working.
    expect(answer.locator(".figures")).to_be_visible()
    expect(page.locator(".toast.bad")).to_have_count(0)
    page.goto(link())
    settled(page)


HOSTILE = "<img src=x onerror=\"document.title='owned'\">'\"${1}</script><b>"


def test_hostile_names_are_only_text(page: Page) -> None:
    model = {"name": HOSTILE, "num_layers": 4, "hidden_size": 256, "num_attention_heads": 4,
             "ffn_hidden_size": 1024, "vocab_size": 1000}  # fmt: skip
    page.goto(link(request={**SMALL, "model": model}))
    settled(page)
    expect(page.locator(".request-summary")).to_contain_text(HOSTILE)
    for view in ("Size", "Saved", "Validate"):
        page.get_by_role("navigation").get_by_role("button", name=view).click()
        expect(page.get_by_role("main", name=view)).to_be_visible()
    page.get_by_role("navigation").get_by_role("button", name="Lint").click()
    page.get_by_label("Name of this file").fill(HOSTILE)
    page.get_by_label("Text of the file").fill(f"{HOSTILE}\npython {HOSTILE}.py")
    expect(page.get_by_role("heading", name="This cannot be read")).to_be_visible()
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()


def test_by_keyboard_alone(page: Page) -> None:
    page.goto(link())
    settled(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to results")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#results")).to_be_focused()

    def onward(target: Locator, most: int = 60) -> None:
        for _ in range(most):
            page.keyboard.press("Tab")
            if target.evaluate("node => node === document.activeElement"):
                return
        raise AssertionError(f"{target} is not reached with Tab")

    onward(page.locator(".points > [tabindex='0']"))
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("heading", name="Picked plan")).to_be_visible()
    page.keyboard.press("p")
    expect(page.get_by_role("button", name="Pinned")).to_be_visible()
    tab = page.get_by_role("tab", name="Pipeline timeline")
    onward(tab)
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Rank map")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="Flags")).to_be_visible()
    # Digits open views, and a question mark says so.
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    expect(page.get_by_role("main", name="Size")).to_be_visible()
    page.keyboard.press("2")
    expect(page.get_by_role("main", name="Compare")).to_be_visible()
