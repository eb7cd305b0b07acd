"""The site of a request: chosen in the form, carried everywhere, and what it changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from planner.data_folder import VARIABLE
from tests.browser.conftest import Service
from tests.browser.links import link, unpacked
from tests.planner.learning.sites.runs import CLUSTER, LOGS, NODES

ON_V100: dict[str, Any] = {
    "model": "gpt2",
    "cluster": {"accelerator": "v100-sxm2-32gb", "nodes": 1, "accelerators_per_node": 4},
    "training": {"seq_length": 1024, "global_batch_size": 64, "precision": "fp16"},
    "search": {"framework": "megatron"},
}


@pytest.fixture
def lab(service: Service) -> Iterator[None]:
    """A site of five runs at the service."""
    logs = [str(LOGS / f"megatron_gpt_{nodes}_nodes.log") for nodes in NODES]
    place = ["--cluster", CLUSTER, "--site", "lab", "--yes"]
    for words in (["learn", *logs, *place], ["sites", "forget", "lab"]):
        subprocess.run(
            [sys.executable, "-m", "planner.cli", *words], check=True, capture_output=True,
            env=os.environ | {VARIABLE: str(service.folder / "data")},
        )  # fmt: skip
        if words[0] == "learn":
            yield


@pytest.mark.exhaustive
@pytest.mark.usefixtures("lab")
def test_a_site_is_chosen_carried_and_told(
    open_page: Callable[..., Page], shot: Callable[..., None]
) -> None:
    page = open_page(color_scheme="light", viewport={"width": 1440, "height": 1000})
    page.goto(link(request=ON_V100))
    answer, figure = page.locator(".answer"), page.locator(".figures dd b").first
    expect(answer).to_have_attribute("aria-busy", "false")
    without = figure.inner_text()
    field = page.get_by_label("Site", exact=True)
    expect(field).to_have_value("")
    # Other tests of this server may have kept sites of their own.
    assert {"None", "lab: 5 runs"} <= set(field.locator("option").all_inner_texts())
    field.select_option("lab")
    line = page.locator(".site-line")
    expect(line).to_contain_text("Site lab: 5 runs move this time by")
    expect(answer).to_have_attribute("aria-busy", "false")
    assert figure.inner_text() != without
    page.wait_for_url(lambda url: "#q=" in url and unpacked(url)["request"]["site"] == "lab")
    with page.expect_request("**/v1/bundles") as asked:
        page.get_by_role("tab", name="Flags").click()
    assert asked.value.post_data_json["site"] == "lab"
    page.get_by_role("button", name="Export").click()
    with page.expect_download() as saved:
        page.get_by_role("menuitem", name="Request for the command line").click()
    assert json.loads(saved.value.path().read_text())["site"] == "lab"
    shot(page, "wide")
    for theme, width in (("dark", 1440), ("light", 390), ("dark", 390)):
        other = open_page(color_scheme=theme, viewport={"width": width, "height": 900})
        other.goto(page.url)
        expect(other.locator(".site-line")).to_be_visible()
        assert other.evaluate("document.documentElement.scrollWidth") <= width
        shot(other, f"{theme}-{width}", True)
    field.select_option("")
    expect(line).to_be_hidden()
    expect(figure).to_have_text(without)


def test_a_site_that_is_gone_is_named_at_its_field(page: Page) -> None:
    page.goto(link(request=ON_V100 | {"site": "gone"}))
    expect(page.locator("#f-site-problem")).to_contain_text("no site 'gone'")
    page.get_by_label("Site", exact=True).select_option("")
    expect(page.get_by_role("heading", name="Fastest plan")).to_be_visible()
