"""Models whose layers differ, on the page: dropped, planned, launched; encoders left out or frozen.

What is copied for Megatron-LM is held against its own parser, as stored with the planner.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.links import link, unpacked
from tests.browser.test_journey import CLIPBOARD, copied, form
from tests.fixtures.launches import misfits, stored_flags
from tests.tools.configurations import PUBLISHED

# One plan's worth of search: what is looked at is the page.
REQUEST: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 2, "accelerators_per_node": 8},
    "training": {"seq_length": 4096, "global_batch_size": 64},
    "search": {"framework": "megatron", "tp": 1, "pp": 2, "cp": 1, "vpp": 1},
}
LETTERS = {"M": "mamba2", "E": "moe", "*": "full attention"}
STORED = stored_flags("megatron")
DROP = """(box, text) => {
    const carried = new DataTransfer();
    carried.items.add(new File([text], "config.json", { type: "application/json" }));
    box.dispatchEvent(new DragEvent("drop", { dataTransfer: carried, bubbles: true }));
}"""


def published(name: str) -> str:
    """The config.json of a published model."""
    rows = map(json.loads, PUBLISHED.read_text().splitlines())
    return json.dumps(next(row["config"] for row in rows if row["id"] == name))


def dropped(page: Page, name: str) -> None:
    form(page).locator(".drop").evaluate(DROP, published(name))


def answered(page: Page) -> None:
    expect(
        page.get_by_role("heading", name=re.compile("plan$|^Nothing fits| cannot "))
    ).to_be_visible()
    expect(page.get_by_role("region", name="Answer")).to_have_attribute("aria-busy", "false")


def stages(page: Page) -> list[Counter[str]]:
    """Layers of each stage by kind, as the answer shows them."""
    shown = page.get_by_label("Layers of each stage by kind")
    expect(shown).to_be_visible()
    found: list[Counter[str]] = []
    rows = zip(
        shown.locator("dt").all_inner_texts(), shown.locator("dd").all_inner_texts(), strict=True
    )
    for name, line in rows:
        first, last = (re.findall(r"\d+", name) * 2)[:2]
        kinds = Counter({kind: int(count) for count, kind in re.findall(r"(\d+) ([^,]+)", line)})
        found += [kinds] * (int(last) - int(first) + 1)
    return found


def flags(page: Page) -> dict[str, list[str]]:
    """What Copy flags copies: accepted, option by option, by the newest parser."""
    page.context.grant_permissions(CLIPBOARD)
    page.get_by_role("tab", name="Flags").click()
    page.get_by_role("tabpanel", name="Flags").get_by_role("button", name="Copy flags").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    words = shlex.split(copied(page).replace("\\\n", " "))
    assert misfits(words, STORED["flags"], max(STORED["versions"])) == []
    places = [i for i, word in enumerate(words) if word.startswith("--")]
    ends = [*places[1:], len(words)]
    return {words[i]: words[i + 1 : end] for i, end in zip(places, ends, strict=True)}


def encoder(page: Page) -> Locator:
    return form(page).get_by_role("group", name="Encoder", exact=True)


@pytest.mark.exhaustive
def test_from_a_config_of_nemotron_3_to_flags_of_megatron(page: Page) -> None:
    page.goto(link(request=REQUEST))
    answered(page)
    dropped(page, "NVIDIA-Nemotron-3-Nano-30B-A3B")
    expect(page.locator(".toast")).to_contain_text("31.6\u202fB parameters, 3.58\u202fB active")
    expect(form(page)).to_contain_text("23 mamba2, 23 moe, 6 full attention")
    answered(page)
    held = stages(page)
    assert len(held) == 2
    assert held[0] + held[1] == {"mamba2": 23, "moe": 23, "full attention": 6}
    (pattern,) = flags(page)["--hybrid-layer-pattern"]
    assert [Counter(LETTERS[letter] for letter in part) for part in pattern.split("|")] == held


@pytest.mark.exhaustive
def test_from_a_config_of_qwen3_5_to_flags_of_megatron(page: Page) -> None:
    page.goto(link(request=REQUEST))
    answered(page)
    dropped(page, "Qwen3.5-35B-A3B")
    expect(page.locator(".toast")).to_contain_text("35.1\u202fB parameters")
    # Megatron-LM trains no encoder of images, and the page says what it trains.
    expect(page.get_by_role("heading", name="Megatron-LM cannot build it")).to_be_visible()
    page.get_by_label("What would fit").get_by_role("button", name="Language model alone").click()
    expect(encoder(page)).to_contain_text("Left out: only the language model is planned")
    expect(page.get_by_role("heading", name="Fastest plan")).to_be_visible()
    answered(page)
    held = stages(page)
    total = {"gated delta net + moe": 30, "full attention + moe": 10}
    assert sum(held, Counter()) == total
    expect(form(page)).to_contain_text("30 gated delta net + moe, 10 full attention + moe")
    said = flags(page)
    kinds = json.loads(said["--linear-attention-freq"][0])
    assert Counter(kinds) == {1: 30, 0: 10}
    assert said["--linear-num-value-heads"] == ["32"]
    # The encoder comes back as it was.
    before = page.url
    encoder(page).get_by_role("button", name="With encoder").click()
    expect(page.get_by_role("heading", name="Megatron-LM cannot build it")).to_be_visible()
    page.wait_for_url(lambda url: url != before and "encoders" in unpacked(url)["request"]["model"])


@pytest.mark.exhaustive
def test_an_encoder_is_frozen_and_its_images_counted(page: Page) -> None:
    free = {**REQUEST, "search": {"tp": 1, "pp": 1, "cp": 1, "zero_stage": 3}}
    page.goto(link(request=free))
    answered(page)
    dropped(page, "Qwen3.5-35B-A3B")
    expect(encoder(page)).to_contain_text("27 layers")
    answered(page)
    encoder(page).get_by_label("Its weights").select_option("frozen")
    encoder(page).get_by_label("Image positions").fill("4608")
    answered(page)

    def asked(url: str) -> bool:
        training = unpacked(url)["request"]["training"]
        return training.get("frozen") == ["encoders"] and training.get("encoder_tokens") == 4608

    page.wait_for_url(asked)
    page.reload()
    expect(encoder(page).get_by_label("Its weights")).to_have_value("frozen")
    expect(encoder(page).get_by_label("Image positions")).to_have_value("4608")
    # What is said of encoders goes with them.
    encoder(page).get_by_role("button", name="Language model alone").click()
    page.wait_for_url(
        lambda url: set(unpacked(url)["request"]["training"]) == set(REQUEST["training"])
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("training", "pointer", "said"),
    [
        ({"lora_rank": 8, "lora_targets": ["linear_qkv", "q_proj"]}, "lora_targets", "same matrix"),
        ({"frozen_dtype": "nf4"}, "frozen_dtype", "needs lora_rank or frozen parts"),
        ({"sample_lengths": [512, 0]}, "sample_lengths", "must be >= 1"),
    ],
)
def test_what_is_wrong_with_tuning_is_said_at_its_field(
    page: Page, training: dict[str, Any], pointer: str, said: str
) -> None:
    small = {**REQUEST, "search": {"framework": "megatron-bridge", "pp": 1}}
    page.goto(link(request=small))
    answered(page)
    page.goto(link(request={**small, "training": {**REQUEST["training"], **training}}))
    # The group opens by itself.
    field = form(page).locator(".explained .field.bad")
    expect(field).to_have_count(1)
    expect(field).to_contain_text(said)
    expect(field).to_contain_text(re.compile(pointer.replace("_", " "), re.IGNORECASE))


def test_tuning_is_asked_step_by_step_and_travels_in_the_link(page: Page) -> None:
    page.goto(link(request={**REQUEST, "search": {"framework": "megatron-bridge", "pp": 1}}))
    answered(page)
    form(page).get_by_text("Fine-tuning", exact=True).click()
    tuning = form(page).locator(".explained")
    expect(tuning.get_by_label("LoRA dropout")).to_have_count(0)
    expect(tuning.get_by_text("frozen", exact=True)).to_have_count(1)
    tuning.get_by_label("LoRA rank").fill("16")
    expect(tuning.get_by_text("frozen", exact=True)).to_have_count(0)
    tuning.get_by_label("linear_fc2").uncheck()
    tuning.get_by_label("frozen dtype").select_option("nf4")
    tuning.get_by_label("sample lengths").fill("300, 900, 4k")
    tuning.get_by_label("packing").select_option("padded")
    answered(page)
    wanted = {
        "lora_rank": 16, "lora_targets": ["linear_qkv", "linear_proj", "linear_fc1"],
        "frozen_dtype": "nf4", "sample_lengths": [300, 900, 4096], "packing": "padded",
    }  # fmt: skip
    page.wait_for_url(
        lambda url: unpacked(url)["request"]["training"] == {**REQUEST["training"], **wanted}
    )
    page.reload()
    answered(page)
    form(page).get_by_text("Fine-tuning: 5 set").click()
    expect(tuning.get_by_label("LoRA rank")).to_have_value("16")
    expect(tuning.get_by_label("linear_fc2")).not_to_be_checked()
    expect(tuning.get_by_label("sample lengths")).to_have_value("300, 900, 4096")
