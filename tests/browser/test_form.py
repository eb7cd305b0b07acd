"""The form as a document: steps back, a model's own name, no scrollbar of its own, and paper."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.links import SMALL, link
from tests.browser.waiting import until

OWN = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "intermediate_size": 2816,
    "vocab_size": 32000,
}


def test_back_and_forward_undo_what_was_edited(page: Page) -> None:
    page.goto(link())
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")
    batch = page.get_by_label("Global batch", exact=True)
    batch.fill("128")
    batch.blur()
    until(page, "history.length > 1 && location.hash.length > 3")
    expect(page.locator(".request-summary")).to_contain_text("128 ×")
    page.wait_for_timeout(1600)  # what comes later is a step of its own
    sequence = page.get_by_label("Sequence length", exact=True)
    sequence.fill("512")
    sequence.blur()
    expect(page.locator(".request-summary")).to_contain_text("128 × 512")
    page.wait_for_timeout(400)  # the address follows
    # A link that is still being written when back is pressed must not take its place.
    page.evaluate(
        """() => {
          const plain = Blob.prototype.arrayBuffer;
          Blob.prototype.arrayBuffer = async function () {
            await new Promise((done) => setTimeout(done, 800));
            return plain.call(this);
          };
        }"""
    )
    page.go_back()
    expect(sequence).to_have_value(str(SMALL["training"]["seq_length"]))
    expect(page.locator(".request-summary")).to_contain_text("128 × 1,024")
    page.wait_for_timeout(500)  # past the pause after which a link is written
    page.go_back()
    expect(batch).to_have_value(str(SMALL["training"]["global_batch_size"]))
    page.go_forward()
    expect(batch).to_have_value("128")


def test_an_own_model_keeps_its_name_and_its_parameters(page: Page) -> None:
    page.goto(link())
    file = {"name": "ours-100m.json", "mimeType": "application/json"}
    page.locator(".drop input[type=file]").set_input_files(
        {**file, "buffer": json.dumps(OWN).encode()}  # type: ignore[arg-type]
    )
    chosen = page.get_by_label("Model", exact=True).locator("option").first
    expect(chosen).to_have_text(re.compile(r"ours-100m \(own\) · 1\d\d.M"))
    expect(page.locator(".drop > .hint").first).to_contain_text(re.compile(r"1\d\d.M parameters"))
    expect(page.locator(".request-summary")).to_contain_text("ours-100m")
    page.get_by_text("All dimensions").click()
    before = chosen.inner_text()
    page.get_by_label("num layers", exact=True).fill("8")
    expect(chosen).not_to_have_text(before)
    expect(chosen).to_contain_text("ours-100m")


def test_the_form_scrolls_with_the_page_and_prints_its_colours(
    page: Page, shot: Callable[..., None]
) -> None:
    page.goto(link())
    expect(page.locator(".figures")).to_be_visible()
    inside = (
        "const e = document.querySelector('.form-column'); e.scrollHeight <= e.clientHeight + 1"
    )
    page.get_by_text("Optimizer and formats").click()
    assert page.evaluate(inside)
    # At the end of the page the end of the form is there too.
    until(
        page,
        "scrollTo(0, document.body.scrollHeight),"
        "document.querySelector('.form-column').getBoundingClientRect().bottom <= innerHeight",
    )
    page.emulate_media(media="print")
    expect(page.locator(".form-column")).to_be_hidden()
    part = page.locator(".time-bar .part").first
    assert part.evaluate("e => getComputedStyle(e).printColorAdjust") == "exact"
    shot(page, "print", True)


def test_an_instance_is_found_by_a_part_of_its_name(page: Page) -> None:
    page.goto(link())
    box = page.get_by_label("Cloud instance")
    choices = page.locator("#cloud-instances option")
    expect(choices).to_have_count(188)
    # The browser lists those whose name or label has what is typed.
    expect(page.locator('#cloud-instances option[label*="MI300X"]').first).to_be_attached()
    box.fill("48xlarge")  # a part of many: nothing is chosen yet
    expect(page.get_by_label("Accelerator", exact=True)).to_have_value("h100-sxm-80gb")
    box.fill("G6E.48xlarge")
    expect(page.get_by_label("Accelerator", exact=True)).to_have_value("g6e.48xlarge")
    expect(page.locator("#f-cluster-accelerators_per_node")).to_have_attribute("placeholder", "8")
    expect(page.locator(".request-summary")).to_contain_text("L40S")
