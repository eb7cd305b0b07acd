"""Plans kept by name."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.links import link


def test_plans_are_saved_by_name(page: Page) -> None:
    page.goto(link(view="saved"))
    saving = page.get_by_role("form", name="Save the current plan")
    expect(saving).to_contain_text("gpt2")
    saving.get_by_label("Name").fill("first/<try> 100%")
    saving.get_by_label("Note").fill("two nodes until spring")
    saving.get_by_role("button", name="Save").click()
    row = page.locator(".saved-list > li").filter(has_text="first/<try> 100%")
    expect(row).to_contain_text("two nodes until spring")

    row.get_by_role("button", name="Rename").click()
    dialog = page.get_by_role("dialog", name="Name and note")
    dialog.get_by_label("Name").fill("second")
    dialog.get_by_role("button", name="Save").click()
    row = page.locator(".saved-list > li").filter(has_text="second")
    expect(row).to_contain_text("two nodes until spring")
    expect(page.locator(".saved-list > li")).to_have_count(1)

    page.get_by_role("navigation").get_by_role("button", name="Plan").click()
    page.get_by_label("Global batch", exact=True).fill("512")
    page.get_by_role("navigation").get_by_role("button", name="Saved").click()
    row.get_by_role("button", name="Open").click()
    expect(page.get_by_label("Global batch", exact=True)).to_have_value("64")

    page.get_by_role("navigation").get_by_role("button", name="Saved").click()
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".saved-list > li")).to_have_count(0)
