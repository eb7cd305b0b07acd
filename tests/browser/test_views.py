"""Size, Fit and Lint: what a person asks there, and what comes of it."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.links import SIZING, link

ANSWER = "What to rent"


def sized(page: Page) -> None:
    expect(page.locator(".verdict")).to_be_visible()
    expect(page.get_by_role("region", name=ANSWER)).to_have_attribute("aria-busy", "false")


def test_what_to_rent(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link(view="size", sizing=SIZING))
    sized(page)
    verdict = page.locator(".verdict")
    before = verdict.inner_text()
    assert re.fullmatch(r"Rent \d+ × .+: done in .+ for \$.+", before)
    shot(page, "sized")

    # Another price changes the cost, and an impossible budget is said to be one.
    page.get_by_label("Price of MI300X").fill("100")
    page.get_by_label("Price of H100").fill("200")
    expect(verdict).not_to_have_text(before)
    page.get_by_label("Budget").fill("0.01")
    expect(verdict).to_have_text(re.compile("^Nothing here finishes within 60.days, for at most"))
    # What would do is offered, and applies itself.
    offers = page.get_by_role("list", name="What would do")
    expect(offers.get_by_role("button", name="A budget of")).to_be_visible()
    expect(offers.get_by_role("button", name="tokens")).to_be_visible()
    offers.get_by_role("button", name="A budget of").click()
    expect(verdict).to_have_text(re.compile("^Rent"))
    page.get_by_label("Budget").fill("")
    expect(verdict).to_have_text(re.compile("^Rent"))

    # Every kind that was asked for stays, with its doubt, and the price of one that is not.
    expect(page.locator(".surely")).to_contain_text("The deadline is met with a chance of")
    kinds = page.locator(".kinds-table tbody tr")
    expect(kinds).to_have_count(2)
    expect(kinds.filter(has_text="MI300X")).to_contain_text("no run known")
    page.get_by_role("button", name=re.compile(r"All \d+ kinds")).click()
    expect(page.get_by_label("Price of B200 SXM")).to_have_attribute("placeholder", "5.5")

    # What cannot be is said at its field, and the last answer stays.
    page.get_by_label("PUE").fill("0.5")
    expect(page.get_by_label("PUE")).to_have_attribute("aria-invalid", "true")
    expect(verdict).to_be_visible()
    page.get_by_label("PUE").fill("")
    sized(page)

    with page.expect_download() as download:
        page.get_by_role("region", name="Clusters").get_by_role("button", name="Save").click()
        page.get_by_role("menuitem", name="CSV").click()
    rows = list(csv.DictReader(download.value.path().read_text().splitlines()))
    assert {"accelerators", "days", "cost_usd"} <= rows[0].keys()

    point = page.locator(".points > *").first
    said = point.get_attribute("aria-label")
    assert said is not None
    point.press("Enter")
    expect(page.get_by_role("main", name="Plan")).to_be_visible()
    count, _, kind = said.partition(":")[0].partition(" × ")
    expect(page.locator(".request-summary")).to_contain_text(f"{count} × {kind}")


@pytest.mark.exhaustive
def test_a_sizing_shows_its_rows_as_they_come(page: Page, shot: Callable[..., None]) -> None:
    question = {
        "model": "llama-3.1-8b",
        "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 1, "accelerators_per_node": 8},
        "training": {"seq_length": 8192, "global_batch_size": 480, "tokens": 1e12},
    }
    sizing = {"deadline_days": 90, "accelerators": ["h100-sxm-80gb", "a100-sxm-80gb"]}
    page.goto(link(request=question, view="size", sizing=sizing))
    some = page.get_by_role("region", name="Clusters so far")
    expect(some.locator("tbody tr").first).to_be_visible(timeout=20_000)
    shot(page, "so-far")
    expect(page.locator(".verdict")).to_contain_text("Rent", timeout=60_000)
    expect(some).to_have_count(0)


def test_without_a_price_there_is_no_cost(page: Page) -> None:
    page.goto(link(view="size", sizing={"accelerators": ["l40s", "gaudi3"], "sizes": [8, 16]}))
    sized(page)
    expect(page.locator(".verdict")).to_contain_text("no price is known, so no cost")
    expect(page.get_by_role("heading", name="Days by number of accelerators")).to_be_visible()


def test_what_fits(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link(view="fit"))
    verdict = page.locator(".verdict")
    expect(verdict).to_have_text("3 of 7 ways fit on 1 × GeForce RTX 4090")
    table = page.get_by_role("region", name="Methods by length: table")
    quantized = table.get_by_role("row", name="QLoRA")
    expect(quantized.locator(".meter:not(.over)")).to_have_count(5)
    expect(quantized.locator("td").first).to_contain_text("tokens/s")
    expect(table.get_by_role("row", name="full Axolotl")).to_contain_text("over")
    commands = page.get_by_role("region", name="To run")
    expect(commands).to_contain_text("planner emit --model qwen3-8b --cluster 1x1xrtx-4090")
    shot(page, "fits", whole=True)
    page.get_by_label("Batch").fill("-1")
    expect(page.get_by_label("Batch")).to_have_attribute("aria-invalid", "true")
    expect(verdict).to_be_visible()


@pytest.mark.exhaustive
def test_a_rented_node_has_a_price_and_room_for_more_ways(page: Page) -> None:
    page.goto(link(view="fit"))
    page.get_by_label("Card or instance").select_option("p5.4xlarge")
    expect(page.locator(".verdict")).to_have_text("6 of 7 ways fit on 1 × H100 SXM5 80GB")
    table = page.get_by_role("region", name="Methods by length: table")
    row = table.get_by_role("row", name="QLoRA")
    expect(row.locator("td").first).to_contain_text("$")


@pytest.mark.exhaustive
def test_which_cards_fit(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link(view="fit"))
    page.get_by_label("Card or instance").select_option("every card")
    verdict = page.locator(".verdict")
    expect(verdict).to_have_text("17 of 17 cards can fine-tune it", timeout=60_000)
    table = page.get_by_role("region", name="Cards by method: table")
    expect(table.get_by_role("row")).to_have_count(18)
    expect(table.get_by_role("row").nth(1)).to_contain_text("over")
    card = table.get_by_role("row", name="GeForce RTX 4090 ")
    # 8B of trained weights take 2 GiB more: torchtune keeps the logarithms of all logits.
    expect(card.locator("td", has_text="tokens/s")).to_have_count(2)
    expect(page.get_by_label("Cards in the node")).to_have_count(0)
    shot(page, "fits-by-card", whole=True)
    card.get_by_role("button").click()
    expect(verdict).to_have_text("3 of 7 ways fit on 1 × GeForce RTX 4090")


def test_a_step_of_reinforcement_learning(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link(view="rl"))
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("per step")
    expect(page.locator(".time-bar .part").first).to_be_visible()
    ways = page.get_by_role("region", name="Ways to run it: table")
    expect(ways.locator("tbody tr").first).to_contain_text("all, in turn")
    expect(ways.get_by_role("row", name="asynchronous")).to_be_visible()
    run = page.get_by_role("region", name="To run", exact=True)
    expect(run).to_contain_text("planner rl-emit --model qwen3-8b --cluster 2x8xh100-sxm-80gb")
    lanes = page.get_by_role("region", name="Timeline of one step").locator(".step-lane")
    expect(lanes.first).to_have_attribute(
        "aria-label", re.compile("^16 accelerators, all: generation from 0.* to .*, policy scoring")
    )
    expect(lanes.nth(1)).to_have_attribute("aria-label", re.compile("generation for a later step"))
    first, second = lanes.first.locator("i").nth(0).bounding_box(), lanes.nth(1).bounding_box()
    assert first is not None
    assert second is not None
    assert first["y"] + first["height"] <= second["y"]
    shot(page, "rl", whole=True)

    # Twice as many started as waited for: the last ones are cut.
    page.get_by_text("Cuts, filters and tools").click()
    before = verdict.inner_text()
    page.get_by_label("Started for each").fill("2")
    expect(verdict).not_to_have_text(before)
    page.get_by_label("Cut responses go on").check()
    page.get_by_label("Turns").fill("4")
    page.get_by_label("Wait for a tool").fill("2")
    expect(run).to_contain_text("--oversampling 2 --partial-rollouts --turns 4 --tool-wait-s 2")
    shot(page, "rl-cuts", whole=True)
    for name in ("Started for each", "Turns", "Wait for a tool"):
        page.get_by_label(name).fill("")
    page.get_by_label("Cut responses go on").uncheck()

    # It answers as one types: longer responses take longer, and a mean above them is refused.
    before = verdict.inner_text()
    page.get_by_label("Longest response").fill("16k")
    expect(verdict).not_to_have_text(before)
    page.get_by_label("Updates behind").fill("2")
    expect(page.locator(".lead")).to_contain_text("asynchronous")
    page.get_by_label("Prompts").fill("-1")
    expect(page.get_by_label("Prompts")).to_have_attribute("aria-invalid", "true")
    expect(verdict).to_be_visible()


LAUNCH = """torchrun --nnodes 1 --nproc_per_node 4 pretrain_gpt.py \\
  --num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 50257 \\
  --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 \\
  --global-batch-size 64 --tensor-model-parallel-size 8 --bf16 --no-such-option
"""


def test_flags_are_checked(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link(view="lint"))
    # An example is judged before anybody pastes anything.
    expect(page.locator(".findings")).to_be_visible()
    text = page.get_by_label("Text of the file")
    text.fill(LAUNCH)
    expect(page.get_by_role("heading", name="Will not run")).to_be_visible()
    findings = page.get_by_role("region", name="Findings")
    expect(findings).to_contain_text("--no-such-option")
    expect(findings).to_contain_text("launch.sh:4")
    shot(page, "findings", whole=True)

    # While a newer text is judged, lines are still quoted from the one that was; it survives.
    page.route("**/v1/lints", lambda route: None)
    text.fill("# one line more\n" + LAUNCH)
    expect(page.locator(".notice")).to_contain_text("before your last change")
    option = findings.locator("li").filter(has_text="--no-such-option: unknown")
    expect(option.locator("code")).to_contain_text("--bf16 --no-such-option")
    page.unroute("**/v1/lints")
    page.reload()
    expect(text).to_have_value("# one line more\n" + LAUNCH)
    expect(findings).to_contain_text("launch.sh:5")

    fewest = page.get_by_role("region", name="Fewest changes that run")
    expect(fewest).to_contain_text("--tensor-model-parallel-size")
    fewest.get_by_role("button", name="Open this plan").click()
    expect(page.get_by_role("main", name="Plan")).to_be_visible()
    expect(page.locator(".request-summary")).to_contain_text("4 × H100")
    expect(page.locator(".figures")).to_be_visible()

    page.get_by_role("navigation").get_by_role("button", name="Lint").click()
    page.get_by_label("Text of the file").fill("rm -rf /")
    expect(page.get_by_role("heading", name="This cannot be read")).to_be_visible()
    expect(page.get_by_label("Text of the file")).to_have_value("rm -rf /")
