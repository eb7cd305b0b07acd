"""Accuracy: published runs by choice, the runs near the plan on show, and a log that is learned."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from planner.documents.scored_runs import scored_runs
from planner.learning.accuracy.first_sights import first_sight_summary
from tests.browser.links import link, unpacked
from tests.planner.learning.sites.runs import LOGS

ON_V100 = {
    "model": "gpt2",
    "cluster": {"accelerator": "v100-sxm2-32gb", "nodes": 128, "accelerators_per_node": 4},
    "training": {"seq_length": 1024, "global_batch_size": 512, "precision": "fp16"},
    "search": {"framework": "megatron", "pp": 1, "tp": 1, "cp": 1},
}


def test_runs_are_chosen_and_read(page: Page, shot: Callable[..., None]) -> None:
    page.goto(link(view="accuracy"))
    said = page.locator(".accuracy-view h2").first
    expect(said).to_contain_text(f"all {len(scored_runs()):,} runs")
    expect(page.locator(".plot-box .points > *")).to_have_count(len(scored_runs()))
    seen = first_sight_summary()
    expect(page.get_by_role("region", name="How far off")).to_contain_text(
        "At first sight, before anyone could tune to them, "
        f"{seen.runs} runs of {seen.sources} sources"
    )
    rows = page.locator(".coverage tbody tr")
    expect(rows.nth(1)).to_contain_text("80")

    own = [run for run in scored_runs() if run.source == "titan_h200"]
    page.get_by_label("Source", exact=True).select_option("titan_h200")
    expect(said).to_contain_text(f"Half of {len(own)} runs")
    expect(page.locator(".plot-box .points > *")).to_have_count(len(own))
    # Filters travel in the link, and a point is read where it stands.
    page.locator(".plot-box .points > *").first.press("Enter")
    expect(page.get_by_role("region", name="The run picked")).to_contain_text(own[0].title)
    page.get_by_role("button", name="Ratio").click()
    expect(page.locator(".plot-box")).to_contain_text("Predicted / measured")
    page.wait_for_url(lambda url: unpacked(url).get("accuracy") == {"source": "titan_h200"})
    page.reload()
    expect(said).to_contain_text(f"Half of {len(own)} runs")
    page.get_by_role("button", name="All runs").click()
    expect(said).to_contain_text("all ")
    shot(page, "whole", True)


def test_a_plan_says_what_it_rests_on_and_a_log_is_dropped(
    page: Page, shot: Callable[..., None]
) -> None:
    page.goto(link(view="accuracy", request=ON_V100))
    plan = page.get_by_role("region", name="The current plan")
    expect(plan.locator(".ground")).to_contain_text("No run at all on V100")
    expect(plan.locator(".nearest > li")).to_have_count(3)

    sites = page.get_by_role("region", name="Sites")
    sites.get_by_label("Site", exact=True).fill("dropped")
    log = LOGS / "megatron_gpt_8_nodes.log"
    sites.get_by_label("Training log").set_input_files(log)
    expect(sites.locator(".lesson")).to_contain_text(f"{log.name}: 1 run read")
    shot(page, "read", True)
    sites.get_by_role("button", name="Keep with dropped").click()
    expect(sites.get_by_role("button", name="dropped 1 run")).to_be_visible()
    expect(sites.locator(".site-answer")).to_contain_text("two runs show what it is worth")
    sites.get_by_role("button", name="Plan with it").click()
    expect(plan.locator(".ground")).to_contain_text("1 of site dropped")

    # What is no log is refused in words, and nothing is lost.
    sites.get_by_label("Training log").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"nothing of a run"}
    )
    expect(sites.get_by_role("alert")).to_be_visible()
    expect(sites.get_by_role("button", name="dropped 1 run")).to_be_visible()

    # A run is forgotten only once that is confirmed.
    sites.locator("summary", has_text="Its runs").click()
    shot(page, "runs", True)
    forget = sites.get_by_role("button", name=f"Forget the run of {log.name}")
    page.once("dialog", lambda dialog: dialog.dismiss())
    forget.click()
    expect(sites.get_by_role("button", name="dropped 1 run")).to_be_visible()
    page.once("dialog", lambda dialog: dialog.accept())
    forget.click()
    expect(sites.get_by_role("button", name="dropped 0 runs")).to_be_visible()
