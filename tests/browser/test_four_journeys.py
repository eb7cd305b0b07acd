"""What people come for, in as few steps as it takes; a step is one thing that a person does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.links import link
from tests.planner.answers.lint.test_scripts import PLANTED, SCRIPTS
from tests.planner.learning.sites.runs import LOGS

# A config.json as a user has it: a Llama of their own make.
OWN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "time_step_limit": [0.0, math.inf],  # Python writes it as Infinity, which is no JSON
}
CLIPBOARD = ["clipboard-read", "clipboard-write"]


def copied(page: Page) -> str:
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def ready(page: Page) -> None:
    expect(page.locator(".figures")).to_be_visible()
    expect(page.get_by_role("region", name="Answer")).to_have_attribute("aria-busy", "false")


@pytest.mark.exhaustive
def test_two_steps_from_a_config_to_flags(page: Page, shot: Callable[..., None]) -> None:
    """Paste it anywhere, and copy."""
    page.context.grant_permissions(CLIPBOARD)
    page.goto("/")
    ready(page)
    page.evaluate("text => navigator.clipboard.writeText(text)", json.dumps(OWN))
    page.keyboard.press("Control+V")  # step 1
    expect(page.locator(".toast")).to_contain_text(re.compile("Read as .*3\\.\\d+.?B parameters"))
    ready(page)
    copy = page.get_by_role("region", name="Answer").get_by_role("button", name="Copy flags")
    copy.click()  # step 2
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    flags = copied(page)
    for words in ("--num-layers 28", "--hidden-size 3072", "--global-batch-size 1024"):
        assert words in flags
    assert "--untie-embeddings-and-output-weights" not in flags
    shot(page, "copied")


@pytest.mark.exhaustive
def test_two_steps_to_256_of_one_kind_or_128_of_another(
    page: Page, shot: Callable[..., None]
) -> None:
    """Open Size, and type the question."""
    model = {"model": "llama-3.1-8b", "training": {"seq_length": 8192, "global_batch_size": 512,
             "tokens": 1e12}, "cluster": "8x8xh100-sxm", "search": {}}  # fmt: skip
    page.goto(link(request=model))
    page.get_by_role("navigation").get_by_role("button", name="Size").click()  # step 1
    page.get_by_label("Only these clusters").fill("256 H100 or 128 B200")  # step 2
    kinds = page.locator(".kinds-table tbody tr")
    expect(kinds).to_have_count(2)
    verdict = page.locator(".verdict")
    expect(verdict).to_have_text(re.compile(r"Rent (256 × H100|128 × B200).+: done in .+ for \$"))
    # Both with their bands, and whether they can be told apart.
    expect(kinds.filter(has_text="256 × H100")).to_contain_text("4.44")
    expect(kinds.filter(has_text="128 × B200")).to_contain_text("4.81")
    expect(page.locator(".apart")).to_contain_text("statistically tied")
    shot(page, "sized", whole=True)
    page.get_by_label("Only these clusters").fill("256 H1000")
    expect(page.get_by_role("alert").filter(has_text="no accelerator").first).to_be_visible()


def test_three_steps_from_a_slow_script_to_a_mended_one(
    page: Page, shot: Callable[..., None]
) -> None:
    """Open Lint, drop the script, and copy the mended one; it is then found to be fine."""
    page.context.grant_permissions(CLIPBOARD)
    name = "no_overlap"
    training = {"seq_length": 4096, "global_batch_size": 512}
    asked = {"model": "llama-3.1-8b", "cluster": PLANTED[name][0], "training": training}
    page.goto(link(request=asked))
    page.get_by_role("navigation").get_by_role("button", name="Lint").click()  # step 1
    script = SCRIPTS / f"{name}.sh"
    page.locator(".lint-editor input[type=file]").set_input_files(script)  # step 2
    verdict = page.locator(".lint-view .verdict")
    expect(page.locator(".request-summary")).to_contain_text("Megatron-LM · ")
    copy = page.get_by_role("button", name=f"Copy the corrected {name}.sh")
    expect(verdict).to_have_text(re.compile("a faster plan is known"))
    copy.click()  # step 3
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    mended = copied(page)
    before = (SCRIPTS / f"{name}.sh").read_text()
    assert "--overlap-grad-reduce" in mended
    assert "--overlap-grad-reduce" not in before
    shot(page, "findings", whole=True)
    page.get_by_role("button", name="Check the corrected script").click()
    expect(page.get_by_label("Text of the file")).to_have_value(mended)
    expect(verdict).to_have_text(re.compile("no plan is known to be faster"))


@pytest.mark.exhaustive
def test_three_steps_from_a_log_to_a_better_plan(page: Page, shot: Callable[..., None]) -> None:
    """Open Accuracy, drop the log, and have it learned: the plan on show is a better one."""
    v100 = {"accelerator": "v100-sxm2-32gb", "nodes": 128, "accelerators_per_node": 4}
    page.goto(link(request={"model": "gpt2", "cluster": v100,
                            "training": {"seq_length": 1024, "global_batch_size": 512,
                                         "precision": "fp16"}}))  # fmt: skip
    page.get_by_role("navigation").get_by_role("button", name="Accuracy").click()  # step 1
    sites = page.get_by_role("region", name="Sites")
    log = LOGS / "megatron_gpt_8_nodes.log"
    sites.get_by_label("Training log").set_input_files(log)  # step 2
    expect(sites.locator(".lesson")).to_contain_text("measured 1.62")
    sites.get_by_role("button", name="Keep it and find a better plan").click()  # step 3
    expect(page.get_by_role("main", name="Plan")).to_be_visible()
    ready(page)
    expect(page.locator(".request-summary")).to_contain_text("32 × V100")
    expect(page.locator(".site-line")).to_contain_text("Site my-cluster: 1 run")
    # Its own plan is pinned: Compare tells both in words.
    page.get_by_role("navigation").get_by_role("button", name="Compare").click()
    compared = page.get_by_role("main", name="Compare")
    expect(compared).to_contain_text(re.compile(r"B is \d+\.\d\d× as fast"))
    shot(page, "compared", whole=True)
