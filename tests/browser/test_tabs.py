"""The tabs about a plan and the comparison of two: what a person does, and what comes of it."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from cost_models.catalog.hardware import accelerator
from cost_models.plans import ParallelPlan
from cost_models.units import GIB
from planner.evidence.uncertainty.memory_risk import room
from tests.browser.links import link
from tests.browser.test_accessibility import serious

WEB = Path(__file__).parents[2] / "web"
REQUEST = {
    "model": "llama-3.1-8b",
    "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 4, "accelerators_per_node": 8},
    "training": {"seq_length": 8192, "global_batch_size": 128},
    "search": {"framework": "megatron", "tp": 4, "pp": 2, "cp": 1, "top_k": 12},
}
TABS = ("Pipeline timeline", "Rank map", "Flags", "Layers", "Candidates", "Why not")
PHONE: Any = {"width": 360, "height": 780}


def panel(page: Page, tab: str, **state: Any) -> Locator:
    """A tab's panel, with its answer there."""
    page.goto(link(request=REQUEST, **state))
    return shown(page, tab)


def shown(page: Page, tab: str) -> Locator:
    """A tab's panel on the page that is open."""
    page.get_by_role("tab", name=tab, exact=True).click()
    found = page.get_by_role("tabpanel", name=tab, exact=True)
    expect(found.locator("h3, .equation, table").first).to_be_visible()
    expect(found.locator("[aria-busy=true]")).to_have_count(0)
    return found


def test_timeline(page: Page, shot: Callable[..., None]) -> None:
    tab = panel(page, "Pipeline timeline")
    chart = tab.get_by_role("application")
    tab.get_by_role("combobox", name="Schedule").select_option(label="ZB-H1")
    expect(tab.get_by_role("heading", name="ZB-H1")).to_be_visible()
    expect(tab.get_by_text("weight gradient", exact=True)).to_be_visible()

    chart.focus()
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    said = tab.locator(".canvas-hint")
    expect(said).to_have_text(re.compile("^rank 1: forward, micro-batch 0, "))
    tab.get_by_role("button", name="Show the whole timeline").click()
    expect(tab.locator("output")).to_be_empty()
    chart.focus()
    page.keyboard.press("+")
    expect(tab.locator("output")).to_have_text("×1.5")
    box = chart.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 100, box["y"] + 40)
    expect(tab.locator(".canvas-tip")).to_have_text(re.compile("^rank 0: .*, micro-batch"))
    shot(page, "pointed")

    with page.expect_download() as download:
        tab.get_by_role("button", name="Trace").click()
    events = json.loads(download.value.path().read_text())["traceEvents"]
    assert {event["name"] for event in events} >= {"forward 0", "weight gradient 0"}
    tab.get_by_role("button", name="as a table").click()
    expect(tab.get_by_role("row")).to_have_count(1 + 2)

    tab.get_by_text("All schedules on this pipeline").click()
    other = tab.get_by_role("row", name=re.compile("^GPipe"))
    other.click()
    expect(tab.get_by_role("heading", name="GPipe")).to_be_visible()


@pytest.mark.exhaustive
def test_timeline_of_thousands_of_actions_stays_fluid(page: Page) -> None:
    page.goto("/")
    drawn = page.evaluate(
        """async () => {
            const [{ h, render }, { Timeline }, { url }] = await Promise.all([
                import("preact"), import("/web/charts/timeline.js"), import("/web/api.js")]);
            const body = JSON.stringify({schedule: "1f1b", stages: 32, micro_batches: 1024,
                forward_s: 0.01, input_grad_s: 0.01, weight_grad_s: 0.01});
            const headers = {"Content-Type": "application/json"};
            const sent = await fetch(url("/v1/timelines"), {method: "POST", body, headers});
            const box = document.createElement("div");
            document.body.replaceChildren(box);
            render(h(Timeline, { answer: await sent.json() }), box);
            await new Promise(requestAnimationFrame);
            const canvas = box.querySelector("canvas");
            const inked = () => {
                const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
                copy.drawImage(canvas, 0, 0);
                const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
                return new Set(data.filter((_, i) => i % 400 === 0)).size;
            };
            const seen = [];
            for (const key of ["0", "+", "+", "+", "+", "+", "+", "+", "+", "+", "+"]) {
                canvas.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
                await new Promise(requestAnimationFrame);
                await new Promise(requestAnimationFrame);
                seen.push(inked());
            }
            return seen;
        }"""
    )
    assert min(drawn) > 3  # at every zoom something is to be seen


def test_rank_map(page: Page, shot: Callable[..., None]) -> None:
    tab = panel(page, "Rank map")
    expect(tab.get_by_role("heading", name="32 ranks on 4 nodes")).to_be_visible()
    tab.get_by_role("application").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    expect(tab.locator("h4")).to_have_text(re.compile("^Rank (9|17|25) node"))
    tab.get_by_label("Rank", exact=True).fill("5")
    expect(tab.locator("h4")).to_have_text("Rank 5 node 0, accelerator 5, kept")
    group = tab.get_by_role("row", name="tp 4 … 7")
    expect(group).to_contain_text("nvlink")
    traffic = tab.get_by_role("region", name="Traffic of one iteration")
    expect(traffic).to_contain_text("nvlink, the busiest")
    expect(traffic.get_by_role("row", name="tp activations")).to_contain_text("GiB")
    shot(page, "kept", whole=True)
    tab.get_by_label("Rank order").select_option(label="DeepSpeed")
    expect(tab.locator(".caption")).to_contain_text("PipeModelDataParallelTopology")


WIDE: dict[str, Any] = {
    "cluster": {"accelerator": "h100-sxm-80gb", "nodes": 8, "accelerators_per_node": 4},
    "plan": {"tp": 8, "pp": 2, "sequence_parallel": True},
}


@pytest.mark.parametrize("order", ["megatron", "deepspeed"])
def test_the_map_finds_the_links_that_the_service_counts(page: Page, order: str) -> None:
    page.goto("/")
    counted, service = page.evaluate(
        """async ([body, order]) => {
            const { post } = await import("/web/api.js");
            const { Ranks } = await import("/web/charts/ranks.js");
            const answer = await post(`/v1/ranks?order=${order}`, body);
            const ranks = new Ranks(answer);
            const counts = answer.groups.map((kind) => {
                const seen = new Map();
                for (let rank = 0; rank < answer.world_size; rank++) {
                    const members = ranks.members(kind, rank);
                    seen.set(members.join(), ranks.link(members));
                }
                const links = {};
                for (const link of seen.values()) links[link] = (links[link] ?? 0) + 1;
                return [[...seen.keys()].sort(), links];
            });
            const told = answer.groups.map((kind) => [kind.ranks.map(String).sort(), kind.links]);
            return [counts, told];
        }""",
        [REQUEST | WIDE, order],
    )
    assert counted == service


def test_flags(open_page: Callable[..., Page], shot: Callable[..., None]) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    tab = panel(page, "Flags")
    terms = [int(one.replace(",", "")) for one in tab.locator(".equation b").all_inner_texts()]
    assert terms[0] == 128 == terms[1] * terms[2] * terms[3]
    copying = tab.get_by_role("button", name="Copy flags")
    copying.click()
    expect(tab.get_by_role("button", name="Copied")).to_be_focused()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert "--tensor-model-parallel-size 4" in copied
    shot(page, "megatron")

    tab.get_by_label("Started by").select_option("slurm")
    with page.expect_download() as download:
        tab.get_by_role("button", name="Zip").click()
    archive = zipfile.ZipFile(io.BytesIO(download.value.path().read_bytes()))
    names = {name.rsplit("/", 1)[-1] for name in archive.namelist()}
    assert {"launch.sh"} < names
    expect(tab.locator(".files summary")).to_have_count(len(names))

    tab.get_by_text("Compare with the script you have").click()
    script = next(archive.read(one).decode() for one in archive.namelist() if "launch.sh" in one)
    box = tab.get_by_label("launch script, or its flags")
    box.fill(script.replace("--tensor-model-parallel-size 4", "--tensor-model-parallel-size 8"))
    tab.get_by_role("button", name="Compare").click()
    expect(tab.get_by_role("row", name="TP 8 4")).to_be_visible()
    box.fill("echo <b> <")
    tab.get_by_role("button", name="Compare").click()
    expect(tab.get_by_role("alert")).to_contain_text("bash stops here")


def test_a_framework_that_cannot_run_the_plan_says_why(page: Page) -> None:
    tab = panel(page, "Flags")
    tab.get_by_role("tab", name="Hugging Face accelerate").click()
    expect(tab.get_by_role("alert")).to_contain_text("pp")
    tab.get_by_role("button", name="Find the best plan for Hugging Face accelerate").click()
    expect(page.get_by_label("Framework", exact=True)).to_have_value("accelerate")


def test_layers(page: Page, shot: Callable[..., None]) -> None:
    tab = panel(page, "Layers")
    kernels = tab.get_by_role("region", name=re.compile("^Kernels of"))
    fc1 = kernels.get_by_role("row").filter(has_text="fc1")
    # 8,192 tokens, 4,096 wide, gate and up of 14,336 over tp 4.
    expect(fc1).to_contain_text("× 4,096 × 7,168")
    expect(fc1).to_contain_text("TFLOP/s")
    saved = tab.get_by_role("region", name=re.compile("^Tensors saved by"))
    expect(saved.get_by_role("row").filter(has_text="fc1 output")).to_contain_text("mlp")
    exchange = tab.locator(".exchanges li").filter(has_text="TP communication")
    expect(exchange).to_contain_text("exposed")
    expect(exchange).to_contain_text("hidden")
    shot(page, "layers", whole=True)


def test_candidates(page: Page, shot: Callable[..., None]) -> None:
    tab = panel(page, "Candidates")
    rows = tab.locator("tbody tr")
    expect(rows).not_to_have_count(0)
    tab.get_by_role("button", name="Worst stage").click()
    tab.get_by_role("button", name="Worst stage").click()
    peaks = [_number(one) for one in tab.locator("tbody td:nth-child(5)").all_inner_texts()]
    assert len(peaks) > 5
    assert peaks == sorted(peaks)
    likely = tab.locator("tbody td:nth-child(6)")
    expect(likely.filter(has_text="%")).to_have_count(10)
    expect(likely.filter(has_text="tie")).not_to_have_count(0)
    tab.get_by_label("Columns").select_option(label="Overlap")
    expect(tab.get_by_role("columnheader", name="overlap tp")).to_be_visible()
    rows.nth(1).get_by_role("button", name="Pin to compare").click()
    expect(page.get_by_role("navigation").get_by_role("button", name="Compare")).to_contain_text(
        "1"
    )
    rows.nth(1).click()
    expect(page.get_by_role("heading", name="Picked plan")).to_be_visible()
    expect(rows.nth(1)).to_have_attribute("aria-current", "true")
    shot(page, "picked")

    with page.expect_download() as download:
        tab.get_by_role("button", name="All as CSV").click()
    lines = download.value.path().read_text().splitlines()
    expect(tab.locator(".candidates-tab > .table-tools").last).to_contain_text(
        f"of {len(lines) - 1}"
    )
    assert lines[0].startswith("tokens_per_s,")
    peak = rows.nth(0).locator("td").nth(4)
    first = peak.inner_text()
    tab.get_by_label("Out of memory, or likely").check()
    limit = room(accelerator("h100-sxm").memory_bytes, 0.05).of_plan(ParallelPlan()) / GIB
    expect(peak).not_to_have_text(first)
    assert _number(peak.inner_text()) > limit


def _number(text: str) -> float:
    return float(re.sub(r"[^\d.]", "", text))


def test_why_not(page: Page, shot: Callable[..., None]) -> None:
    tab = panel(page, "Why not")
    expect(tab.get_by_role("heading", name="Rejected plans")).to_be_visible()
    expect(tab.get_by_text("A stage needs more than the accelerator has")).to_be_visible()
    tab.get_by_label("micro batch").fill("16")
    tab.get_by_role("button", name="Explain").click()
    # Two searches: the answer takes longest of all where other tests run besides.
    expect(tab.get_by_role("heading", name="It does not fit")).to_be_visible()
    shot(page, "does-not-fit")
    tab.get_by_role("button", name=re.compile("^Use TP")).click()
    expect(page.get_by_role("heading", name="Picked plan")).to_be_visible()
    tab.get_by_label("TP", exact=True).fill("3")
    tab.get_by_role("button", name="Explain").click()
    expect(tab.get_by_role("heading", name="It cannot run")).to_be_visible()


def test_comparison(page: Page, shot: Callable[..., None]) -> None:
    tab = panel(page, "Candidates")
    for row in (0, 2):
        tab.locator("tbody tr").nth(row).get_by_role("button", name="Pin to compare").click()
    page.get_by_role("navigation").get_by_role("button", name="Compare").click()
    main = page.get_by_role("main")
    expect(main.get_by_label("A", exact=True)).to_have_value("pin-0")
    expect(main.get_by_label("B", exact=True)).to_have_value("pin-1")
    table = main.get_by_role("region", name="Side by side")
    expect(table.get_by_role("row", name=re.compile("^Throughput ")).first).to_be_visible()
    expect(main).to_contain_text("is faster with a chance of")
    assert table.get_by_role("row", name=re.compile("^Num layers")).count() == 0
    main.get_by_label("Differences only").uncheck()
    expect(table.get_by_role("row", name=re.compile("^Num layers"))).to_be_visible()
    pipelines = main.get_by_role("application")
    expect(pipelines).to_have_count(2)
    zoomed = main.locator("output")
    pipelines.first.focus()
    page.keyboard.press("0")
    page.keyboard.press("+")
    expect(zoomed).to_have_text(["×1.5", "×1.5"])
    shot(page, "pins", whole=True)
    page.reload()
    expect(main.get_by_label("A", exact=True)).to_have_value("pin-0")


@pytest.mark.exhaustive
def test_everybody_on_any_screen(page: Page, shot: Callable[..., None]) -> None:
    page.emulate_media(reduced_motion="reduce")

    def look(name: str, within: str) -> None:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert serious(page, within) == [], f"{name}, {scheme}"
            shot(page, f"{name}-{scheme}", whole=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name

    panel(page, TABS[0])
    page.set_viewport_size(PHONE)
    for tab in TABS:
        shown(page, tab)
        look(tab.replace(" ", "-"), ".tabs-card")
    page.goto(link(request=REQUEST, view="compare"))
    expect(page.get_by_role("application")).to_have_count(2)
    look("compare", "main")
