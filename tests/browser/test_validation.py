"""A real run of a tiny model, asked for, followed and judged in the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.links import link, unpacked

TINY: dict[str, Any] = {
    "model": {"name": "tiny", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
              "ffn_hidden_size": 256, "vocab_size": 512},
    "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 1, "accelerators_per_node": 2},
    "training": {"seq_length": 64, "global_batch_size": 4},
    "search": {"framework": "megatron", "dp": 2},
}  # fmt: skip


def begun(page: Page) -> None:
    page.goto(link(request=TINY, view="validate"))
    page.get_by_label("Timed steps").fill("3")
    page.get_by_label("Warm-up steps").fill("1")
    page.get_by_label("Compare gradients with one process").uncheck()  # a run of its own
    page.get_by_label("Calibrate this machine first").uncheck()  # and so is that
    page.get_by_role("button", name="Validate this plan").click()
    expect(page.get_by_role("region", name=re.compile("^Validation of tiny"))).to_be_visible()


@pytest.mark.exhaustive
def test_a_run_is_followed_to_its_report(page: Page, shot: Callable[..., None]) -> None:
    begun(page)
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.get_by_role("heading", name="Running", exact=True)).to_be_visible()
    shot(page, "running")
    # The address holds the job: whoever opens it again sees the same run.
    page.wait_for_url(lambda url: unpacked(url).get("job") is not None)
    page.reload()
    expect(page.get_by_role("region", name=re.compile("^Validation of tiny"))).to_be_visible()

    verdict = page.get_by_role("region", name="Verdict")
    expect(verdict).to_be_visible()
    expect(verdict).to_contain_text("Iteration, measured")
    # This machine's speed was never measured: its time is no verdict on the plan.
    expect(verdict.locator(".outcomes")).to_contain_text("time not judged")
    expect(verdict).to_contain_text(re.compile("3 steps"))
    times = page.get_by_role("region", name="Time of the busiest rank")
    expect(times.get_by_role("listitem").filter(has_text="forward")).to_be_visible()
    expect(page.get_by_role("region", name="What this shows")).to_contain_text("no GPUs and NCCL")
    page.get_by_text(re.compile(r"^Log, \d+ lines")).click()
    expect(page.get_by_label("Log", exact=True)).to_contain_text("run: done in")
    shot(page, "report", whole=True)


def test_a_run_can_be_cancelled(page: Page) -> None:
    begun(page)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("heading", name="Cancelled")).to_be_visible()
    page.get_by_role("region", name="Runs").get_by_text("cancelled").first.wait_for()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Is the estimate right? Run it.")).to_be_visible()


def test_without_torch_it_says_how_to_add_it(page: Page) -> None:
    def without(route: Route) -> None:
        info = route.fetch().json()
        route.fulfill(json={**info, "features": {**info["features"], "torch": None}})

    page.route("**/v1/info", without)
    page.goto(link(request=TINY, view="validate"))
    asked = page.get_by_role("form", name="What to run")
    expect(asked).to_contain_text("pip install torch==2.13.0")
    expect(asked.get_by_role("button", name="Validate this plan")).to_have_count(0)


def test_the_script_for_one_node_of_ones_own_cluster(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link(request=TINY, view="validate"))
    with page.expect_download() as saved:
        page.get_by_role("button", name="Script for one node").click()
    text = saved.value.path().read_text()
    assert "planner.running.validate.ranks.worker" in text
    own = page.get_by_role("region", name="One node of your cluster")
    expect(own).to_contain_text("2 × H100")
    expect(own).to_contain_text("planner-run/rank-1.json")
    # What is no result is refused in words.
    own.get_by_label("Results of its ranks").set_input_files(
        {"name": "rank-0.json", "mimeType": "application/json", "buffer": b"{}"}
    )
    expect(own.get_by_role("alert")).to_contain_text("is no rank-N.json of the script")
    shot(page, "one-node", whole=True)
