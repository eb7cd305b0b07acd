"""The view of a plan: what its buttons do to the request, and what follows on the page."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.links import OF_8B, SMALL, link, unpacked

# More than one node of these accelerators is needed, and so the page proposes what fits.
TOO_LARGE = {
    "model": "llama-3.1-70b",
    "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 1, "accelerators_per_node": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {"framework": "megatron", "limits": {"offload_optimizer": {"values": [False]}}},
}


def _settled(page: Page) -> None:
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")


def test_nothing_fits_and_a_change_applies_itself(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link(request=TOO_LARGE))
    expect(page.get_by_role("heading", name="Nothing fits")).to_be_visible()
    shot(page, "nothing")
    expect(page.get_by_text("more than is available")).to_be_visible()
    nodes = page.get_by_label("Nodes", exact=True)
    page.locator(".changes").get_by_role("button", name="nodes").click()
    expect(nodes).not_to_have_value("1")
    # The offer to undo stays for twelve seconds, however long the search takes.
    page.get_by_role("status").get_by_role("button", name="Undo").click()
    expect(nodes).to_have_value("1")
    expect(page.get_by_role("heading", name="Nothing fits")).to_be_visible()
    page.locator(".changes").get_by_role("button", name="nodes").click()
    expect(page.get_by_role("heading", name="Fastest plan")).to_be_visible()
    assert int(nodes.input_value()) > 1


def test_limits_are_typed_or_taken_from_the_plan(page: Page) -> None:
    page.goto(link())
    _settled(page)
    page.locator("#f-limit-tp").fill("2 - 4")
    chip = page.locator(".chips").get_by_role("button", name="TP")
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(chip).to_have_text("TP 2")
    page.locator(".chips").get_by_role("button", name="ZeRO").click()
    _settled(page)
    expect(page.locator("#f-limit-zero_stage")).not_to_have_value("")
    page.get_by_role("button", name="Remove all limits").click()
    expect(page.locator("#f-limit-tp")).to_have_value("")
    expect(chip).to_have_attribute("aria-pressed", "false")


def test_another_of_the_three_picks_and_another_framework(page: Page) -> None:
    page.goto(link(request={**SMALL, "search": {}}))
    _settled(page)
    choices = page.locator(".choices")
    roomy = choices.get_by_role("button", name="Most headroom")
    roomy.click()
    expect(roomy).to_have_attribute("aria-pressed", "true")
    choices.locator(".link").last.click()
    expect(page.get_by_role("heading", name="Picked plan")).to_be_visible()
    choices.get_by_role("button", name="Fastest").click()
    expect(page.get_by_role("heading", name="Fastest plan")).to_be_visible()


def test_the_card_says_what_the_time_rests_on(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link())
    _settled(page)
    card = page.locator(".plan-evidence")
    expect(card.locator(".evidence-badge")).to_have_text("Measured")
    expect(card).to_contain_text("on H100 SXM5 80GB with Megatron-Core")
    expect(card.locator(".rival")).to_contain_text("beat")
    card.get_by_text("Nearest published runs").click()
    expect(card.locator("tbody tr")).to_have_count(3)
    shot(page, "nearest")
    # A plan that is not the best has evidence of its own, and no rival.
    page.locator(".choices").get_by_role("button", name="Most headroom").click()
    expect(page.get_by_role("heading", name="Picked plan")).to_be_visible()
    expect(card.locator(".rival")).to_have_count(0)
    expect(card.locator(".stale")).to_have_count(0)
    # No other chip's band is borrowed in silence.
    page.get_by_label("Accelerator", exact=True).select_option("mi300x")
    expect(card.locator(".evidence-badge")).to_have_text("No run on this chip")
    expect(card).to_contain_text("extrapolated from")
    expect(card).to_contain_text("how far these differ")


def test_a_plan_that_nobody_can_launch_says_so_above_it(
    page: Page, shot: Callable[..., None]
) -> None:
    asked = SMALL | {"cluster": {"accelerator": "gaudi3", "nodes": 1, "accelerators_per_node": 8}}
    page.goto(link(request=asked | {"search": {}}))
    _settled(page)
    notice = page.get_by_role("note").filter(has_text="No framework here can launch this plan")
    expect(notice).to_contain_text("Gaudi 3")
    expect(page.get_by_role("button", name="Copy flags")).to_have_count(0)
    shot(page, "no-launch")
    page.get_by_label("Accelerator", exact=True).select_option("h100-sxm-80gb")
    expect(notice).to_have_count(0)
    expect(page.get_by_role("button", name="Copy flags").first).to_be_visible()


def test_units_and_theme_are_kept_by_the_browser(open_page: Callable[..., Page]) -> None:
    page = open_page(color_scheme="light")
    page.goto(link())
    figures = page.locator(".figures")
    expect(figures).to_contain_text("GiB")
    page.get_by_role("button", name="GB", exact=True).click()
    expect(figures).not_to_contain_text("GiB")
    page.keyboard.press("t")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(figures).to_contain_text("GB")


def test_an_accelerator_of_ones_own(page: Page) -> None:
    page.goto(link())
    _settled(page)
    page.get_by_text("The accelerator itself").click()
    page.get_by_label("memory", exact=True).fill("40")
    expect(page.locator(".figures")).to_contain_text("of 40\u202fGiB")
    # The address follows, with bytes in it.
    page.wait_for_url(lambda url: "#q=" in url and _memory(url) == 40 * 2**30)


def _memory(url: str) -> float | None:
    accelerator = unpacked(url).get("request", SMALL)["cluster"]["accelerator"]
    return accelerator["memory_bytes"] if isinstance(accelerator, dict) else None


def test_rejected_plans_on_demand(page: Page) -> None:
    small = {"accelerator": "rtx-4090", "nodes": 1, "accelerators_per_node": 4}
    page.goto(link(request={**SMALL, "model": "gpt2-xl", "cluster": small}))
    _settled(page)
    toggle = page.get_by_role("button", name="Rejected", exact=True)
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".misses > *")).not_to_have_count(0)


def test_what_others_do_stands_beside_the_best_plan(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link(request=OF_8B))
    _settled(page)
    recipe = page.locator(".published-recipe")
    expect(recipe).to_contain_text("Megatron-Bridge")
    expect(recipe.get_by_role("link").first).to_have_attribute(
        "href", re.compile("^https://github.com/NVIDIA-NeMo/Megatron-Bridge")
    )
    recipe.get_by_text("What the best plan has instead").click()
    expect(recipe.locator("tbody tr").first).to_be_visible()
    # Beside the recipe too, a plan faster than the record says what it has that the record lacks.
    record = page.locator(".record")
    expect(record).to_contain_text("Record")
    expect(record).to_contain_text("times that here, with")
    shot(page, "published-recipe")
    page.locator(".choices").get_by_role("button", name="Published recipe").click()
    expect(page.get_by_role("heading", name="Picked plan")).to_be_visible()
